"""A causal language model as a function from rows to per-token log-probabilities.

Works on any Hugging Face causal LM. Log-softmax and reductions are fp32 whatever the weights are.
Rows with equal tokens are computed once: trajectories of a group share many states; so are, if wanted,
rows that begin other rows. Logits, the largest tensors of all with real vocabularies, are held for a
bounded number of tokens at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from istar_trainer.attribution import token_kl
from istar_trainer.batch import StepBatch
from istar_trainer.devices import device_of, moved
from istar_trainer.head import Head, Places, predict, tokens_at_once
from istar_trainer.losses import token_entropy
from istar_trainer.merging import families_of, merge
from istar_trainer.packing import pack
from istar_trainer.vision import Moves, Shown, place, reads_pictures, showing

LOGITS_MIB = 512
"""Largest fp32 logits held at once unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What a model says of each response token of some rows; each distinct row was computed once.

    Attributes:
        states: What ``head`` reads to predict each response token, row after row.
        head: Maps states to fp32 logits, already divided by the temperature.
        chunk: Tokens whose logits are held at a time; with more, backward computes them again.
        tokens: The response tokens.
        mask: True where the batch holds them.
        inverse: For every row asked for, the place of its kind.
    """

    states: Float[Tensor, "tokens width"]
    head: Head
    chunk: int
    tokens: Int[Tensor, " tokens"]
    mask: Bool[Tensor, "unique seq"]
    inverse: Int[Tensor, " rows"]

    @property
    def logits(self) -> Float[Tensor, "tokens vocab"]:
        """The logits that predict each token, all at once."""
        return self.head(self.states)

    def logprobs(self) -> Float[Tensor, "rows seq"]:
        """Log-probability of each response token in nats, 0 elsewhere."""
        return self.expand(_by_chunks(_chosen_logprobs, self))

    def entropy(self) -> Float[Tensor, "rows seq"]:
        """Entropy of the distribution each response token was drawn from, nats, 0 elsewhere."""
        return self.expand(_by_chunks(lambda _tokens, logits: token_entropy(logits), self))

    def expand(self, values: Float[Tensor, " tokens"]) -> Float[Tensor, "rows seq"]:
        """Put per-token values back where the batch, which is in main memory, holds the tokens; else 0."""
        placed = torch.zeros(self.mask.shape, dtype=values.dtype)
        placed[self.mask] = values.cpu()
        return placed[self.inverse]


def divergence(old: Forward, new: Forward) -> Float[Tensor, "rows seq"]:
    """KL(old ‖ new) of the next-token distributions at each response token, nats, 0 elsewhere."""
    return old.expand(_by_chunks(lambda _tokens, *logits: token_kl(*logits), old, new))


def _chosen_logprobs(
    tokens: Int[Tensor, " tokens"], logits: Float[Tensor, "tokens vocab"]
) -> Float[Tensor, " tokens"]:
    return logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(dim=1)


def _by_chunks(value: Callable[..., Tensor], *outs: Forward) -> Float[Tensor, " tokens"]:
    """Apply a function of tokens and their logits under each model, a chunk of tokens at a time."""

    def run(tokens: Int[Tensor, " some"], *states: Float[Tensor, "some _"]) -> Float[Tensor, " some"]:
        return value(tokens, *(out.head(some) for out, some in zip(outs, states, strict=True)))

    tokens, chunk = outs[0].tokens, min(out.chunk for out in outs)
    if len(tokens) <= chunk:
        return run(tokens, *(out.states for out in outs))
    pieces = zip(*(torch.split(part, chunk) for part in (tokens, *(out.states for out in outs))), strict=True)
    values: list[Tensor] = [
        checkpoint(run, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces
    ]
    return torch.cat(values)


def forward(
    model: nn.Module,
    batch: StepBatch,
    rows: Int[Tensor, " rows"],
    *,
    temperature: float,
    logits_mib: int = LOGITS_MIB,
    sees_pictures: bool = True,
    packing: bool = False,
    merge_prefixes: bool = False,
) -> Forward:
    """Run a model over some rows of a batch.

    Padding to the right of every token cannot be seen by a causal model, so a mask, which costs the
    fast attention kernels, is passed only if some row has a gap before a token.

    Args:
        model: Causal LM; the result carries gradient if grad mode is on.
        batch: The whole batch.
        rows: Which rows.
        temperature: Divides the logits.
        logits_mib: Largest fp32 logits held at once, in MiB.
        sees_pictures: Whether rows hold their pictures; if not, the tokens of these are left out.
        packing: Whether rows are laid end to end instead of padded to a rectangle.
        merge_prefixes: Whether rows that are the beginning of longer ones are computed as part of these.

    Returns:
        What the model says of every response token of these rows.
    """
    if not sees_pictures:
        batch = batch.without_pictures()
    ids, attention, response = batch.input_ids[rows], batch.attention_mask[rows], batch.response_mask[rows]
    keys = torch.cat([batch.pictures[rows].flatten(1), ids, attention.long(), response.long()], dim=1)
    unique, inverse = torch.unique(keys, dim=0, return_inverse=True)
    num_pictures, seq = batch.pictures.shape[1], ids.shape[1]
    pictures, ids, attention, response = unique.split([2 * num_pictures, seq, seq, seq], dim=1)
    mask, chunk = response.bool(), tokens_at_once(model, logits_mib)
    lay = partial(pack, model) if packing else _padded
    pictures = pictures.view(len(pictures), num_pictures, 2)
    tokens = ids[mask]
    families = families_of(ids, attention, pictures) if merge_prefixes else []
    if families:
        merged = merge(families, attention, mask)
        ids, attention, pictures = (each[merged.longest] for each in (ids, attention, pictures))
        inputs, _, moves = lay(ids, attention, mask[merged.longest])
        inputs.pop("logits_to_keep", None)
        places = merged.places(moves)
    else:
        inputs, places, moves = lay(ids, attention, mask)
    shown = Shown.of(pictures, batch.album)
    if shown is not None or (packing and reads_pictures(model)):
        shown = place(inputs, attention, shown, moves, packed=packing)
    device = device_of(model)
    with showing(model, shown):
        states, head = predict(model, moved(inputs, device), places, temperature=temperature, chunk=chunk)
    return Forward(states, head, chunk, tokens=tokens.to(device), mask=mask, inverse=inverse)


def _padded(
    ids: Int[Tensor, "unique seq"], attention: Int[Tensor, "unique seq"], mask: Bool[Tensor, "unique seq"]
) -> tuple[dict[str, Any], Places, Moves]:
    used = attention.any(dim=0).nonzero()
    left, right = int(used[0]), int(used[-1]) + 1
    first = int(mask.any(dim=0).int().argmax())
    attention = attention[:, left:right]
    is_unbroken = bool(attention[:, 0].all() and (attention.diff(dim=1) <= 0).all())
    inputs: dict[str, Any] = {
        "input_ids": ids[:, left:right],
        "attention_mask": None if is_unbroken else attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "logits_to_keep": right - first + 1,
    }
    rows, columns = torch.meshgrid(*map(torch.arange, ids.shape), indexing="ij")
    return inputs, mask[:, first:right].nonzero(as_tuple=True), (rows, columns - left)
