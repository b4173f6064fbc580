"""One judge asked several times: independent samples, both orders of the seats, and what they agree on.

A verdict that changes when it is asked for again is worth less, and this says by how much.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Final, Literal

from istar_envs import background
from istar_envs.episode import Episode, Outcome
from istar_envs.errors import ConfigError
from istar_judges.dialogue_judge import DialogueJudge, Judged, ask_each
from istar_judges.results import JudgeResult

_VERSION: Final = 1
Combine = Literal["median", "mean"]


@dataclass(frozen=True, slots=True)
class Vote:
    """One of several verdicts on one seat of one dialogue.

    Attributes:
        score: In the judge's score range.
        swapped: Whether the last seat was presented first.
        fingerprint: The endpoint's mark of its own version, or None.
    """

    score: float
    swapped: bool = False
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Ballot:
    """What a panel asked about one dialogue.

    Attributes:
        results: One result for each call, those without a verdict included.
        swapped: For each, whether the last seat was presented first.
    """

    results: tuple[JudgeResult, ...]
    swapped: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """What a panel found for one seat.

    Attributes:
        outcome: The votes together; without a number if too few of them count.
        votes: The single verdicts.
        spread: Standard deviation of one vote, n − 1 in the denominator, in the unit of the score;
            None with fewer than two votes.
    """

    outcome: Outcome
    votes: tuple[Vote, ...]
    spread: float | None


class Panel:
    """A judge that asks another one several times (a ``Judge``).

    Args:
        judge: Who is asked.
        samples: How often, in each order.
        both_orders: Whether every sample is asked for in both orders of the seats.
        combine: How the votes become one score. A success is a combined score above the judge's
            threshold.
        quorum: Share of the calls that must give a verdict; with fewer there is none.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        judge: DialogueJudge,
        *,
        samples: int = 3,
        both_orders: bool = True,
        combine: Combine = "median",
        quorum: float = 0.5,
    ) -> None:
        if samples < 1 or not 0.0 < quorum <= 1.0:
            raise ConfigError(f"panel: samples = {samples} must be >= 1, quorum = {quorum} in (0, 1].")
        if combine not in ("median", "mean"):
            raise ConfigError(f"panel: combine = {combine!r} must be 'median' or 'mean'.")
        self.judge, self.samples, self.both_orders = judge, samples, both_orders
        self.combine, self.quorum = combine, quorum
        orders = " in both orders" if both_orders else ""
        self.name = f"panel/{_VERSION} {combine} of {samples}{orders}, {judge.name}"
        self.score_range = judge.score_range

    def __call__(self, episode: Episode) -> Outcome:
        """Judge one episode; see ``DialogueJudge.__call__``."""
        return self.outcomes([episode])[0]

    def outcomes(self, episodes: Sequence[Episode]) -> list[Outcome]:
        """Judge many episodes at a time; see ``__call__``."""
        ballots = self.judge_many(episodes)
        judged = zip(episodes, ballots, strict=True)
        return [self.tally(episode, ballot).outcome for episode, ballot in judged]

    def judge_many(self, episodes: Sequence[Judged], *, seats: Sequence[int] | None = None) -> list[Ballot]:
        """Ask about many episodes at a time and wait for all; see ``ajudge``."""

        async def ask(episode: Judged) -> Ballot:
            """Ask when there is room."""
            return await self.ajudge(episode, seats=seats)

        return background.run(ask_each(ask, episodes, self.judge.concurrency))

    async def ajudge(self, episode: Judged, *, seats: Sequence[int] | None = None) -> Ballot:
        """Ask about one episode.

        Args:
            episode: An episode of a dialogue, or the dialogue itself.
            seats: Seats to score; see ``DialogueJudge.ajudge``.

        Raises:
            JudgeError: If the episode holds no dialogue, or the judge can never judge it.
        """
        calls = [
            (sample, swapped)
            for sample in range(self.samples)
            for swapped in ((False, True) if self.both_orders else (False,))
        ]
        results = await asyncio.gather(
            *(
                self.judge.ajudge(episode, seats=seats, sample=sample, swapped=swapped)
                for sample, swapped in calls
            )
        )
        return Ballot(tuple(results), tuple(swapped for _, swapped in calls))

    def tally(self, episode: Judged, ballot: Ballot, seat: int | None = None) -> Tally:
        """Count the votes on a seat of an episode; None for the seat that the judge's outcomes are about."""
        outcomes = [self.judge.outcome(episode, result, seat) for result in ballot.results]
        votes = tuple(
            Vote(outcome.score, swapped, result.fingerprint)
            for outcome, swapped, result in zip(outcomes, ballot.swapped, ballot.results, strict=True)
            if outcome.score is not None
        )
        scores = [vote.score for vote in votes]
        spread = stdev(scores) if len(scores) > 1 else None
        return Tally(self._combine(outcomes, scores, spread), votes, spread)

    def _combine(self, outcomes: list[Outcome], scores: list[float], spread: float | None) -> Outcome:
        counted = f"{len(scores)} of {len(outcomes)} votes"
        failed = [outcome for outcome in outcomes if outcome.status != "ok"]
        if not scores or len(scores) < self.quorum * len(outcomes):
            status = Counter(outcome.status for outcome in failed).most_common(1)[0][0]
            first = next(outcome for outcome in failed if outcome.status == status)
            return Outcome(status, self.name, detail=f"{counted}; {first.detail}")
        score = mean(scores) if self.combine == "mean" else median(scores)
        notes = [counted, *([] if spread is None else [f"spread {spread:.2g}"])]
        notes += sorted({o.detail for o in outcomes if o.status == "ok" and o.detail})
        rule = self.judge.rule
        success = round(score * rule.divisor, 9) > rule.threshold
        return Outcome("ok", self.name, score=score, success=success, detail="; ".join(notes))
