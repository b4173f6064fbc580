"""Weights handed over as folders, which vLLM reads: whole models, or adapters beside a base."""

import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from istar_trainer.errors import SamplerFailed
from istar_trainer.vllm.sampler import Backend

_ADAPTER = "adapter_config.json"

WriteSnapshot = Callable[[dict[str, Tensor], Path], None]
"""Writes weights into a new folder in Hugging Face layout, or an adapter in that of PEFT."""


class FileTransfer:
    """Writes a snapshot when it takes weights, and lets vLLM read it.

    Args:
        backend: Server or engine.
        model: Folder of the weights that the run starts from.
        folder: Where snapshots are handed over; emptied first.
        write: Writes a snapshot.
    """

    def __init__(self, backend: Backend, model: Path, folder: Path, write: WriteSnapshot) -> None:
        self._backend = backend
        self._model = model
        self._read: Path | None = None
        self._adapter: Path | None = None
        self._folder = folder
        self._write = write
        shutil.rmtree(folder, ignore_errors=True)

    def take(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        """Write new weights down, whole or not at all.

        Raises:
            SamplerFailed: If they cannot be written.
        """
        target = self._folder / f"snapshot-{snapshot_id:08d}"
        partial = target.with_name(f".{target.name}.part")
        try:
            for old in (partial, target):
                shutil.rmtree(old, ignore_errors=True)
            partial.mkdir(parents=True)
            self._write(weights, partial)
            partial.replace(target)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise SamplerFailed(
                f"cannot write snapshot {snapshot_id} to {self._folder}: {error}. Free space or set "
                "sampler.sync_dir, then use --resume; checkpoints are intact."
            ) from error
        if (target / _ADAPTER).is_file():
            self._adapter = target
        else:
            self._model, self._read = target, None

    def start(self) -> None:
        """Bring the backend up with the present model."""
        self._read = self._model if self._backend.start(self._model) else None

    def give(self) -> None:
        """Let the backend read what it has not read yet, and remove older snapshots."""
        if self._read != self._model:
            self._backend.load_weights(self._model)
            self._read = self._model
        if self._adapter is not None:
            self._backend.load_adapter(self._adapter.name, self._adapter)
        for path in self._folder.glob("snapshot-*"):
            if path not in (self._model, self._adapter):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Remove the snapshots."""
        shutil.rmtree(self._folder, ignore_errors=True)
