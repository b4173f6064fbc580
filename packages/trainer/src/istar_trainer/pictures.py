"""Pictures in prompts, as the image processor of Qwen2-VL and Qwen2.5-VL cuts them into patches.

A picture is kept once, as bytes, however many steps show it. In a prompt it stands as a run of placeholder
tokens, one for each merge × merge patches. Steps and rows say where each run starts, so a placeholder that a
model happens to write is a token like any other.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istar_envs.agent import Message
from istar_envs.errors import ConfigError

_MOST_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How a model wants its pixels.

    Attributes:
        patch: Side of a patch in pixels.
        merge: Patches on a side of what becomes one token.
        frames: How often a still picture is repeated in time.
        mean: Subtracted from each channel, after division by 255.
        std: Divides each channel then.
    """

    patch: int
    merge: int
    frames: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture, cut into patches.

    Attributes:
        key: Hash of its pixels before they were cut; equal iff the pictures are.
        grid: Patches in a column and in a row.
        patches: uint8[patches, channels·patch·patch], in the order that the model merges them.
        format: How the model wants its pixels.
    """

    key: str
    grid: tuple[int, int]
    patches: NDArray[np.uint8] = field(compare=False, repr=False)
    format: PixelFormat = field(compare=False, repr=False)

    @property
    def cells(self) -> tuple[int, int]:
        """Tokens in a column and in a row."""
        return self.grid[0] // self.format.merge, self.grid[1] // self.format.merge

    @property
    def num_tokens(self) -> int:
        """Tokens that it takes in a prompt."""
        return self.cells[0] * self.cells[1]


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """A picture and where a prompt shows it.

    Attributes:
        picture: The picture.
        start: Place of its first token in the prompt.
    """

    picture: Picture
    start: int


class PictureReader:
    """Turns pixels into pictures; equal pixels give the same object.

    Args:
        processor: Image processor of Qwen2-VL or Qwen2.5-VL.
        token: The placeholder that the chat template writes for a picture.
        token_id: Its id.
    """

    def __init__(self, processor: Any, *, token: str, token_id: int) -> None:
        self.processor = processor
        self.token = token
        self.token_id = token_id
        self.format = PixelFormat(
            patch=processor.patch_size,
            merge=processor.merge_size,
            frames=processor.temporal_patch_size,
            mean=tuple(processor.image_mean),
            std=tuple(processor.image_std),
        )
        self._known: dict[str, Picture] = {}

    def read(self, pixels: NDArray[np.uint8]) -> Picture:
        """Resize a picture as the image processor does, and cut it.

        Args:
            pixels: uint8[height, width, 3].
        """
        key = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = self._cut(key, pixels)
        return self._known[key]

    def _cut(self, key: str, pixels: NDArray[np.uint8]) -> Picture:
        found = self.processor(images=[pixels], return_tensors="pt", do_rescale=False, do_normalize=False)
        _, height, width = found["image_grid_thw"][0].tolist()
        frames = found["pixel_values"].numpy().reshape(height * width, 3, self.format.frames, -1)
        patches = frames[:, :, 0].reshape(height * width, -1).round().astype(np.uint8)
        return Picture(key, (height, width), patches, self.format)


def reader_of(tokenizer: Any) -> PictureReader | None:
    """Return what reads pictures beside a tokenizer that ``load_model`` loaded; None if nothing does."""
    reader: PictureReader | None = getattr(tokenizer, "picture_reader", None)
    return reader


def attach_reader(tokenizer: Any, folder: Path, token_id: int) -> None:
    """Load a folder's image processor beside its tokenizer.

    Raises:
        ConfigError: If the folder has no image processor of Qwen2-VL.
    """
    from transformers import AutoImageProcessor

    try:
        load: Any = AutoImageProcessor.from_pretrained
        processor = load(folder, local_files_only=True)
        token = tokenizer.convert_ids_to_tokens(token_id)
        tokenizer.picture_reader = PictureReader(processor, token=token, token_id=token_id)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the model in {folder} reads pictures, but its preprocessor_config.json is not that of Qwen2-VL "
            f"or Qwen2.5-VL: {error}"
        ) from error


def save_tokenizer(tokenizer: Any, out: Path) -> None:
    """Save a tokenizer, and the image processor beside it if there is one."""
    tokenizer.save_pretrained(out)
    reader = reader_of(tokenizer)
    if reader is not None:
        reader.processor.save_pretrained(out)


def look(tokenizer: Any, messages: Sequence[Message]) -> tuple[list[Message], list[Picture]]:
    """Read the pictures of messages.

    Args:
        tokenizer: The policy's tokenizer.
        messages: With pictures as uint8[height, width, 3].

    Returns:
        The same messages with ``Picture`` objects, their text without placeholders of its own; the pictures.

    Raises:
        ConfigError: If there is a picture and the model reads none.
    """
    reader = reader_of(tokenizer)
    pictures: list[Picture] = []

    def read_text(text: str) -> str:
        return text if reader is None else text.replace(reader.token, "")

    def read_part(part: dict[str, Any]) -> dict[str, Any]:
        if part["type"] != "image":
            return {**part, "text": read_text(part["text"])}
        if reader is None:
            raise ConfigError(
                "the environment shows pictures, and the model reads none. Give model.path a Qwen2-VL or "
                "Qwen2.5-VL model, or choose an environment in text, such as istar/Sokoban-v0."
            )
        pictures.append(reader.read(part["image"]))
        return {"type": "image", "image": pictures[-1]}

    def read(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        return read_text(content) if isinstance(content, str) else [read_part(part) for part in content]

    return [{**message, "content": read(message["content"])} for message in messages], pictures


def spread(
    ids: list[int], pictures: Sequence[Picture], token_id: int, *, start: int = 0
) -> tuple[list[int], list[PlacedPicture]]:
    """Give each picture as many placeholders as it has tokens.

    Args:
        ids: Token ids with one placeholder for each picture.
        pictures: The pictures, in order.
        token_id: The placeholder.
        start: Tokens that stand before these.

    Returns:
        The longer ids, and where the pictures are.

    Raises:
        ConfigError: If the placeholders are not as many as the pictures.
    """
    if ids.count(token_id) != len(pictures):
        raise ConfigError(
            f"the chat template writes {ids.count(token_id)} placeholders for {len(pictures)} pictures. Use "
            "the template of Qwen2-VL or Qwen2.5-VL."
        )
    waiting = iter(pictures)
    longer: list[int] = []
    placed: list[PlacedPicture] = []
    for token in ids:
        if token == token_id:
            placed.append(PlacedPicture(next(waiting), start + len(longer)))
            longer += [token] * placed[-1].picture.num_tokens
        else:
            longer.append(token)
    return longer, placed
