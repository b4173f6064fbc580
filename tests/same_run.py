"""Compares the folders of two runs, bit for bit."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from istar_trainer.checkpoint import list_checkpoints, load_checkpoint


def lines_of(path: Path) -> list[dict]:
    """Records of a JSON-lines file without the times they took."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records]


def assert_equal_tree(actual, expected, where: str = "") -> None:
    """Compare nested plain values and tensors exactly."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected), where
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_equal_tree(actual[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), where
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_equal_tree(one, other, f"{where}[{number}]")
    else:
        assert actual == expected, where


def assert_same_run(actual: Path, expected: Path) -> None:
    for name in ("metrics.jsonl", "eval.jsonl", "credits.jsonl", "warm_start/metrics.jsonl"):
        assert lines_of(actual / name) == lines_of(expected / name), name
    names = [path.name for path in list_checkpoints(expected / "checkpoints")]
    assert [path.name for path in list_checkpoints(actual / "checkpoints")] == names
    for name in names:
        assert_equal_tree(
            load_checkpoint(actual / "checkpoints" / name),
            load_checkpoint(expected / "checkpoints" / name),
            name,
        )
    weights = load_file(expected / "policy" / "model.safetensors")
    assert_equal_tree(load_file(actual / "policy" / "model.safetensors"), weights)
    assert (actual / "report.html").is_file()
