"""Writes a comparison down: JSON for programs, pictures, and the page for people."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from istar_envs.errors import ConfigError
from istar_judges.agreement.page import build_page
from istar_judges.agreement.plots import draw_all, encode
from istar_judges.agreement.trust import Comparison, warnings_of


def write_report(comparison: Comparison, folder: Path, *, overwrite: bool = False) -> Path:
    """Write ``report.html``, ``agreement.json`` and the pictures as PNG into a folder.

    Args:
        comparison: What was found.
        folder: Made if absent.
        overwrite: Whether files of an older report may be replaced.

    Returns:
        The path of the page.

    Raises:
        ConfigError: If a report is there and may not be replaced, or the folder cannot be written.
        MissingAsset: If matplotlib is not installed.
    """
    page = folder / "report.html"
    if page.exists() and not overwrite:
        raise ConfigError(
            f"report exists already: {page}. Choose another folder, or allow it with --overwrite."
        )
    figures = draw_all(comparison)
    texts = {"report.html": build_page(comparison, figures), "agreement.json": to_json(comparison)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for (judge, name), figure in figures.items():
            (folder / f"{_file_name(judge)}-{_file_name(name)}.png").write_bytes(encode(figure, "png"))
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {folder} ({error.strerror}). Choose a folder that is writable."
        ) from error
    return page


def to_json(comparison: Comparison) -> str:
    """Return all numbers of a comparison as JSON; unknown ones are null."""
    record = {
        "num_observations": len(comparison.observations.keys),
        "num_scenarios": comparison.num_scenarios,
        "references": list(comparison.references),
        "judges": [{**asdict(judge), "warnings": warnings_of(judge)} for judge in comparison.judges],
        "pairs": [asdict(pair) for pair in comparison.pairs],
    }
    return json.dumps(_plain(record), ensure_ascii=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    """Return JSON-ready values: NaN becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _file_name(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
