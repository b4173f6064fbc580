"""Weights sent from this process to vLLM's workers, through no file system.

Learner and workers form a group of their own, over NCCL where the learner's model lies on a GPU and gloo
elsewhere. It stays as long as the server runs. The server is told what comes and answers when it has it;
meanwhile one tensor after the other is sent.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from socket import create_server
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from istar_trainer.errors import SamplerFailed
from istar_trainer.vllm.served.istar_receiver import (
    Group,
    Meeting,
    broadcast,
    checked_in,
    join_group,
    open_store,
)
from istar_trainer.vllm.server import VllmServer
from istar_trainer.vllm.wire import RECEIVER, SamplerDown

_POLL_S = 0.02
_GRACE = 1.5
"""A tensor may take so many times as long as the whole request: then the request ends first, and says why."""
_CAUSE_S = 5.0
"""Seconds that a server which broke the group has to say why."""


class BroadcastTransfer:
    """Sends the weights that it took last; they must stay as they are until the next ones.

    Args:
        server: The server.
        model: Folder whose configuration the server starts with; its weights are not read.
        layout: Names weights as vLLM's loader expects them.
        device: Where the learner's model lies.
        dtype: Precision of what is sent; None for that of the weights.
        join_timeout_s: Seconds that the workers may take to join the group.
        timeout_s: Seconds that a transfer may take.
    """

    def __init__(
        self,
        server: VllmServer,
        model: Path,
        layout: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        *,
        device: torch.device,
        dtype: torch.dtype | None,
        join_timeout_s: float,
        timeout_s: float,
    ) -> None:
        self._server = server
        self._model = model
        self._layout = layout
        self._device = device
        self._dtype = dtype
        self._join_timeout_s = join_timeout_s
        self._timeout_s = timeout_s
        self._tensors: dict[str, Tensor] = {}
        self._num_workers = 0
        self._meeting: tuple[Meeting, Store] | None = None
        self._group: Group | None = None

    def take(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        """Remember where new weights are."""
        self._tensors = self._layout(weights)

    def start(self) -> None:
        """Bring the server up, without any weights.

        Raises:
            SamplerFailed: If its workers cannot receive weights.
        """
        self.close()
        self._server.start(self._model)
        try:
            self._num_workers = len(self._server.call_workers("weight_rank"))
        except SamplerDown as error:
            if "not implemented" not in str(error):
                raise
            raise SamplerFailed(
                f"vLLM's workers cannot receive weights ({error}). Start the server with "
                f"--worker-extension-cls {RECEIVER} as docs/scaling.md says, or use sampler.transfer: files."
            ) from error

    def give(self) -> None:
        """Send the weights to all workers.

        Raises:
            SamplerDown: If the server is lost meanwhile.
            SamplerFailed: If it does not join the group.
        """
        if self._meeting is None:
            self._meeting = self._arrange()
        listing = [
            (name, str(self._dtype_of(tensor)).removeprefix("torch."), list(tensor.shape))
            for name, tensor in self._tensors.items()
        ]
        self._server.receive_weights(self._send, meeting=asdict(self._meeting[0]), listing=listing)

    def close(self) -> None:
        """Leave the group."""
        self._group = self._meeting = None

    def _arrange(self) -> tuple[Meeting, Store]:
        """Serve a store on the address that the server reaches, and nowhere else."""
        host = self._server.address_here()
        listener = create_server((host, 0))
        meeting = Meeting(
            host,
            listener.getsockname()[1],
            size=1 + self._num_workers,
            backend="nccl" if self._device.type == "cuda" else "gloo",
            join_timeout_s=self._join_timeout_s,
            timeout_s=_GRACE * self._timeout_s,
        )
        return meeting, open_store(meeting, listener.detach())

    def _send(self, answer: Future[Any]) -> None:
        if self._group is None:
            self._group = self._join(answer)
        answer.add_done_callback(self._abort_if_broken)
        for tensor in self._tensors.values():
            ready = tensor.detach().to(self._device, self._dtype_of(tensor))
            with _watching(answer):
                broadcast(self._group, ready)

    def _join(self, answer: Future[Any]) -> Group:
        """Wait until all workers have come to the store, and connect with them."""
        assert self._meeting is not None
        meeting, store = self._meeting
        end = time.monotonic() + meeting.join_timeout_s
        ranks = [checked_in(rank) for rank in range(1, meeting.size)]
        while not store.check(ranks):
            if answer.done():
                answer.result()
            if time.monotonic() > end:
                raise SamplerFailed(
                    f"not all of vLLM's {self._num_workers} workers came to {meeting.host}:{meeting.port} "
                    f"within {meeting.join_timeout_s:g} s (sampler.start_timeout_s) to get weights. Their "
                    "machine must reach this one by every port; if it cannot, use sampler.transfer: files."
                )
            time.sleep(_POLL_S)
        with _watching(answer):
            return join_group(meeting, 0, store, self._device)

    def _abort_if_broken(self, answer: Future[Any]) -> None:
        """Release a learner that waits for a lost server, which NCCL would not notice."""
        group = self._group
        if group is not None and answer.exception() is not None:
            group.abort()

    def _dtype_of(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if self._dtype is not None and tensor.is_floating_point() else tensor.dtype


@contextmanager
def _watching(answer: Future[Any]) -> Iterator[None]:
    """The boundary to the group: where it breaks, the server may say why."""
    try:
        yield
    except RuntimeError as error:
        wait([answer], _CAUSE_S)
        cause = answer.exception() if answer.done() else None
        raise cause or SamplerDown(f"the weights did not arrive: {error}") from error
