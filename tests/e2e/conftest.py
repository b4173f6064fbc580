"""What the tests of whole programs share."""

from pathlib import Path

import pytest

from made_environment import made_by


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter with vLLM's CPU build, whose environment is made on first use."""
    return made_by("make_vllm_venv.sh", ".venv-vllm")
