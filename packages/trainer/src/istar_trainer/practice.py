"""Reading practice for a tiny model: copy what was read before, token by token.

Pretrained models find a text in their prompt and go on copying it (induction heads). A model with
random weights needs most of its demonstrations to discover that; a thousand updates on random tokens
of which a piece is repeated give it the skill in a minute or two. It is found in short rows; longer ones
then teach it to copy from as far as a prompt reaches.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

_TOKENS = 2048
_LENGTHS = (64, 128, 256)
_SHORT_SHARE = 0.6
_LR = 4e-3
_WARM_UP = 30


def practise_copying(
    model: nn.Module, *, updates: int, vocab_size: int, first_token: int, seed: int
) -> float:
    """Train a model to go on with a repeated piece of random tokens.

    Args:
        model: Causal LM; changed in place.
        updates: Optimizer updates of 2,048 tokens each: rows of 64 tokens at first, then also of 128 and 256.
        vocab_size: Tokens are below this.
        first_token: Smallest token id used; those below are control tokens.
        seed: Seed of the tokens; torch's global generator is left as it was.

    Returns:
        Share of repeated tokens that were predicted right in the last update; 0.0 without updates.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, betas=(0.9, 0.98), weight_decay=0.0)
    accuracy = 0.0
    for update in range(1, updates + 1):
        for group in optimizer.param_groups:
            group["lr"] = _LR * min(1.0, update / _WARM_UP)
        is_short = update <= _SHORT_SHARE * updates
        length = _LENGTHS[0 if is_short else _below(len(_LENGTHS), generator)]
        tokens, repeated = repeated_pieces(
            vocab_size, length=length, first_token=first_token, generator=generator
        )
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1][repeated[:, 1:]]
        wanted = tokens[:, 1:][repeated[:, 1:]]
        nn.functional.cross_entropy(logits, wanted).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accuracy = float((logits.argmax(dim=1) == wanted).float().mean())
    return accuracy


def repeated_pieces(
    vocab_size: int, *, length: int, first_token: int, generator: torch.Generator
) -> tuple[Int[Tensor, "rows seq"], Bool[Tensor, "rows seq"]]:
    """Draw rows of random tokens whose second half repeats a piece of the first.

    Args:
        vocab_size: Tokens are below this.
        length: Tokens of a row.
        first_token: Smallest token id used.
        generator: Source of randomness.

    Returns:
        Tokens, and True where a token can be known from the piece before it.
    """
    half, num_rows = length // 2, _TOKENS // length
    tokens = torch.randint(first_token, vocab_size, (num_rows, length), generator=generator)
    repeated = torch.zeros(num_rows, length, dtype=torch.bool)
    for row in range(num_rows):
        size = _below(half - 8, generator) + 6
        source = _below(half - size + 1, generator)
        target = half + _below(half - size + 1, generator)
        tokens[row, target : target + size] = tokens[row, source : source + size]
        repeated[row, target + 1 : target + size] = True
    return tokens, repeated


def _below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(limit, (1,), generator=generator))
