"""What a vision-language model needs beside token ids: picture features in place, positions on three axes.

Rows say where pictures stand (``StepBatch.pictures``), so nothing is searched in token ids. A picture that
several rows show goes through the vision tower once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from istar_envs.errors import ConfigError
from istar_trainer.pictures import Picture, PlacedPicture

Moves = tuple[Int[Tensor, "rows seq"], Int[Tensor, "rows seq"]]
"""Row and column that each token of a batch's rows has in a model's inputs."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The pictures of some rows; one entry for each of their tokens.

    Attributes:
        pictures: The distinct ones.
        row: Row of the token.
        column: Its column.
        source: Its number among the tokens of all distinct pictures.
        number: Its number inside its picture.
        width: Tokens in a row of its picture.
        advance: At the last token of a picture the longer side in tokens, else 0.
    """

    pictures: Sequence[Picture]
    row: Int[Tensor, " tokens"]
    column: Int[Tensor, " tokens"]
    source: Int[Tensor, " tokens"]
    number: Int[Tensor, " tokens"]
    width: Int[Tensor, " tokens"]
    advance: Int[Tensor, " tokens"]

    @classmethod
    def of(cls, pictures: Int[Tensor, "rows most 2"], album: Sequence[Picture]) -> "Shown | None":
        """Lay out the tokens of rows' pictures; None if no row shows any.

        Args:
            pictures: For each row pairs of number in ``album`` and first column; −1 for none.
            album: The distinct pictures of more rows than these.
        """
        rows, slots = (pictures[..., 0] >= 0).nonzero(as_tuple=True)
        if not len(rows):
            return None
        numbers, which = torch.unique(pictures[rows, slots, 0], return_inverse=True)
        chosen = [album[number] for number in numbers.tolist()]
        cells = torch.tensor([picture.cells for picture in chosen], device=rows.device)
        sizes = cells.prod(dim=1)
        each = torch.repeat_interleave(sizes[which])
        kind = which[each]
        number = torch.arange(len(each), device=rows.device) - _before(sizes[which])[each]
        return cls(
            chosen,
            row=rows[each],
            column=pictures[rows, slots, 1][each] + number,
            source=_before(sizes)[kind] + number,
            number=number,
            width=cells[kind, 1],
            advance=torch.where(number == sizes[kind] - 1, cells[kind].amax(dim=1), 0),
        )


def place_pictures(
    shown: Sequence[Sequence[PlacedPicture]], first_columns: Sequence[int]
) -> tuple[tuple[Picture, ...], Int[Tensor, "rows most 2"]]:
    """Number the distinct pictures of rows and say in which columns they stand.

    Args:
        shown: Pictures of each row's prompt.
        first_columns: Column of each row's first token.

    Returns:
        The distinct pictures; for each row pairs of number and first column, (−1, −1) beyond the last.
    """
    album: dict[Picture, int] = {}
    places = torch.full((len(shown), max(map(len, shown), default=0), 2), -1)
    for row, (pictures, first) in enumerate(zip(shown, first_columns, strict=True)):
        for number, placed in enumerate(pictures):
            picture = album.setdefault(placed.picture, len(album))
            places[row, number] = torch.tensor([picture, first + placed.start])
    return tuple(album), places


def reads_pictures(model: nn.Module) -> bool:
    """Say whether a model counts positions on three axes."""
    return hasattr(model.config, "vision_config")


def freeze_vision(model: nn.Module) -> None:
    """Keep the vision tower of a model from learning, in place.

    Raises:
        ConfigError: If it has none.
    """
    if not reads_pictures(model):
        raise ConfigError("model.freeze_vision: the model reads no pictures. Leave it out.")
    _with_tower(model).visual.requires_grad_(False)


def place(
    inputs: dict[str, Any],
    attention: Int[Tensor, "rows seq"],
    shown: Shown | None,
    moves: Moves,
    *,
    packed: bool,
) -> Shown | None:
    """Give the inputs of a model positions on three axes, in place.

    Args:
        inputs: Arguments of its forward pass with positions on one axis.
        attention: 1 where a real token stands in the batch's rows.
        shown: Pictures of these rows.
        moves: Where each token is in the inputs.
        packed: Whether rows lie end to end; the one axis, which tells them apart, stays in front then.

    Returns:
        Where the pictures are in the inputs.
    """
    positions, _ = rope_positions(attention, shown)
    lines, columns = moves
    rows, places = attention.nonzero(as_tuple=True)
    plain: Tensor = inputs["position_ids"]
    axes = plain.new_zeros(3, *plain.shape)
    axes[:, lines[rows, places], columns[rows, places]] = positions[:, rows, places]
    inputs["position_ids"] = torch.cat([plain[None], axes]) if packed else axes
    if shown is None:
        return None
    at = shown.row, shown.column
    return replace(shown, row=lines[at], column=columns[at])


@contextmanager
def showing(model: nn.Module, shown: Shown | None) -> Iterator[None]:
    """Put picture features where the model's embeddings of their placeholders would be.

    A hook on the embeddings works through every wrapper around the model, and runs the vision tower inside
    the model's own forward pass.

    Args:
        model: Qwen2-VL or Qwen2.5-VL, or a wrapper around it.
        shown: Pictures of the rows of the next forward passes; None for none.
    """
    if shown is None:
        yield
        return
    inner = _with_tower(model)

    def hook(
        _embedding: nn.Module, _arguments: object, embeddings: Float[Tensor, "rows seq width"]
    ) -> Float[Tensor, "rows seq width"]:
        features = _features(inner, shown.pictures).to(embeddings)
        return embeddings.index_put((shown.row, shown.column), features[shown.source])

    handle = inner.get_input_embeddings().register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def rope_positions(
    attention: Int[Tensor, "rows seq"], shown: Shown | None
) -> tuple[Int[Tensor, "3 rows seq"], Int[Tensor, " rows"]]:
    """Positions in time, height and width, as Qwen2-VL (arXiv 2409.12191) counts them.

    A token of text moves one place on along all three axes. A picture's tokens share the place where it
    starts in time, and add their row and column; what follows goes on after its longer side.

    Args:
        attention: 1 where a real token stands; others have no place.
        shown: Pictures of the rows.

    Returns:
        The positions, and the next one of each row.
    """
    advance = attention.long()
    if shown is not None:
        advance = advance.index_put((shown.row, shown.column), shown.advance)
    starts = advance.cumsum(dim=1) - advance
    positions = starts.expand(3, -1, -1).clone()
    if shown is not None:
        positions[1, shown.row, shown.column] += shown.number // shown.width
        positions[2, shown.row, shown.column] += shown.number % shown.width
    return positions, advance.sum(dim=1)


def pixel_values(pictures: Sequence[Picture]) -> Float[Tensor, "patches values"]:
    """Scale the pixels of pictures as their format says and repeat them in time."""
    form = pictures[0].format
    pixels = torch.cat([torch.from_numpy(picture.patches) for picture in pictures])
    scaled = pixels.view(len(pixels), len(form.mean), 1, -1) / 255
    scaled = (scaled - torch.tensor(form.mean)[:, None, None]) / torch.tensor(form.std)[:, None, None]
    return scaled.expand(-1, -1, form.frames, -1).flatten(1)


def _with_tower(model: nn.Module) -> Any:
    """Find the part that has both the vision tower and the embeddings."""
    return next(module for module in model.modules() if hasattr(module, "visual"))


def _features(inner: Any, pictures: Sequence[Picture]) -> Float[Tensor, "tokens width"]:
    """Run the vision tower over pictures."""
    device = next(inner.visual.parameters()).device
    grids = torch.tensor([[1, *picture.grid] for picture in pictures], device=device)
    found = inner.get_image_features(pixel_values(pictures).to(device), grids)
    return torch.cat(list(getattr(found, "pooler_output", found)))


def _before(sizes: Int[Tensor, " parts"]) -> Int[Tensor, " parts"]:
    """Sum of what comes before each part."""
    return sizes.cumsum(0) - sizes
