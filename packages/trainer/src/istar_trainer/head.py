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
        chunk: Most logits to hold, in tokens. If the pass itself would make more, the head does not run.

    Returns:
        States, and the head that makes logits of them; the logits themselves if they are not many.
    """
    num_logits = inputs["input_ids"].shape[0] * inputs["logits_to_keep"]
    if num_logits <= chunk:
        logits = model(**inputs, use_cache=False).logits[places]
        return at_least_float32(logits) / temperature, _as_they_are

    def head(states: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens vocab"]:
        logits: Tensor = head_of(model)(states)
        return at_least_float32(logits) / temperature

    with _head_without_work(model) as caught:
        model(**inputs, use_cache=False)
    return caught[0][places], head


def _as_they_are(logits: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
    return logits


@contextmanager
def _head_without_work(model: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the head from making logits; yields the list that its input goes to."""
    caught: list[Tensor] = []

    def hook(
        _head: nn.Module, arguments: tuple[Float[Tensor, "rows seq width"]]
    ) -> tuple[Float[Tensor, "rows 0 width"]]:
        caught.append(arguments[0])
        return (arguments[0][:, :0],)

    handle = head_of(model).register_forward_pre_hook(hook)
    try:
        yield caught
    finally:
        handle.remove()
