"""The output head of a causal language model, apart from the layers below it.

A hook on the head's input works through every wrapper around the model, and lets the head skip
positions whose logits nobody asks for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from istar_trainer.masked import at_least_float32

_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Keys of model configurations that say that logits are changed after the head."""

Head = Callable[[Tensor], Tensor]
"""Maps states to fp32 logits."""
Places = tuple[Int[Tensor, " tokens"], ...]
"""Row and column of the states that predict the tokens asked for."""


def tokens_at_once(model: nn.Module, logits_mib: int) -> int:
    """Count the tokens whose fp32 logits fit into so many MiB; at least 1.

    A model that changes its logits after the head is always computed in one piece.
    """
    config: Any = model.config
    if any(getattr(config.get_text_config(), name, None) not in (None, 1) for name in _TRANSFORMS):
        return torch.iinfo(torch.int64).max
    return max(1, logits_mib * 2**20 // (4 * head_of(model).out_features))


def head_of(model: nn.Module) -> nn.Linear:
    """Return the layer that turns states into logits."""
    return cast(nn.Linear, cast(Any, model).get_output_embeddings())


def predict(
    model: nn.Module, inputs: dict[str, Any], places: Places, *, temperature: float, chunk: int
) -> tuple[Float[Tensor, "tokens width"], Head]:
    """Run a model and return what predicts the tokens asked for.

    Args:
        model: Causal LM.
        inputs: Arguments of its forward pass.
        places: Which of the head's inputs predict those tokens.
        temperature: Divides the logits.
        chunk: Most tokens whose logits may be held. If there are more, the head does not run.

    Returns:
        States, and the head that makes logits of them; the logits themselves if they are not many.
    """
    kept = inputs.get("logits_to_keep")
    if kept is not None and kept * len(inputs["input_ids"]) <= chunk:
        logits = model(**inputs, use_cache=False).logits[places]
        return at_least_float32(logits) / temperature, _as_they_are
    if len(places[0]) <= chunk:
        with _head_reads(model, lambda states: states[places][None]):
            logits = model(**inputs, use_cache=False).logits[0]
        return at_least_float32(logits) / temperature, _as_they_are

    def head(states: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens vocab"]:
        logits: Tensor = head_of(model)(states)
        return at_least_float32(logits) / temperature

    with _head_reads(model, lambda states: states[:, :0]) as caught:
        model(**inputs, use_cache=False)
    return caught[0][places], head


def _as_they_are(logits: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
    return logits


@contextmanager
def _head_reads(model: nn.Module, choose: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Let the head read only some of its input; yields the list that the whole input goes to."""
    caught: list[Tensor] = []

    def hook(
        _head: nn.Module, arguments: tuple[Float[Tensor, "rows seq width"]]
    ) -> tuple[Float[Tensor, "some few width"]]:
        caught.append(arguments[0])
        return (choose(arguments[0]),)

    handle = head_of(model).register_forward_pre_hook(hook)
    try:
        yield caught
    finally:
        handle.remove()
