"""Keys and values of dialogues that may go on: what was read and said is not read again.

Pictures belong to what was said: the same tokens under another picture are another dialogue. Only the
hashes of their pixels are held. Nothing is kept of models whose layers forget (sliding windows, recurrent
states).
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from istar_trainer.pictures import PlacedPicture

Dialogue = tuple[tuple[int, ...], tuple[PlacedPicture, ...]]
"""Token ids, and the pictures that stand among them."""

Key = tuple[bytes, tuple[tuple[int, str], ...]]
"""Token ids; place and hash of each picture."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a prompt that was read before.

    Attributes:
        length: Its tokens.
        end: Position of the token after it; a picture moves it on by less than its tokens.
        values: Keys, then values, of its layers.
    """

    length: int
    end: int
    values: Float[Tensor, "layers heads seq width"]


class KeptDialogues:
    """The latest dialogues, as many as fit into a bound of memory.

    Args:
        mib: The bound.
    """

    def __init__(self, mib: int) -> None:
        self._room = mib * 2**20
        self._size = 0
        self._kept: OrderedDict[Key, Beginning] = OrderedDict()

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._size = 0

    def find(self, prompts: Sequence[Dialogue]) -> list[Beginning | None]:
        """Return the longest beginning of each prompt that is known and shorter than it."""
        lengths = sorted({known.length for known in self._kept.values()}, reverse=True)
        found: list[Beginning | None] = []
        for prompt in prompts:
            keys = _keys(prompt, [length for length in lengths if length < len(prompt[0])])
            known = map(self._kept.get, keys)
            found.append(next((beginning for beginning in known if beginning is not None), None))
        return found

    def keep(
        self,
        dialogues: Sequence[Dialogue],
        cache: Any,
        rows: Int[Tensor, " rows"],
        *,
        attention: Int[Tensor, "rows seq"],
        ends: Int[Tensor, " rows"],
    ) -> None:
        """Keep what a model has read of dialogues.

        Args:
            dialogues: All that they say, of which the model has read all.
            cache: The model's cache, some rows of which belong to them.
            rows: Which rows.
            attention: 1 where a real token stands, for all rows of the cache.
            ends: Position of the token after it, for all rows of the cache.
        """
        from transformers.cache_utils import DynamicLayer

        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            return
        layers = [values[rows] for layer in cache.layers for values in (layer.keys, layer.values)]
        stacked = torch.stack(layers, dim=1)
        kept = zip(dialogues, ends[rows].tolist(), stacked, attention[rows].bool(), strict=True)
        for dialogue, end, values, real in kept:
            length = len(dialogue[0])
            (key,) = _keys(dialogue, [length])
            self._insert(key, Beginning(length, end, values[:, :, real]))

    def drop(self, beginnings: Sequence[Beginning]) -> None:
        """Forget beginnings that have gone on."""
        gone = {id(beginning) for beginning in beginnings}
        for key in [key for key, beginning in self._kept.items() if id(beginning) in gone]:
            self._size -= self._kept.pop(key).values.nbytes

    def _insert(self, key: Key, beginning: Beginning) -> None:
        known = self._kept.pop(key, None)
        self._size += beginning.values.nbytes - (0 if known is None else known.values.nbytes)
        self._kept[key] = beginning
        while self._size > self._room:
            self._size -= self._kept.popitem(last=False)[1].values.nbytes


def restore(beginnings: Sequence[Beginning], model: nn.Module) -> tuple[Any, Int[Tensor, "rows seq"]]:
    """Lay beginnings out as a model's cache, padded to the left.

    Returns:
        The cache, and 1 where a real token stands.
    """
    from transformers import DynamicCache

    width = max(beginning.length for beginning in beginnings)
    first = beginnings[0].values
    num_layers, heads, _, size = first.shape
    values = first.new_zeros(num_layers, len(beginnings), heads, width, size)
    attention = torch.zeros(len(beginnings), width, dtype=torch.int64, device=first.device)
    for row, beginning in enumerate(beginnings):
        values[:, row, :, width - beginning.length :] = beginning.values
        attention[row, width - beginning.length :] = 1
    config: Any = model.config
    return DynamicCache(list(zip(values[::2], values[1::2], strict=True)), config), attention


def _keys(dialogue: Dialogue, lengths: Sequence[int]) -> Iterator[Key]:
    """Name the beginnings of so many tokens; a picture belongs to each that reaches it."""
    ids, pictures = dialogue
    tokens = torch.tensor(ids, dtype=torch.int64).numpy()
    shown = [(placed.start, placed.picture.key) for placed in pictures]
    for length in lengths:
        yield tokens[:length].tobytes(), tuple(one for one in shown if one[0] < length)
