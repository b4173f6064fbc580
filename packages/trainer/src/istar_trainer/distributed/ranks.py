"""The processes of a run: which one this is, and what all of them do together.

Every process (rank) plays its own tasks and computes its own rows; what was played and the values of
tokens are gathered, so that each rank goes on with the same whole batch. Alone, every function here
does the work at once and talks to nobody. Gradients and weights are the learners' matter.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from istar_envs.errors import ConfigError, IstarError
from istar_trainer.distributed.watchdog import Watchdog
from istar_trainer.errors import RankLost

_T = TypeVar("_T")
_GRACE_S: Final = 60.0
"""How much longer than the watchdog a collective waits by itself, so that the watchdog speaks first."""
_SIGNS: Final = ("gloo", "connection closed by peer", "connection reset", "broken pipe", "nccl")
"""What the messages of a collective that lost its peers hold, in lower case."""
_KILLED: Final = (
    "A rank that ended without a text of its own was killed: by the kernel if memory ran out (signal 9, "
    "exit code -9 or 137; dmesg says so)"
)

_watchdogs: list[Watchdog] = []


@contextmanager
def joined(num_ranks: int, run_dir: Path, watchdog_s: float) -> Iterator[None]:
    """Be one of so many processes that a launcher started, and leave them at the end.

    Args:
        num_ranks: How many; with one there is nothing to join.
        run_dir: Where stacks are dumped when the run has to stop.
        watchdog_s: Seconds without progress after which this process ends the run.

    Raises:
        ConfigError: If the others cannot be met.
    """
    if num_ranks == 1:
        yield
        return
    wait = timedelta(seconds=watchdog_s)
    try:
        store, rank, size = next(rendezvous("env://", timeout=wait))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        grace = timedelta(seconds=watchdog_s + _GRACE_S)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=grace)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{num_ranks} processes were announced, but they did not meet: {error}. Start them with torchrun "
            "or the deepspeed launcher, which set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
        ) from error
    watchdog = Watchdog(PrefixStore("istar", store), rank, size, run_dir / "watchdog", watchdog_s)
    _watchdogs.append(watchdog)
    try:
        with watchdog:
            yield
    finally:
        _watchdogs.remove(watchdog)
        dist.destroy_process_group()


def num_ranks() -> int:
    """Return how many processes take part."""
    return dist.get_world_size() if dist.is_initialized() else 1


def own_rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Say whether this is the process that writes files and speaks to people."""
    return own_rank() == 0


@contextmanager
def at(place: str) -> Iterator[None]:
    """Do what needs the other processes, named for the watchdog's report.

    Raises:
        RankLost: If the others cannot be reached any more.
    """
    if not _watchdogs:
        yield
        return
    watchdog = _watchdogs[-1]
    try:
        watchdog.enter(place)
        yield
        watchdog.leave(place)
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        lost = f'lost the others in "{place}" ({_first_line(error)}). {_KILLED}'
        raise RankLost(watchdog.report(lost)) from error


def from_main(action: Callable[[], _T], place: str) -> _T:
    """Let the main process do something, and return its result on every process.

    Args:
        action: What to do; its result must be picklable.
        place: Its name for the watchdog's report.

    Raises:
        IstarError: On every process, if the action raised it on the main one.
    """
    if num_ranks() == 1:
        return action()
    found: list[Any] = [_tried(action) if is_main() else None]
    with at(place):
        dist.broadcast_object_list(found, src=0)
    result: _T = _result(found[0])
    return result


def from_all(action: Callable[[], _T], place: str) -> list[_T]:
    """Let every process do something, and return the results in the order of the processes on all of them.

    Args:
        action: What to do; its result must be picklable.
        place: Its name for the watchdog's report.

    Raises:
        IstarError: On every process, if the action raised it on one.
    """
    if num_ranks() == 1:
        return [action()]
    own = _tried(action)
    found: list[Any] = [None] * num_ranks()
    with at(place):
        dist.all_gather_object(found, own)
    return [_result(each) for each in found]


def summed(values: Float[Tensor, "*axes"], place: str) -> Float[Tensor, "*axes"]:
    """Add the values of all processes up, in place; every process gets the sum.

    Args:
        values: Of equal shape and dtype on all processes.
        place: Name for the watchdog's report.
    """
    if num_ranks() > 1:
        with at(place):
            dist.all_reduce(values)
    return values


def dealt(items: Sequence[_T]) -> list[_T]:
    """Return the items that are this process's: every n-th."""
    return list(items[own_rank() :: num_ranks()])


def collected(hands: Sequence[Sequence[_T]]) -> list[_T]:
    """Put what ``dealt`` gave to each process back into its order."""
    return [hands[place % len(hands)][place // len(hands)] for place in range(sum(map(len, hands)))]


def _tried(action: Callable[[], _T]) -> tuple[Any, IstarError | None]:
    try:
        return action(), None
    except IstarError as error:
        return None, error


def _result(found: tuple[Any, IstarError | None]) -> Any:
    value, error = found
    if error is not None:
        raise error
    return value


def _is_loss(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(sign in text for sign in _SIGNS)


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[0].rsplit("] ", 1)[-1]
