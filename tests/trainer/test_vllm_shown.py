"""Pictures as bytes that vLLM reads: decoded here by the rules of msgpack, in slow tests by vLLM itself."""

import base64
import struct
from typing import Any

import numpy as np
import pytest
import torch

from istar_trainer.pictures import Picture, PixelFormat, PlacedPicture
from istar_trainer.vision import pixel_values
from istar_trainer.vllm.pictures import features

PIXELS = PixelFormat(patch=2, merge=1, frames=2, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


class Reader:
    """Reads as much of msgpack as is written."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, number: int) -> bytes:
        self.place += number
        return self.data[self.place - number : self.place]

    def value(self) -> Any:
        (sign,) = self.take(1)
        if sign in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[sign]
        if sign == 0xCE:
            return struct.unpack(">I", self.take(4))[0]
        if sign == 0xC9:
            length, kind = struct.unpack(">IB", self.take(5))
            assert kind == 3
            return self.take(length)
        kind, size = sign & 0xF0, sign & 0x0F
        if kind == 0x80:
            return {self.value(): self.value() for _ in range(size)}
        if kind == 0x90:
            return [self.value() for _ in range(size)]
        assert sign & 0xE0 == 0xA0
        return self.take(sign & 0x1F).decode()


def read_tensor(told: Any) -> torch.Tensor:
    name, shape, data = told
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, name)).view(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_of_a_picture_are_its_scaled_pixels_and_its_shape(dtype):
    patches = np.random.default_rng(0).integers(0, 256, (6, 12), np.uint8)
    picture = Picture("key", (2, 3), patches, PIXELS)
    (data,) = features([PlacedPicture(picture, 4)], dtype)["kwargs_data"]["image"]
    reader = Reader(base64.b64decode(data))
    item = reader.value()
    assert reader.place == len(reader.data)
    pixels = item["pixel_values"]
    assert torch.equal(read_tensor(pixels["data"]), pixel_values([picture]).to(dtype))
    assert pixels["field"] == ["flat", {"slices": [[[0, 6, None]]], "dim": 0, "keep_on_cpu": False}]
    assert read_tensor(item["image_grid_thw"]["data"]).tolist() == [1, 2, 3]
    assert item["image_grid_thw"]["field"] == ["batched", {"keep_on_cpu": True}]
