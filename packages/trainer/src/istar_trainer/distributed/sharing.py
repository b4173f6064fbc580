"""What of a run the processes share out: tasks to all of them; judging, files and words to the main one."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from istar_envs.episode import Episode, Outcome
from istar_trainer.attempts import Task
from istar_trainer.config import RunConfig
from istar_trainer.distributed.ranks import collected, dealt, from_all, from_main, is_main
from istar_trainer.folder import RunFolder
from istar_trainer.judging import Judging, make_judging
from istar_trainer.metrics import MetricsLog, Record
from istar_trainer.records import Group
from istar_trainer.rollout import Player
from istar_trainer.sampler import Sampler


class SharedPlayer(Player):
    """Plays this process's part of the tasks and gathers all of them."""

    def play(
        self, tasks: Sequence[Task], sampler: Sampler, *, group_size: int, seed: int, temperature: float
    ) -> tuple[Group, ...]:
        """Play every task ``group_size`` times, each task in one process.

        Draws depend on the ids of tasks alone, so the groups are the same as those of one process.
        """

        def play_own() -> tuple[Group, ...]:
            return super(SharedPlayer, self).play(
                dealt(tasks), sampler, group_size=group_size, seed=seed, temperature=temperature
            )

        return tuple(collected(from_all(play_own, "gathering of what was played")))


class MainJudging:
    """Judging by the main process; the others are told.

    Args:
        config: What judges.
        folder: The run's folder.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._judging: Judging | None = None
        from_main(lambda: self._open(config, folder), "opening of the judge")

    def outcomes(self, episodes: Sequence[Episode], iteration: int) -> list[Outcome]:
        """Judge the episodes of an iteration, in order."""
        return from_main(lambda: self._own.outcomes(episodes, iteration), "judging")

    def watch(self, iteration: int) -> dict[str, float]:
        """Return metrics about the judge itself, at the end of an iteration."""
        return from_main(lambda: self._own.watch(iteration), "watching the judge")

    def close(self) -> None:
        """Close files and connections."""
        if self._judging is not None:
            self._judging.close()

    @property
    def _own(self) -> Judging:
        assert self._judging is not None
        return self._judging

    def _open(self, config: RunConfig, folder: RunFolder) -> None:
        self._judging = make_judging(config, folder)


class ReadOnlyFolder(RunFolder):
    """The run's folder as the other processes see it: what they would write, the main one writes.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add_facts(self, **facts: Any) -> None:
        """Write nothing."""

    def keep_episodes(self, label: str, episodes: Iterable[Episode]) -> None:
        """Write nothing."""

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Write nothing."""

    def rewind(self, iterations: int) -> None:
        """Write nothing."""


class SilentLog(MetricsLog):
    """A metrics log of the other processes: what they would write, the main one writes."""

    def __init__(self) -> None:
        self._board = None

    def write(self, iteration: int, values: Record) -> None:
        """Write nothing."""


def open_folder(config: RunConfig, *, resume: bool) -> RunFolder:
    """Open the run's folder, for writing in the main process only."""
    folder = from_main(lambda: RunFolder(config.run_dir, config, resume=resume), "opening of the run folder")
    return folder if is_main() else ReadOnlyFolder(folder.path)


def open_log(path: Path, tensorboard: bool = False, resume_at: int | None = None) -> MetricsLog:
    """Open a metrics log, which writes in the main process only."""
    return MetricsLog(path, tensorboard, resume_at) if is_main() else SilentLog()
