"""Groups that may be played over several iterations, so that none waits for its slowest environment.

A few groups more are in play than an iteration learns from. It takes those that are over, oldest first,
and leaves the others for later: late is not lost. A group that has reached the largest lag is waited for.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from istar_envs.errors import ConfigError
from istar_envs.seeding import derive_seed
from istar_trainer.attempts import OpenGroup, Task
from istar_trainer.config import RolloutConfig, RunConfig
from istar_trainer.distributed.ranks import collected, dealt, from_all, num_ranks
from istar_trainer.records import Group
from istar_trainer.rollout import Player
from istar_trainer.sampler import Sampler


def task_of(seed: int, iteration: int, number: int) -> Task:
    """Return a task of a run.

    Args:
        seed: The run's seed.
        iteration: Iteration whose task it is.
        number: Its number there.
    """
    return Task(f"{iteration}/{number}", derive_seed(seed, "task", iteration, number) % 2**31)


class Backlog:
    """Plays an iteration's groups and those that were left over; each group that is begun is returned once.

    Groups are numbered through the run. Each process plays its share of them.

    Args:
        player: Plays this process's groups, and nothing else.
        config: Groups wanted and to spare, largest lag.
        seed: The run's seed; a group's task and draws depend on it and on the group's number alone.
        iterations: Iterations of the run; only so many groups are begun as they will learn from.

    Raises:
        ConfigError: If the processes cannot share groups evenly.
    """

    def __init__(self, player: Player, config: RolloutConfig, *, seed: int, iterations: int) -> None:
        if config.num_tasks % num_ranks() or config.spare_tasks % num_ranks():
            raise ConfigError(
                f"rollout.num_tasks: {config.num_tasks} and rollout.spare_tasks: {config.spare_tasks} cannot "
                f"be shared evenly by {num_ranks()} processes. With rollout.max_lag, choose multiples."
            )
        self._player = player
        self._config = config
        self._seed = seed
        self._iterations = iterations
        self._open: dict[int, tuple[OpenGroup, int]] = {}
        self._waiting: list[int] = []
        self._next = 0

    def play(self, iteration: int, sampler: Sampler) -> tuple[Group, ...]:
        """Play until an iteration has its groups.

        Args:
            iteration: Counted from 0.
            sampler: Draws the replies of all groups that are in play.

        Returns:
            ``num_tasks`` groups in the order they were begun; none older than ``max_lag`` updates.
        """
        taken = from_all(lambda: self._play_own(iteration, sampler), "gathering of what was played")
        return tuple(collected(taken))

    def state(self) -> dict[str, Any]:
        """Return which groups of all processes are still in play; what was played of them is not kept."""
        shares = from_all(lambda: [*self._open, *self._waiting], "gathering of open groups")
        return {"open": sorted(number for share in shares for number in share), "next": self._next}

    def load_state(self, state: dict[str, Any]) -> None:
        """Play the groups anew that were in play."""
        self._waiting, self._next = dealt(state["open"]), state["next"]

    def _play_own(self, iteration: int, sampler: Sampler) -> list[Group]:
        self._begin(iteration, sampler.snapshot_id)
        share = self._config.num_tasks // num_ranks()
        oldest = sampler.snapshot_id - self._config.max_lag

        def has_enough() -> bool:
            is_due = [group.is_over for group, begun in self._open.values() if begun <= oldest]
            return all(is_due) and sum(group.is_over for group, _ in self._open.values()) >= share

        self._player.go_on(sampler, temperature=self._config.temperature, until=has_enough)
        over = [number for number, (group, _) in self._open.items() if group.is_over]
        return [self._player.end(self._open.pop(number)[0], sampler.snapshot_id) for number in over[:share]]

    def _begin(self, iteration: int, snapshot_id: int) -> None:
        wanted = self._config.num_tasks
        until = min(wanted * (iteration + 1) + self._config.spare_tasks, wanted * self._iterations)
        numbers = [*self._waiting, *dealt(range(self._next, until))]
        self._waiting, self._next = [], until
        for number in numbers:
            home, place = divmod(number, wanted)
            self._open[number] = (
                self._player.begin(
                    task_of(self._seed, home, place),
                    group_size=self._config.group_size,
                    seed=derive_seed(self._seed, "rollout", home),
                ),
                snapshot_id,
            )


def make_backlog(config: RunConfig, player: Player) -> Backlog | None:
    """Make a run's backlog; none if every iteration plays its own groups to the end."""
    rollout = config.rollout
    if not rollout.max_lag:
        return None
    return Backlog(player, rollout, seed=config.seed, iterations=config.iterations)


def lag_metrics(groups: Sequence[Group], snapshot_id: int, *, max_lag: int) -> dict[str, float]:
    """Say how old the steps are that an iteration learns from, and how late trajectories differ from others.

    Args:
        groups: What it learns from.
        snapshot_id: The present version of the weights.
        max_lag: Largest lag that is allowed; with 0 nothing can be late.
    """
    played = [t for group in groups for t in group.trajectories if not t.failed]
    lags = [snapshot_id - sampled for t in played for sampled in t.snapshot_ids]
    values = {"rollout/snapshot_lag": fmean(lags)}
    if not max_lag:
        return values
    late = [t for t in played if t.snapshot_id < snapshot_id]
    others = [t for t in played if t.snapshot_id == snapshot_id]
    late_ids = {t.group_id for t in late}
    return values | {
        "rollout/snapshot_lag_max": float(max(lags)),
        "rollout/late_groups": float(len(late_ids)),
        "rollout/late_return_gap": _mean([t.episode.episode_return for t in late])
        - _mean([t.episode.episode_return for t in others]),
        "rollout/late_steps_gap": _mean([len(t.steps) for t in late]) - _mean([len(t.steps) for t in others]),
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else float("nan")
