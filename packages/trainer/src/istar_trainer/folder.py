"""A run folder: what a run leaves behind, written so that a crash loses nothing already there.

``config.json env.json metrics.jsonl eval.jsonl credits.jsonl`` and the folders
``episodes/ images/ model/ warm_start/ checkpoints/ policy/``; with a model as judge ``judge.jsonl``,
``verdicts.sqlite`` and ``canaries/`` too.
"""

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from istar_envs.episode import Episode, ImageStore
from istar_envs.errors import ConfigError
from istar_trainer.config import RunConfig
from istar_trainer.faults import writing
from istar_trainer.metrics import write_atomically

_LINE_FILES = ("eval.jsonl", "credits.jsonl")
_JUDGE_KEYS = ("base_url", "api_key_env", "concurrency", "timeout_s", "max_tokens")
_LEARNER_KEYS = ("backend", "watchdog_s", "micro_batch_tokens", "packing", "merge_prefixes", "logits_mib")
_FREE = {
    "iterations",
    "run_dir",
    "model.device",
    "model.gradient_checkpointing",
    *(f"judge.{key}" for key in _JUDGE_KEYS),
    *(f"learner.{key}" for key in _LEARNER_KEYS),
    "rollout.env_threads",
}
_FREE_SECTIONS = ("sampler.", "learner.deepspeed.", "checkpoint.")
"""Keys that may differ when a run is resumed."""
_VERSIONS = ("istar-trainer", "istar-envs", "torch", "transformers", "tokenizers", "numpy", "gymnasium")


class RunFolder:
    """One run's folder.

    Args:
        path: The folder.
        config: Resolved configuration of the run.
        resume: Whether to go on with a run that is there.

    Raises:
        ConfigError: If the folder cannot be written, holds another run, or holds none to resume.
    """

    def __init__(self, path: Path, config: RunConfig, *, resume: bool) -> None:
        self.path = path
        stored = path / "config.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
            is_used = any(path.iterdir())
        except OSError as error:
            raise ConfigError(
                f"cannot use run_dir {path}: {error.strerror}. Choose another folder."
            ) from error
        if is_used and not resume:
            raise ConfigError(
                f"run_dir {path} is not empty. Use --resume to go on with it, or another folder."
            )
        if resume and stored.exists():
            require_same(stored, config)
        write_atomically(stored, config.model_dump_json(indent=2) + "\n")
        if not (path / "env.json").exists():
            write_atomically(path / "env.json", json.dumps(describe_machine(), indent=2) + "\n")

    def add_facts(self, **facts: Any) -> None:
        """Add facts about the run to ``env.json``."""
        path = self.path / "env.json"
        try:
            known = {**json.loads(path.read_text(encoding="utf-8")), **facts}
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"cannot read {path}: {error}. Remove it; --resume writes it again for this machine."
            ) from error
        write_atomically(path, json.dumps(known, indent=2) + "\n")

    def keep_episodes(self, label: str, episodes: Iterable[Episode]) -> None:
        """Write episodes as ``episodes/LABEL.jsonl``, in the form that ``istar-judge`` reads."""
        (self.path / "episodes").mkdir(exist_ok=True)
        text = "".join(episode.to_json() + "\n" for episode in episodes)
        write_atomically(self.path / "episodes" / f"{label}.jsonl", text)

    def keep_images(self, keys: Iterable[str | None], images: ImageStore) -> None:
        """Write pictures to ``images/`` by content hash, as far as a store still has them."""
        kept = ImageStore(self.path / "images")
        for key in {key for key in keys if key is not None}:
            with writing(kept.folder), contextlib.suppress(KeyError):
                kept.put(images.get(key))

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Append JSON lines to one of the folder's files; they are on disk when this returns."""
        path = self.path / name
        with writing(path), path.open("a", encoding="utf-8") as out:
            for record in records:
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
            out.flush()
            os.fsync(out.fileno())

    def records(self, name: str) -> list[dict[str, Any]]:
        """Read the complete lines of one of the folder's files; [] if it is not there.

        Raises:
            ConfigError: If a line is not JSON.
        """
        path = self.path / name
        if not path.exists():
            return []
        *lines, _torn = path.read_bytes().split(b"\n")
        try:
            return [json.loads(line) for line in lines if line.strip()]
        except ValueError as error:
            raise ConfigError(
                f"{path} is damaged: {error}. Remove the broken line, or start a new run_dir."
            ) from error

    def rewind(self, iterations: int) -> None:
        """Drop what was written after so many iterations, so that it can be written again.

        Credits carry the number of the iteration they are from, counted from 0;
        evaluations carry how many iterations were done.
        """
        for name in _LINE_FILES:
            last = iterations if name == "eval.jsonl" else iterations - 1
            kept = [r for r in self.records(name) if r["iteration"] <= last]
            if (self.path / name).exists():
                text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
                write_atomically(self.path / name, text)


def require_same(stored: Path, config: RunConfig) -> None:
    """Refuse to resume a run under another configuration; only what changes no result may differ.

    Raises:
        ConfigError: If the stored configuration cannot be read or differs; names the keys.
    """
    try:
        before = flatten(json.loads(stored.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {stored}: {error}. Restore it or start a new run.") from error
    now = flatten(config.model_dump(mode="json"))
    differ = {k for k in before.keys() | now.keys() if before.get(k) != now.get(k)}
    changed = sorted(k for k in differ - _FREE if not k.startswith(_FREE_SECTIONS))
    if changed:
        switched = tuple(k.removesuffix("type") for k in changed if k.endswith(".type"))
        changed = [k for k in changed if k.endswith(".type") or not k.startswith(switched)]
        shown = ", ".join(f"{k}: {before.get(k)!r} then, {now.get(k)!r} now" for k in changed)
        raise ConfigError(
            f"cannot resume {stored.parent}: the configuration changed ({shown}). "
            "Use the run's own configuration, or start a new run_dir."
        )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def describe_machine() -> dict[str, Any]:
    """Say what the run ran on: versions, commit, hardware."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: metadata.version(name) for name in _VERSIONS},
        "commit": _commit(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _commit() -> str | None:
    """Return the commit of the source tree, or None outside one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
