"""Pictures as vLLM takes them over: pixels cut into patches, and the places where a prompt shows them.

vLLM could resize and cut pictures itself, but it would look for their places among the token ids, where a
placeholder that the model wrote may stand too. So it gets what the learner's vision tower gets, as vLLM 0.32
takes it: an engine as its own objects, a server as the bytes that it makes of them (msgpack).
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from istar_trainer.context import Prompt
from istar_trainer.pictures import Picture, PlacedPicture
from istar_trainer.vision import pixel_values

_RAW = 3
"""vLLM's number for the bytes of a tensor among msgpack's types."""


def features(pictures: Sequence[PlacedPicture], dtype: torch.dtype) -> dict[str, Any]:
    """Say what a prompt shows, for the body of ``/inference/v1/generate``.

    Args:
        pictures: The pictures and where they start.
        dtype: Precision of their pixels.
    """
    return {
        "mm_hashes": {"image": [placed.picture.key for placed in pictures]},
        "mm_placeholders": {"image": [{"offset": p.start, "length": p.picture.num_tokens} for p in pictures]},
        "kwargs_data": {"image": [_encoded(placed.picture, dtype) for placed in pictures]},
    }


def engine_prompt(prompt: Prompt, dtype: torch.dtype) -> Mapping[str, Any]:
    """Return a prompt as an engine in this process takes it.

    Args:
        prompt: Token ids and pictures.
        dtype: Precision of the pixels.
    """
    if not prompt.pictures:
        return {"prompt_token_ids": prompt.ids}
    from vllm.inputs import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    shown = [placed.picture for placed in prompt.pictures]
    grids = torch.tensor([_grid(picture) for picture in shown])
    items = MultiModalKwargsItems.from_hf_inputs(
        {"pixel_values": pixel_values(shown).to(dtype), "image_grid_thw": grids},
        {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", grids.prod(dim=1)),
            "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        },
    )
    places = [PlaceholderRange(offset=p.start, length=p.picture.num_tokens) for p in prompt.pictures]
    keys = [picture.key for picture in shown]
    ready: Mapping[str, Any] = mm_input(prompt.ids, items, {"image": keys}, {"image": places})
    return ready


def _encoded(picture: Picture, dtype: torch.dtype) -> str:
    pixels = pixel_values([picture]).to(dtype)
    item = {
        "pixel_values": {
            "data": _described(pixels),
            "field": ("flat", {"slices": (((0, len(pixels), None),),), "dim": 0, "keep_on_cpu": False}),
        },
        "image_grid_thw": {
            "data": _described(torch.tensor(_grid(picture))),
            "field": ("batched", {"keep_on_cpu": True}),
        },
    }
    return base64.b64encode(_packed(item)).decode("ascii")


def _grid(picture: Picture) -> tuple[int, int, int]:
    return (1, *picture.grid)


def _described(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    name = str(tensor.dtype).removeprefix("torch.")
    return name, tuple(tensor.shape), tensor.flatten().view(torch.uint8).numpy().tobytes()


def _packed(value: Any) -> bytes:
    """Write short names, containers and small numbers as msgpack, and bytes as those of a tensor."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return b"\xce" + value.to_bytes(4, "big")
        case str():
            return bytes([0xA0 | len(value)]) + value.encode("ascii")
        case bytes():
            return b"\xc9" + len(value).to_bytes(4, "big") + bytes([_RAW]) + value
        case dict():
            parts = (part for pair in value.items() for part in pair)
            return bytes([0x80 | len(value)]) + b"".join(map(_packed, parts))
    return bytes([0x90 | len(value)]) + b"".join(map(_packed, value))
