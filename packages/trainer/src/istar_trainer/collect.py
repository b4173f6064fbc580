"""Which groups an iteration learns from: their judged outcomes, and the replacement of dull ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from istar_envs.episode import Outcome
from istar_trainer.config_algorithms import DynamicSampling
from istar_trainer.credits import BatchOutcomes
from istar_trainer.records import Group

Verdicts = Mapping[str, Outcome]
"""What the judge said, by trajectory id."""


@dataclass(frozen=True, slots=True)
class Played:
    """The groups of one iteration, judged.

    Attributes:
        groups: What the iteration learns from.
        outcomes: What the judge said of their trajectories.
        metrics: How much was played for them, if dull groups are replaced.
    """

    groups: tuple[Group, ...]
    outcomes: BatchOutcomes
    metrics: dict[str, float] = field(default_factory=dict)


def outcomes_of(groups: Sequence[Group], verdicts: Verdicts, *, invalid_penalty: float) -> BatchOutcomes:
    """Lay verdicts out in the order of the groups' trajectories.

    Args:
        groups: What was played.
        verdicts: What the judge said of every trajectory.
        invalid_penalty: What each invalid step costs the outcome.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    said = tuple(verdicts[t.id] for t in trajectories)
    penalties = [invalid_penalty * sum(not s.valid for s in t.episode.transitions) for t in trajectories]
    sizes = [len(group.trajectories) for group in groups]
    return BatchOutcomes(
        values=torch.tensor(
            [0.0 if v.score is None else v.score - p for v, p in zip(said, penalties, strict=True)]
        ),
        has_outcome=torch.tensor([v.score is not None for v in said]),
        groups=torch.arange(len(groups)).repeat_interleave(torch.tensor(sizes)),
        successes=torch.tensor([t.episode.success for t in trajectories]),
        verdicts=said,
        episodes=tuple(t.episode for t in trajectories),
    )


def is_telling(verdicts: Sequence[Outcome], rule: DynamicSampling) -> bool:
    """Say whether a group has something to learn from.

    Args:
        verdicts: What the judge said of the group's trajectories.
        rule: A range of success rates, or none, which asks for unequal scores.
    """
    judged = [v for v in verdicts if v.score is not None]
    if rule.low is None or rule.high is None:
        return len({v.score for v in judged}) > 1
    return bool(judged) and rule.low < sum(bool(v.success) for v in judged) / len(judged) < rule.high


def collect_telling(
    play: Callable[[int], Sequence[Group]],
    verify: Callable[[Sequence[Group]], Verdicts],
    rule: DynamicSampling,
    *,
    num_groups: int,
    invalid_penalty: float,
) -> Played:
    """Play batches until enough groups have something to learn from.

    If that takes more than ``rule.max_batches``, the groups played first among the others fill up,
    so that every iteration learns from ``num_groups`` groups.

    Args:
        play: Plays a batch of groups, given its number.
        verify: Judges groups.
        rule: Which groups are replaced, and how often.
        num_groups: Groups wanted.
        invalid_penalty: What each invalid step costs the outcome.

    Returns:
        Groups in the order they were played, the telling ones first.
    """
    telling: list[Group] = []
    others: list[Group] = []
    verdicts: dict[str, Outcome] = {}
    num_batches = 0
    while len(telling) < num_groups and num_batches < rule.max_batches:
        groups = play(num_batches)
        num_batches += 1
        verdicts |= verify(groups)
        for group in groups:
            said = [verdicts[t.id] for t in group.trajectories]
            (telling if is_telling(said, rule) else others).append(group)
    chosen = tuple([*telling, *others][:num_groups])
    metrics = {
        "rollout/filtered_group_frac": len(others) / (len(telling) + len(others)),
        "rollout/generation_batches": float(num_batches),
    }
    return Played(chosen, outcomes_of(chosen, verdicts, invalid_penalty=invalid_penalty), metrics)
