"""What a model's verdict is once it is in: scores per seat and dimension, or why there are none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from istar_envs.chat import NO_USAGE, Usage
from istar_envs.episode import Outcome, OutcomeStatus
from istar_envs.errors import ConfigError
from istar_judges.injection import Finding
from istar_judges.rubric import Rubric
from istar_judges.verdict import Score

OVERALL: Final = "overall"
"""In place of a dimension: the mean of all of them."""


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """What one judge says of one dialogue. There are numbers only if the status is ``ok``.

    Attributes:
        status: ``ok``, or why there is no verdict.
        source: The judge: its name with version, model and rubric.
        scores: By seat and dimension key; empty unless ``ok``.
        detail: What went wrong, for people; never the judge's opinion.
        injection: Text in the dialogue that seems to be meant for the judge.
        failures: Cause of every failed attempt on the way, such as ``"429"`` or ``"verdict:range"``.
        usage: Tokens that the endpoint counted, for answers that are no verdict too.
        model: The model that answered, by the endpoint's word; "" if none did.
        fingerprint: The endpoint's mark of its own version, or None.
        is_cached: Whether the verdict came from a cache alone, without any call.
    """

    status: OutcomeStatus
    source: str
    scores: Mapping[int, Mapping[str, Score]] = field(default_factory=dict)
    detail: str = ""
    injection: tuple[Finding, ...] = ()
    failures: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    model: str = ""
    fingerprint: str | None = None
    is_cached: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers without a verdict and a verdict without numbers."""
        if (self.status == "ok") != bool(self.scores):
            raise ValueError(f"result of {self.source}: status {self.status!r} with scores {self.scores!r}")


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """How the scores of a seat become the score and success of an outcome.

    Attributes:
        dimension: Key of the dimension that counts, or ``overall``.
        divisor: The outcome's score is the judged one divided by this.
        threshold: Judged scores above it are successes.
    """

    dimension: str = "goal"
    divisor: float = 10.0
    threshold: float = 6.0

    def __post_init__(self) -> None:
        """Refuse a divisor that would turn the scale around."""
        if not self.divisor > 0:
            raise ConfigError(f"score rule: divisor = {self.divisor} must be > 0.")

    def score_range(self, rubric: Rubric) -> tuple[float, float]:
        """Return the smallest and largest score an outcome can have.

        Raises:
            ConfigError: If the rubric lacks the dimension.
        """
        wanted = rubric.dimensions if self.dimension == OVERALL else (rubric.dimension(self.dimension),)
        low, high = (sum(ends) / len(wanted) for ends in ([d.low for d in wanted], [d.high for d in wanted]))
        return low / self.divisor, high / self.divisor

    def outcome(self, result: JudgeResult, seat: int, *, penalty: float = 0.0) -> Outcome:
        """Return what a result means for one seat.

        Args:
            result: What the judge said.
            seat: Whose outcome.
            penalty: What is taken off the judged score.

        Raises:
            ValueError: If the result is ``ok`` but does not speak of that seat.
        """
        if result.status != "ok":
            return Outcome(result.status, result.source, detail=_detail(result))
        if seat not in result.scores:
            raise ValueError(f"the result of {result.source} has seats {sorted(result.scores)}, not {seat}")
        scores = result.scores[seat]
        if self.dimension == OVERALL:
            value = sum(score.score for score in scores.values()) / len(scores)
        else:
            value = float(scores[self.dimension].score)
        value -= penalty
        return Outcome(
            "ok",
            result.source,
            score=value / self.divisor,
            success=value > self.threshold,
            detail=result.detail,
        )


def _detail(result: JudgeResult) -> str:
    """Say why there is no verdict, in none of the judge's own words: they may tell what a seat hides."""
    if result.status in ("invalid", "refused") and result.failures:
        return f"no verdict after {', '.join(result.failures)}"
    return result.detail


GOAL: Final = ScoreRule()
"""The goal on a scale from 0 to 1; reached if judged above 6 of 10."""
