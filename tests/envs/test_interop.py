"""Other libraries play and train on our environments: each is installed here and run for real."""

from pathlib import Path
from typing import Any

import pytest

from made_environment import ROOT, said_with

pytestmark = pytest.mark.slow


def played_with(library: str, folder: Path) -> Any:
    """Run a library's program; returns what it printed last."""
    program = Path(__file__).with_name(f"interop_{library}.py")
    paths = (ROOT / "packages/envs/src", ROOT / f"examples/with_{library}")
    return said_with(library, program, folder, paths=paths)


def test_openenvs_client_plays_as_a_conversation_does(tmp_path):
    seen = played_with("openenv", tmp_path)
    assert set(seen) == {"istar/Sokoban-v0", "istar/VisualSokoban-v0", "istar/WebShop-v1"}
    for name, game in seen.items():
        assert game["same"], name
        assert game["success"], name
        assert game["steps"] > 2
        assert game["other"] == 0
        assert game["left"] == []
        assert game["schema"] == ["reply"]
    assert seen["istar/VisualSokoban-v0"]["pictures"] == "data:image/png;base64,"


def test_trls_trainer_calls_the_tools_and_learns_from_the_rewards(tmp_path):
    seen = played_with("trl", tmp_path)
    log = seen["log"]
    assert log["tools/call_frequency"] == seen["moves"] * 2 / 4  # two of four games are the expert's
    assert log["tools/failure_frequency"] == 0
    assert log["rewards/Sokoban/mean"] == pytest.approx(seen["return"] * 2 / 4, rel=1e-5)  # float32
    assert seen["learned"]


def test_verifiers_plays_whole_episodes(tmp_path):
    seen = played_with("verifiers", tmp_path)
    assert seen["errors"] == []
    assert seen["rewards"] == {"return": pytest.approx(seen["return"])}
    assert seen["metrics"]["success"] == 1.0
    assert seen["turns"] == seen["moves"]
    assert seen["tasks"] == 3
