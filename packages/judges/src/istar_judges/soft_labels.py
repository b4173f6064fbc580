"""Soft labels from a judge's own noise: how sure it is that one trajectory is better than another."""

import math
from collections.abc import Mapping, Sequence

from istar_judges.agreement.statistics import vote_noise


def score_errors(votes: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the standard error of each trajectory's score, a mean of votes.

    The noise of one vote is pooled over all trajectories: a few equal votes on one of them do not mean
    that the judge is sure. A median's error is up to a quarter larger.

    Args:
        votes: Single scores of each trajectory, by id.

    Raises:
        ValueError: If a trajectory has no vote, or none has two.
    """
    empty = sorted(key for key, scores in votes.items() if not scores)
    noise = vote_noise(list(votes.values()))
    if empty or math.isnan(noise):
        missing = f"{empty[0]!r} has no vote" if empty else "no trajectory has two votes"
        raise ValueError(f"the noise of a judge shows in repeated votes, but {missing}")
    return {key: noise / math.sqrt(len(scores)) for key, scores in votes.items()}


def noise_target(gap: float, first_error: float, second_error: float) -> float:
    """Probability that the better-scored trajectory is really better: Φ(gap / √(e₁² + e₂²)).

    Args:
        gap: Preferred score minus rejected score, not negative.
        first_error: Standard error of one score.
        second_error: Standard error of the other.

    Returns:
        From 0.5 to 1; 1 for a gap between scores without error.

    Example:
        >>> round(noise_target(1.0, 0.6, 0.8), 4)
        0.8413
    """
    scale = math.hypot(first_error, second_error)
    if scale == 0.0:
        return 1.0 if gap > 0.0 else 0.5
    return 0.5 * (1.0 + math.erf(gap / scale / math.sqrt(2.0)))
