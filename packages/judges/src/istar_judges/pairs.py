"""Outcomes of one group into preference pairs, and the weight of every pair in the whole batch.

Pure functions on plain records, keyed by ids: no result depends on the order of its inputs. Not
here: files (``pair_files.py``), and the loss on pairs, which is the trainer's. Spec: istar.md §3.2.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from istar_envs.episode import Episode, Outcome
from istar_judges.soft_labels import noise_target

Label = Literal["threshold", "success", "rank", "margin"]
PairSet = Literal["all", "one_to_one", "best_worst"]
PairWeights = Literal["group", "pair"]


class PairRule(BaseModel):
    """Which trajectories of a group form a pair, and how sure the pair is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label: Label = "threshold"
    """Preferred over rejected if: threshold: one score is above the threshold and the other is not;
    success: the judge calls one a success and the other not, whatever the unit of its scores;
    rank: the score is higher; margin: the score is higher by more than the margin."""
    threshold: float = 0.0
    """Scores above it are successes, in score units; 0 for verifiers, 6 for goals judged 0 to 10."""
    margin: float = Field(default=0.0, ge=0.0)
    """How much higher a score must be with label margin, in score units."""
    sharpness: float | None = Field(default=None, gt=0.0)
    """Soft labels: the pair's target is σ(sharpness · score gap), per score unit; None for 1."""
    pair_set: PairSet = "all"
    """all; one_to_one: each trajectory in at most one pair, widest gaps first; best_worst: the
    widest gap only."""

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.label == "margin" and self.margin == 0.0:
            raise ValueError("label 'margin' needs margin > 0; set margin, or use label 'rank'")
        if self.label != "margin" and self.margin != 0.0:
            raise ValueError(
                f"margin {self.margin} has no effect with label {self.label!r}; use label 'margin'"
            )
        if self.label != "threshold" and self.threshold != 0.0:
            raise ValueError(
                f"threshold {self.threshold} has no effect with label {self.label!r}; use label 'threshold'"
            )
        return self


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two trajectories of one group, one of which is preferred.

    Attributes:
        group_id: Group (task) of both.
        preferred: Id of the better trajectory.
        rejected: Id of the worse one.
        weight: Share of this pair in a loss; see ``make_pairs`` and ``weigh_pairs``.
        target: Probability that ``preferred`` is really better; 1 for a hard label.
    """

    group_id: str
    preferred: str
    rejected: str
    weight: float
    target: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a pair that no loss can use."""
        if self.preferred == self.rejected or not 0.0 <= self.weight <= 1.0 or not 0.0 <= self.target <= 1.0:
            raise ValueError(
                f"pair {self.preferred!r} over {self.rejected!r} of group {self.group_id!r}: "
                f"weight={self.weight}, target={self.target}; give two different ids, and weight and target "
                "in [0, 1]"
            )


def make_pairs(
    outcomes: Mapping[str, Outcome],
    *,
    group_id: str,
    rule: PairRule,
    content_keys: Mapping[str, str] | None = None,
    errors: Mapping[str, float] | None = None,
) -> tuple[PreferencePair, ...]:
    """Pair the trajectories of one group.

    A trajectory without a verdict is in no pair; neither are two that are the same, since their
    scores under any model are equal too.

    Args:
        outcomes: Outcome of each trajectory, by trajectory id.
        group_id: The group's id.
        rule: Which pairs to form.
        content_keys: Key of each trajectory's content, by trajectory id; equal keys mean equal
            content. None if no two are equal.
        errors: Standard error of each score, by trajectory id; a pair's target is then the probability
            that its gap is no accident. None for the targets of the rule.

    Returns:
        The pairs, widest score gap first, then by ids; the weights are equal and sum to 1. Empty
        if the group has no pair.

    Raises:
        ValueError: If a score is not finite, a content key or error is missing, or both ``errors`` and
            the rule's ``sharpness`` are given.

    Example:
        >>> won, lost = Outcome("ok", "v", 1.0, True), Outcome("ok", "v", 0.0, False)
        >>> [p.preferred for p in make_pairs({"a": lost, "b": won}, group_id="g", rule=PairRule())]
        ['b']
    """
    scores = {key: _finite(key, o.score) for key, o in outcomes.items() if o.score is not None}
    keys = _content_of(scores, content_keys)
    target = _target_of(scores, rule, errors)
    ranked = sorted(
        (scores[worse] - scores[better], better, worse)
        for better, worse in permutations(scores, 2)
        if _is_preferred(outcomes[better], outcomes[worse], rule) and keys[better] != keys[worse]
    )
    chosen = _select(ranked, rule.pair_set)
    return tuple(
        PreferencePair(group_id, better, worse, weight=1.0 / len(chosen), target=target(better, worse))
        for _, better, worse in chosen
    )


def soft_target(gap: float, sharpness: float | None) -> float:
    """Probability that the better-scored trajectory is better: σ(κ · gap), or 1 without softness.

    Args:
        gap: Preferred score minus rejected score, not negative.
        sharpness: κ, per score unit; None for a hard label.
    """
    return 1.0 if sharpness is None else 1.0 / (1.0 + math.exp(-sharpness * gap))


def weigh_pairs(
    groups_of_pairs: Iterable[Iterable[PreferencePair]], mode: PairWeights = "group"
) -> tuple[PreferencePair, ...]:
    """Set the weight of every pair of a batch, so that all weights sum to 1.

    Args:
        groups_of_pairs: The pairs of each group; groups without pairs count for nothing.
        mode: ``group``: every group with pairs weighs the same, 1/(pairs of the group · groups with
            pairs); ``pair``: every pair weighs the same, 1/pairs.

    Returns:
        All pairs, sorted by group and otherwise in the given order.
    """
    pairs = sorted((p for group in groups_of_pairs for p in group), key=lambda p: p.group_id)
    sizes = Counter(pair.group_id for pair in pairs)
    if mode == "pair":
        return tuple(replace(pair, weight=1.0 / len(pairs)) for pair in pairs)
    return tuple(replace(pair, weight=1.0 / (sizes[pair.group_id] * len(sizes))) for pair in pairs)


def content_key(episode: Episode) -> str:
    """Key of what the agent saw and said: equal iff that is equal, step by step."""
    steps = [(t.observation, t.image, t.reply) for t in episode.transitions]
    return hashlib.sha256(json.dumps(steps).encode()).hexdigest()


def _finite(key: str, score: float) -> float:
    if not math.isfinite(score):
        raise ValueError(f"trajectory {key!r} has score {score}; scores must be finite")
    return score


def _content_of(scores: Mapping[str, float], content_keys: Mapping[str, str] | None) -> Mapping[str, str]:
    if content_keys is None:
        return {key: key for key in scores}
    missing = sorted(scores.keys() - content_keys.keys())
    if missing:
        raise ValueError(f"no content key for trajectories {missing}; give one for each, or None")
    return content_keys


def _target_of(
    scores: Mapping[str, float], rule: PairRule, errors: Mapping[str, float] | None
) -> Callable[[str, str], float]:
    """Return how sure a pair of ids is."""
    if errors is None:
        return lambda better, worse: soft_target(scores[better] - scores[worse], rule.sharpness)
    if rule.sharpness is not None:
        raise ValueError(f"errors and sharpness {rule.sharpness} both say how sure a pair is; give one")
    if missing := sorted(scores.keys() - errors.keys()):
        raise ValueError(f"no error for the scores of trajectories {missing}; give one for each, or None")
    return lambda better, worse: noise_target(
        max(0.0, scores[better] - scores[worse]), errors[better], errors[worse]
    )


def _is_preferred(better: Outcome, worse: Outcome, rule: PairRule) -> bool:
    if better.score is None or worse.score is None:
        return False
    if rule.label == "success":
        return better.success is True and worse.success is False
    if rule.label == "threshold":
        return better.score > rule.threshold >= worse.score
    return better.score > worse.score + rule.margin


def _select(ranked: list[tuple[float, str, str]], pair_set: PairSet) -> list[tuple[float, str, str]]:
    """Keep the pairs of a pair set; the input is sorted, widest gap first."""
    if pair_set == "all":
        return ranked
    if pair_set == "best_worst":
        return ranked[:1]
    used: set[str] = set()
    matched = []
    for gap, better, worse in ranked:
        if used.isdisjoint((better, worse)):
            used |= {better, worse}
            matched.append((gap, better, worse))
    return matched
