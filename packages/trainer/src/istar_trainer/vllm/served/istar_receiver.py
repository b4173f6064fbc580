"""Weights by broadcast: the group of processes that carries them, and the end that vLLM's workers hold.

One file that needs nothing but torch and, for NCCL, vLLM: a server imports it from a folder on its path, by
``--worker-extension-cls istar_receiver.WeightReceiver``. The other end is ``istar_trainer.vllm.broadcast``.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store

_c10d: Any = distributed  # whose types do not tell all that it has

Group = Any
"""One of torch's process groups, of its own: no process's default group, and known to none of them."""
Listing = Sequence[tuple[str, str, Sequence[int]]]
"""Name, dtype and shape of every tensor, in the order in which they come."""


@dataclass(frozen=True)
class Meeting:
    """Where a group meets, and how it talks.

    Attributes:
        host: Address of the learner.
        port: Where its store listens.
        size: Processes: the learner, which is rank 0, and all workers.
        backend: ``nccl`` or ``gloo``.
        join_timeout_s: Seconds that it may take to meet.
        timeout_s: Seconds that one tensor may take.
    """

    host: str
    port: int
    size: int
    backend: str
    join_timeout_s: float
    timeout_s: float


class WeightReceiver:
    """What a worker of vLLM can do besides; vLLM makes it a base of its own class."""

    rank: int
    device: torch.device
    reload_weights: Callable[..., None]
    weight_group: tuple[Meeting, Group] | None = None
    """The group that it is in; it stays from one transfer to the next."""

    def weight_rank(self) -> int:
        """Say which rank this worker has among those that get weights."""
        return self.rank + 1

    def receive_weights(self, meeting: dict[str, Any], listing: Listing) -> None:
        """Take over weights that the learner sends now.

        Args:
            meeting: The fields of ``Meeting``.
            listing: What comes.
        """
        place = Meeting(**meeting)
        try:
            device = self.device if place.backend == "nccl" else torch.device("cpu")
            if self.weight_group is None or self.weight_group[0] != place:
                self.weight_group = place, _join_as_worker(place, self.weight_rank(), device)
            self.reload_weights(weights_iterator=_received(self.weight_group[1], listing, device))
        except BaseException:
            self.weight_group = None  # which closes its connections, so that the learner does not wait
            raise


def open_store(meeting: Meeting, listener: int | None = None) -> Store:
    """Return the store in which a group meets.

    Args:
        meeting: Where it is.
        listener: Descriptor of a socket that listens there, for the process that serves the store.
    """
    store: Store = _c10d.TCPStore(
        meeting.host,
        meeting.port,
        is_master=listener is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=meeting.join_timeout_s),
        master_listen_fd=listener,
    )
    return store


def join_group(meeting: Meeting, rank: int, store: Store, device: torch.device) -> Group:
    """Connect with all others; returns when they are there.

    Args:
        meeting: Where and how.
        rank: Place in the group.
        store: What the learner's process serves.
        device: Where tensors will lie.
    """
    store, timeout = PrefixStore("weights", store), timedelta(seconds=meeting.timeout_s)
    group: Group
    if meeting.backend == "nccl":
        nccl = _c10d.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        group = _c10d.ProcessGroupNCCL(store, rank, meeting.size, nccl)
    else:
        gloo = _c10d.ProcessGroupGloo._Options()
        own = address_towards(meeting.host, meeting.port)
        gloo._devices = [_c10d.ProcessGroupGloo.create_device(hostname=own)]
        gloo._timeout = timeout
        group = _c10d.ProcessGroupGloo(store, rank, meeting.size, gloo)
    broadcast(group, torch.zeros(1, dtype=torch.uint8, device=device))  # NCCL connects at the first one
    return group


def broadcast(group: Group, tensor: torch.Tensor) -> None:
    """Send a tensor from rank 0 into contiguous ones of all others, as bytes: gloo has not every dtype."""
    group.broadcast(tensor.flatten().view(torch.uint8), 0).wait()


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine on the way to a port that listens."""
    with socket.create_connection((host, port)) as connection:
        return str(connection.getsockname()[0])


def checked_in(rank: int) -> str:
    """Return the key by which the learner sees that a rank is there."""
    return f"here/{rank}"


def _join_as_worker(meeting: Meeting, rank: int, device: torch.device) -> Group:
    store = open_store(meeting)
    store.set(checked_in(rank), "")
    with _launch_environment(meeting.backend):
        return join_group(meeting, rank, store, device)


def _launch_environment(backend: str) -> contextlib.AbstractContextManager[None]:
    """Hide NCCL's variables that vLLM sets for its own groups: in a shared one all must have the same."""
    if backend != "nccl":
        return contextlib.nullcontext()
    from vllm.utils.nccl import unpinned_nccl_env

    hidden: contextlib.AbstractContextManager[None] = unpinned_nccl_env()
    return hidden


def _received(group: Group, listing: Listing, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Receive tensors one after the other, each into memory of its own."""
    for name, dtype, shape in listing:
        tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
        broadcast(group, tensor)
        yield name, tensor
