"""Who owns a model and its optimizer: the protocol, and the one-process implementation.

The training loop and the PRM know only ``LanguageModel`` and ``Learner``. A loss is given as a
function from the logprobs of some rows to a scalar, so that micro-batches can be summed without
holding their graphs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from istar_trainer.batch import StepBatch, micro_batches
from istar_trainer.errors import NonFiniteLoss
from istar_trainer.model import LOGITS_MIB, Forward, forward
from istar_trainer.weights import copy_weights, load_weights

RowLoss = Callable[[Forward, Int[Tensor, " some"]], Tensor]
"""Maps the forward pass of some rows, and their indices in the batch, to their share of the loss."""
TokenValue = Callable[[Forward, Int[Tensor, " some"]], Float[Tensor, "some seq"]]
"""Maps the forward pass of some rows to one value per token."""


class LanguageModel(Protocol):
    """A causal language model that reads batches."""

    def logprobs(self, batch: StepBatch) -> Float[Tensor, "rows seq"]:
        """Log-probability of every response token under the current weights; no gradient."""
        ...

    def forward(self, batch: StepBatch, rows: Int[Tensor, " some"]) -> Forward:
        """Run the model over some rows; carries gradient if grad mode is on."""
        ...

    def token_values(self, batch: StepBatch, value: TokenValue) -> Float[Tensor, "rows seq"]:
        """Any per-token function of the model's logits; no gradient."""
        ...

    def complete(self, values: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Fill in what other processes found for their rows; each has left 0 at rows that are not its own."""
        ...


class Learner(LanguageModel, Protocol):
    """Owns a model and its optimizer."""

    def backward(self, batch: StepBatch, loss: RowLoss, rows: Int[Tensor, " some"] | None = None) -> float:
        """Accumulate the gradient of a loss that is a sum over rows; returns the loss."""
        ...

    def step(self) -> float:
        """Clip, update the weights, clear the gradient; returns the norm before clipping."""
        ...

    def scale_lr(self, share: float) -> None:
        """Use a share of the configured learning rate from the next step on."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of the weights."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to read from; shared with the model where it holds them whole."""
        ...

    def load(self, weights: dict[str, Tensor]) -> None:
        """Replace the weights; the optimizer state stays."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state for a checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's state."""
        ...


@dataclass(frozen=True, slots=True)
class Optimization:
    """How weights are updated.

    Attributes:
        lr: AdamW learning rate.
        weight_decay: AdamW weight decay.
        grad_clip: Largest gradient norm.
    """

    lr: float
    weight_decay: float
    grad_clip: float


class TorchModel:
    """A model in this process that is only read.

    Args:
        model: Causal LM.
        temperature: Divides the logits wherever logprobs are taken.
        micro_batch_tokens: Tokens per forward pass, padding included unless rows are packed.
        logits_mib: Largest fp32 logits held at once, in MiB.
        packing: Whether rows are laid end to end instead of padded.
        merge_prefixes: Whether rows that are the beginning of longer ones are computed as part of these.

    Attributes:
        sees_pictures: Whether it is shown the pictures of the rows; change it at will.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        micro_batch_tokens: int,
        logits_mib: int = LOGITS_MIB,
        packing: bool = False,
        merge_prefixes: bool = False,
    ) -> None:
        self.model = model
        self.sees_pictures = True
        self.temperature = temperature
        self.micro_batch_tokens = micro_batch_tokens
        self.logits_mib = logits_mib
        self.packing = packing
        self.merge_prefixes = merge_prefixes

    def logprobs(self, batch: StepBatch) -> Float[Tensor, "rows seq"]:
        """Log-probability of every response token under the current weights; no gradient."""
        return self.token_values(batch, lambda out, _rows: out.logprobs())

    def forward(self, batch: StepBatch, rows: Int[Tensor, " some"]) -> Forward:
        """Run the model over some rows; carries gradient if grad mode is on."""
        return forward(
            self.model,
            batch,
            rows,
            temperature=self.temperature,
            logits_mib=self.logits_mib,
            packing=self.packing,
            merge_prefixes=self.merge_prefixes,
            sees_pictures=self.sees_pictures,
        )

    @torch.no_grad()
    def token_values(self, batch: StepBatch, value: TokenValue) -> Float[Tensor, "rows seq"]:
        """Any per-token function of the model's logits; no gradient.

        Args:
            batch: Rows to score.
            value: Gets the forward pass of some rows and their indices in the batch.

        Returns:
            The values of all rows, each in its place.
        """
        result = torch.zeros(batch.input_ids.shape)
        for rows in self.parts(batch):
            result[rows] = value(self.forward(batch, rows), rows)
        return self.complete(result)

    def parts(self, batch: StepBatch) -> Iterator[Int[Tensor, " some"]]:
        """Yield the rows of each forward pass over a batch."""
        return micro_batches(
            batch, self.micro_batch_tokens, packing=self.packing, merge_prefixes=self.merge_prefixes
        )

    def complete(self, values: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the values as they are: this process has found them all."""
        return values


class TorchLearner(TorchModel):
    """A model and AdamW in this process.

    Args:
        model: Causal LM with fp32 master weights.
        optimization: Learning rate and friends.
        temperature: Divides the logits wherever logprobs are taken.
        micro_batch_tokens: Tokens per forward pass, padding included unless rows are packed.
        logits_mib: Largest fp32 logits held at once, in MiB.
        packing: Whether rows are laid end to end instead of padded.
        merge_prefixes: Whether rows that are the beginning of longer ones are computed as part of these.
    """

    def __init__(
        self,
        model: nn.Module,
        optimization: Optimization,
        *,
        temperature: float,
        micro_batch_tokens: int,
        logits_mib: int = LOGITS_MIB,
        packing: bool = False,
        merge_prefixes: bool = False,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            micro_batch_tokens=micro_batch_tokens,
            logits_mib=logits_mib,
            packing=packing,
            merge_prefixes=merge_prefixes,
        )
        self.optimization = optimization
        self.optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=optimization.lr,
            betas=(0.9, 0.999),
            weight_decay=optimization.weight_decay,
        )

    def backward(self, batch: StepBatch, loss: RowLoss, rows: Int[Tensor, " some"] | None = None) -> float:
        """Accumulate the gradient of a loss that is a sum over rows.

        Args:
            batch: All rows.
            loss: Share of the loss of some rows; denominators must already be global.
            rows: The rows to go over; all by default.

        Returns:
            The loss.

        Raises:
            NonFiniteLoss: If it is NaN or infinite; gradients are cleared, weights untouched.
        """
        found = torch.zeros((), dtype=torch.float64)
        for local in self.parts(batch if rows is None else batch.select(rows)):
            chosen = local if rows is None else rows[local]
            value = loss(self.forward(batch, chosen), chosen)
            if value.requires_grad:
                self.accumulate(value)
            found += value.item()
        total = float(self.complete(found))
        if not math.isfinite(total):
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLoss(
                f"the loss is {total} on the rows of snapshot {batch.snapshot_id}. "
                "The weights were not changed; lower the learning rate or look at the advantages."
            )
        return total

    def accumulate(self, loss: Float[Tensor, ""]) -> None:
        """Add the gradient of a part of the loss to what is there."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        """Clip, update the weights and clear the gradient.

        Returns:
            The gradient norm before clipping.

        Raises:
            NonFiniteLoss: If the gradient is NaN or infinite; weights untouched.
        """
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.optimization.grad_clip))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLoss(f"the gradient norm is {norm}. The weights were not changed.")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def scale_lr(self, share: float) -> None:
        """Use a share of the configured learning rate from the next step on."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimization.lr * share

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of the weights."""
        return copy_weights(self.model)

    def weights(self) -> dict[str, Tensor]:
        """Return the model's own weights."""
        return self.model.state_dict()

    def sampling_model(self) -> nn.Module:
        """Return a model that generates with ``weights``: this learner's own."""
        return self.model

    def load(self, weights: dict[str, Tensor]) -> None:
        """Replace the weights; the optimizer state stays."""
        load_weights(self.model, weights)

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state for a checkpoint."""
        return self.optimizer.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's state."""
        self.optimizer.load_state_dict(state)
