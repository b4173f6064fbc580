"""A causal language model as a function from rows to per-token log-probabilities.

Works on any Hugging Face causal LM. Log-softmax and reductions are fp32 whatever the weights are.
Rows with equal tokens are computed once: trajectories of a group share many states.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from istar_envs.errors import ConfigError
from istar_trainer.attribution import token_kl
from istar_trainer.batch import StepBatch
from istar_trainer.losses import token_entropy


@dataclass(frozen=True, slots=True)
class Forward:
    """Logits of one micro-batch; each distinct row was computed once.

    Attributes:
        logits: fp32, already divided by the temperature; column k predicts ``tokens[:, k]``.
        tokens: The columns from the first response token on.
        mask: True where those are response tokens.
        inverse: For every row asked for, the place of its kind.
        padding: Columns cut off to the left and right of ``tokens``.
    """

    logits: Float[Tensor, "unique kept vocab"]
    tokens: Int[Tensor, "unique kept"]
    mask: Bool[Tensor, "unique kept"]
    inverse: Int[Tensor, " rows"]
    padding: tuple[int, int]

    def logprobs(self) -> Float[Tensor, "rows seq"]:
        """Log-probability of each response token in nats, 0 elsewhere."""
        chosen = self.logits.gather(2, self.tokens[:, :, None]).squeeze(2)
        return self.expand(chosen - self.logits.logsumexp(dim=2))

    def entropy(self) -> Float[Tensor, "rows seq"]:
        """Entropy of the distribution each response token was drawn from, nats, 0 elsewhere."""
        return self.expand(token_entropy(self.logits))

    def expand(self, values: Float[Tensor, "unique kept"]) -> Float[Tensor, "rows seq"]:
        """Put per-token values back where the batch holds the tokens; 0 at other tokens."""
        masked = torch.where(self.mask, values, torch.zeros_like(values))
        return nn.functional.pad(masked, self.padding)[self.inverse]


def forward(model: nn.Module, batch: StepBatch, rows: Int[Tensor, " rows"], *, temperature: float) -> Forward:
    """Run a model over some rows of a batch.

    Padding to the right of every token cannot be seen by a causal model, so a mask, which costs the
    fast attention kernels, is passed only if some row is padded to the left.

    Args:
        model: Causal LM; the result carries gradient if grad mode is on.
        batch: The whole batch.
        rows: Which rows.
        temperature: Divides the logits.

    Returns:
        Logits and what is needed to read them.
    """
    ids, attention, response = batch.input_ids[rows], batch.attention_mask[rows], batch.response_mask[rows]
    keys = torch.cat([ids, attention.long(), response.long()], dim=1)
    unique, inverse = torch.unique(keys, dim=0, return_inverse=True)
    ids, attention, response = unique.chunk(3, dim=1)
    used = attention.any(dim=0).nonzero()
    left, right = int(used[0]), int(used[-1]) + 1
    first = int(response.any(dim=0).int().argmax())
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    output = model(
        input_ids=ids[:, left:right],
        attention_mask=None if attention[:, left].all() else attention[:, left:right],
        position_ids=positions[:, left:right],
        logits_to_keep=right - first + 1,
        use_cache=False,
    )
    return Forward(
        logits=output.logits[:, :-1].float() / temperature,
        tokens=ids[:, first:right],
        mask=response[:, first:right].bool(),
        inverse=inverse,
        padding=(first, ids.shape[1] - right),
    )


def divergence(old: Forward, new: Forward) -> Float[Tensor, "rows seq"]:
    """KL(old ‖ new) of the next-token distributions at each response token, nats, 0 elsewhere."""
    return old.expand(token_kl(old.logits, new.logits))


def load_model(path: str | Path) -> tuple[nn.Module, Any]:
    """Load a causal LM and its tokenizer from a folder in Hugging Face layout.

    Returns:
        The model in fp32, evaluation mode, and the tokenizer.

    Raises:
        ConfigError: If the folder holds no model, or the tokenizer has no chat template.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    hide_progress_bars()
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"no model in {folder} (config.json is missing). Give model.path a folder in Hugging Face "
            "layout, or make one with `istar init-tiny --env ID --out DIR`."
        )
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
        # AutoTokenizer gives every Qwen2 model the word splitting of Qwen2, whatever its tokenizer.json says
        kind: Any = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
        tokenizer = kind.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"cannot load the model in {folder}: {error}") from error
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {folder} needs a chat template and an end-of-sequence token.")
    return model.train(False), tokenizer


def hide_progress_bars() -> None:
    """Keep the library's progress bars out of the display of ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def num_parameters(model: nn.Module) -> int:
    """Count the trainable parameters, wherever they are divided among processes too."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad)


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights into a model in place (optimizers keep pointing at the same tensors)."""
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            parameter.copy_(weights[name])


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a detached copy of a model's weights."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
