"""Rows that go on from other rows, computed once: the steps of one growing dialogue.

A row whose tokens are the beginning of another row's is not computed: a causal model has at the same
tokens of the longer row the same states. Everything else still sees one row per step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from istar_trainer.head import Places
from istar_trainer.vision import Moves

Family = list[int]
"""Rows of which each is the beginning of the one before it, so that the first is the longest."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Which rows are computed, and where the states of the others are found in them.

    Attributes:
        longest: The rows that are computed.
        hosts: Number in ``longest`` of the row that each token asked for is computed in.
        columns: Column there of the token before it.
    """

    longest: Int[Tensor, " longest"]
    hosts: Int[Tensor, " tokens"]
    columns: Int[Tensor, " tokens"]

    def places(self, moves: Moves) -> Places:
        """Say where the states are that predict the tokens asked for.

        Args:
            moves: Where each token of the computed rows is in a model's inputs.
        """
        return moves[0][self.hosts, self.columns], moves[1][self.hosts, self.columns]


def families_of(
    ids: Int[Tensor, "rows seq"],
    attention: Int[Tensor, "rows seq"] | Bool[Tensor, "rows seq"],
    pictures: Int[Tensor, "rows most 2"],
) -> list[Family]:
    """Divide rows into families; nothing if no row is the beginning of a longer one.

    Args:
        ids: Token ids.
        attention: True where a real token stands.
        pictures: Pairs of a picture's number and its first column, as in ``StepBatch``.

    Returns:
        Families in the order of the lengths, then of the tokens, of their longest rows.
    """
    rows, slots = (pictures[..., 0] >= 0).nonzero(as_tuple=True)
    number, column = pictures[rows, slots].unbind(dim=1)
    coded = ids.index_put((rows, column), -1 - number)
    texts = [row[real].numpy().tobytes() for row, real in zip(coded, attention.bool(), strict=True)]
    order = sorted(range(len(texts)), key=lambda row: (texts[row], -row), reverse=True)
    families = [[row] for row in order[:1]]
    for longer, row in pairwise(order):
        # what begins a row of the sorted list begins all rows between the two
        if texts[longer].startswith(texts[row]):
            families[-1].append(row)
        else:
            families.append([row])
    if all(len(texts[family[-1]]) == len(texts[family[0]]) for family in families):
        return []
    return sorted(families, key=lambda family: (len(texts[family[0]]), texts[family[0]]))


def merge(
    families: Sequence[Family], attention: Int[Tensor, "rows seq"], mask: Bool[Tensor, "rows seq"]
) -> Merged:
    """Say where the states of all rows are found in the longest ones.

    Args:
        families: The rows, each in one family.
        attention: 1 where a real token stands.
        mask: True at the tokens asked for, of which none is the first of its row.
    """
    longest = torch.tensor([family[0] for family in families])
    host = torch.zeros(len(attention), dtype=torch.int64)
    for number, family in enumerate(families):
        host[family] = number
    ranks = attention.cumsum(dim=1) - 1
    columns = attention[longest].sort(dim=1, descending=True, stable=True).indices  # of the n-th real token
    asked = mask.nonzero(as_tuple=True)
    hosts = host[asked[0]]
    return Merged(longest, hosts, columns[hosts, ranks[asked] - 1])
