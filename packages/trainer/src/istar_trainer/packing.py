"""Several rows laid end to end in one, without seeing each other.

Positions start at 0 in every row. Hugging Face models take the restarts as borders: attention stays
inside each row, by a mask (sdpa, eager) or by kernels for ragged batches (flash attention, which
wants everything in one row).
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from istar_trainer.head import Places
from istar_trainer.vision import Moves


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each row is laid.

    Attributes:
        lines: Which long line each row is in.
        starts: Column of its first token there.
        shape: Number of lines, and their length.
    """

    lines: Int[Tensor, " rows"]
    starts: Int[Tensor, " rows"]
    shape: tuple[int, int]


def lay_out(lengths: list[int], capacity: int) -> Layout:
    """Lay rows into as few lines as first fit, longest row first, manages.

    Args:
        lengths: Tokens of each row.
        capacity: Length of a line; at least the longest row's.
    """
    room: list[int] = []
    lines, starts = [0] * len(lengths), [0] * len(lengths)
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        line = next((n for n, free in enumerate(room) if free >= lengths[row]), len(room))
        if line == len(room):
            room.append(capacity)
        lines[row], starts[row] = line, capacity - room[line]
        room[line] -= lengths[row]
    return Layout(torch.tensor(lines), torch.tensor(starts), (len(room), capacity - min(room)))


def pack(
    model: nn.Module,
    ids: Int[Tensor, "rows seq"],
    attention: Int[Tensor, "rows seq"],
    mask: Bool[Tensor, "rows seq"],
) -> tuple[dict[str, Any], Places, Moves]:
    """Pack the real tokens of rows.

    Lines are as long as the longest row, so that attention costs no more than with padding.

    Args:
        model: Its kind of attention decides whether everything must be in one line.
        ids: Token ids.
        attention: 1 where a real token stands.
        mask: True at the tokens whose logits are asked for.

    Returns:
        Arguments of the model's forward pass, where the states are that predict those tokens, and where each
        token went.
    """
    lengths = attention.sum(dim=1).tolist()
    config: Any = model.config
    needs_one_line = "flash" in str(config._attn_implementation)
    layout = lay_out(lengths, sum(lengths) if needs_one_line else max(lengths))
    offsets = attention.cumsum(dim=1) - 1
    moves = (layout.lines[:, None].expand_as(ids), layout.starts[:, None] + offsets)
    rows, columns = attention.nonzero(as_tuple=True)
    places = (moves[0][rows, columns], moves[1][rows, columns])
    packed, positions = torch.zeros(2, *layout.shape, dtype=torch.int64)
    packed[places] = ids[rows, columns]
    positions[places] = offsets[rows, columns]
    inputs = {"input_ids": packed, "attention_mask": None, "position_ids": positions}
    asked, columns = mask.nonzero(as_tuple=True)
    return inputs, (moves[0][asked, columns], moves[1][asked, columns] - 1), moves
