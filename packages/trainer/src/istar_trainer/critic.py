"""The critic: a copy of the policy whose head gives the value of a state instead of logits.

It runs through the same forward pass as the policy, so the value at a response token is that of the
state before it: what was read so far, that token excluded.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from istar_trainer.batch import StepBatch
from istar_trainer.config import LearnerConfig
from istar_trainer.devices import device_of
from istar_trainer.learner import LanguageModel, Learner
from istar_trainer.losses import aggregate, clipped_value_loss
from istar_trainer.model import Forward
from istar_trainer.update import deal


class ValueHead(nn.Linear):
    """One output, computed in fp32 whatever the layers below compute in."""

    def forward(self, input: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes 1"]:
        """Return the values of states."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.to(self.weight.dtype))


def with_value_head(model: nn.Module) -> nn.Module:
    """Replace a causal LM's head in place by one output, which starts at 0; returns the model."""
    language_model = cast(Any, model)
    head = ValueHead(language_model.config.get_text_config().hidden_size, 1, device=device_of(model))
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    language_model.set_output_embeddings(head)
    return model


def values_of(out: Forward) -> Float[Tensor, "rows seq"]:
    """Value of the state before each response token, 0 elsewhere; carries gradient."""
    return out.expand(out.logits.squeeze(1))


def state_values(critic: LanguageModel, batch: StepBatch) -> Float[Tensor, "rows seq"]:
    """Value of the state before each response token of a batch, 0 elsewhere; no gradient."""
    return critic.token_values(batch, lambda out, _rows: values_of(out))


def fit_critic(
    critic: Learner,
    batch: StepBatch,
    old_values: Float[Tensor, "rows seq"],
    returns: Float[Tensor, "rows seq"],
    mask: Bool[Tensor, "rows seq"],
    *,
    clip: float | None,
    config: LearnerConfig,
    seed: int,
) -> dict[str, float]:
    """Take ``epochs`` × ``minibatches`` optimizer steps towards the returns.

    Args:
        critic: The critic.
        batch: Rows that were scored.
        old_values: The critic's values before this update.
        returns: What it should have said.
        mask: True where it is asked.
        clip: How far a value may move from its old one before its gradient stops; None for no limit.
        config: Epochs and minibatches.
        seed: Seed of the dealing of groups.

    Returns:
        Metrics ``critic/…``.
    """
    losses: list[float] = []
    norms: list[float] = []
    for epoch in range(config.epochs):
        for chosen in deal(batch.group_index, config.minibatches, seed=seed + epoch):
            asked = mask & chosen[:, None]
            losses.append(_accumulate(critic, batch, old_values, returns, asked, clip=clip))
            norms.append(critic.step())
    said, told = old_values[mask].double(), returns[mask].double()
    variance = float(told.var(correction=0)) if len(told) else 0.0
    missed = float((told - said).var(correction=0)) if len(told) else 0.0
    return {
        "critic/loss": sum(losses) / len(losses),
        "critic/grad_norm": sum(norms) / len(norms),
        "critic/explained_variance": 1 - missed / variance if variance > 0 else float("nan"),
        "critic/value_mean": float(said.mean()),
        "critic/return_mean": float(told.mean()),
    }


def _accumulate(
    critic: Learner,
    batch: StepBatch,
    old_values: Float[Tensor, "rows seq"],
    returns: Float[Tensor, "rows seq"],
    asked: Bool[Tensor, "rows seq"],
    *,
    clip: float | None,
) -> float:
    weights = asked / asked.sum().clamp_min(1).double()

    def share(out: Forward, rows: Int[Tensor, " some"]) -> Float[Tensor, ""]:
        errors = clipped_value_loss(values_of(out), old_values[rows], returns[rows], clip=clip)
        return aggregate(errors, weights[rows])

    return critic.backward(batch, share, asked.any(dim=1).nonzero().squeeze(1))
