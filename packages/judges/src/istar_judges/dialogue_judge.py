"""What all judges of dialogues share: many episodes at a time, and from scores per seat to one outcome.

How the scores come about is each judge's own: a model (``llm_judge.py``) or a rule (``fakes.py``).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, TypeVar

from istar_envs import background
from istar_envs.episode import Episode, Outcome
from istar_envs.errors import ConfigError
from istar_judges.dialogue import JudgedDialogue, dialogue_of
from istar_judges.errors import JudgeError
from istar_judges.injection import find_injections
from istar_judges.results import GOAL, JudgeResult, ScoreRule
from istar_judges.rubric import Rubric, load_rubric

_Answer = TypeVar("_Answer")
Judged = Episode | JudgedDialogue
"""An episode of a dialogue, or the dialogue itself."""

Penalty = Callable[[JudgedDialogue, int], float]
"""From a dialogue and a seat to what is taken off the seat's judged score, in points; not negative."""


def words_of(dialogue: JudgedDialogue, seat: int) -> int:
    """Count the words of everything that a seat said and did."""
    return sum(len(text.split()) for speaker, text in dialogue.turns if speaker == seat)


def penalty_for_length(free_words: int, points_per_100: float) -> Penalty:
    """Return a penalty that makes long-windedness unprofitable.

    Args:
        free_words: Words of a seat that cost nothing.
        points_per_100: What each 100 words above them cost, in points.
    """
    return lambda dialogue, seat: max(0, words_of(dialogue, seat) - free_words) / 100 * points_per_100


class JudgeOptions(TypedDict, total=False):
    """Keyword arguments that every ``DialogueJudge`` hands on."""

    perspective: int | Literal["player"]
    rule: ScoreRule
    on_injection: Literal["flag", "lowest"]
    penalty: Penalty | None


class DialogueJudge(ABC):
    """A judge that scores the seats of a dialogue.

    Args:
        name: Name with version.
        rubric: What is scored: a ``Rubric``, or what ``load_rubric`` takes.
        perspective: Whose scores an outcome is about: a seat, or ``player``, the seat that the episode
            is about.
        rule: How scores become an outcome.
        on_injection: ``flag`` only reports suspicious text; ``lowest`` also gives its author's outcome
            the lowest score and no success.
        penalty: What is taken off a score, down to the lowest one; None for nothing.
        concurrency: How many episodes are judged at a time.

    Raises:
        ConfigError: If an option is unknown, or the rubric lacks the rule's dimension.
    """

    def __init__(
        self,
        name: str,
        rubric: Rubric | str,
        *,
        perspective: int | Literal["player"] = "player",
        rule: ScoreRule = GOAL,
        on_injection: Literal["flag", "lowest"] = "flag",
        penalty: Penalty | None = None,
        concurrency: int = 32,
    ) -> None:
        if on_injection not in ("flag", "lowest"):
            raise ConfigError(f"judge: on_injection = {on_injection!r} must be 'flag' or 'lowest'.")
        self.name = name
        self.rubric = load_rubric(rubric) if isinstance(rubric, str) else rubric
        self.perspective, self.rule, self.on_injection = perspective, rule, on_injection
        self.penalty, self.concurrency = penalty, concurrency
        self.score_range = rule.score_range(self.rubric)
        """Smallest and largest score of an outcome."""

    @abstractmethod
    async def ajudge(
        self,
        episode: Judged,
        *,
        seats: Sequence[int] | None = None,
        sample: int = 0,
        swapped: bool = False,
    ) -> JudgeResult:
        """Judge one episode.

        Args:
            episode: An episode of a dialogue, or the dialogue itself.
            seats: Seats to score; by default all if the rubric scores them together, else the
                perspective's.
            sample: Which of several independent verdicts on the same episode this is.
            swapped: Whether the last seat is presented first; the result still goes by seat.

        Raises:
            JudgeError: If the episode holds no dialogue.
        """

    def __call__(self, episode: Episode) -> Outcome:
        """Judge one episode.

        Returns:
            An ``ok`` outcome about the perspective's seat, or another status without a number.

        Raises:
            JudgeError: If the episode holds no dialogue, or the judge can never judge it.
        """
        return self.outcomes([episode])[0]

    def outcomes(self, episodes: Sequence[Episode]) -> list[Outcome]:
        """Judge many episodes at a time; see ``__call__``."""
        results = self.judge_many(episodes)
        return [self.outcome(episode, result) for episode, result in zip(episodes, results, strict=True)]

    def judge_many(self, episodes: Sequence[Judged]) -> list[JudgeResult]:
        """Judge many episodes at a time and wait for all; see ``ajudge``.

        Returns:
            One result per episode, in order.
        """
        return background.run(self.ajudge_many(episodes))

    async def ajudge_many(self, episodes: Sequence[Judged]) -> list[JudgeResult]:
        """Judge many episodes, ``concurrency`` at a time."""
        return await ask_each(self.ajudge, episodes, self.concurrency)

    def outcome(self, episode: Judged, result: JudgeResult, seat: int | None = None) -> Outcome:
        """Return what a result means for a seat of its episode; None for the perspective's."""
        if result.status != "ok":
            return self.rule.outcome(result, 0)
        dialogue = as_dialogue(episode)
        seat = self.seat_of(dialogue) if seat is None else seat
        penalty = 0.0 if self.penalty is None else self.penalty(dialogue, seat)
        outcome = self.rule.outcome(result, seat, penalty=penalty)
        outcome = replace(outcome, score=max(self.score_range[0], outcome.score or 0.0))
        found = sorted({finding.kind for finding in result.injection if finding.seat == seat})
        if not found:
            return outcome
        outcome = replace(outcome, detail=f"text meant for the judge: {', '.join(found)}")
        if self.on_injection == "lowest":
            return replace(outcome, score=self.score_range[0], success=False)
        return outcome

    def seat_of(self, dialogue: JudgedDialogue) -> int:
        """Return the seat that an outcome is about.

        Raises:
            JudgeError: If the dialogue has no such seat.
        """
        seat = dialogue.seat if self.perspective == "player" else self.perspective
        if seat is None or not 0 <= seat < len(dialogue.names):
            raise JudgeError(
                f"perspective={self.perspective!r} names no seat of the dialogue between "
                f"{' and '.join(dialogue.names)} (player: {dialogue.seat}). "
                f"Set perspective to a seat from 0 to {len(dialogue.names) - 1}."
            )
        return seat

    def _prepare(self, episode: Judged, seats: Sequence[int] | None) -> JudgedDialogue | JudgeResult:
        """Return the dialogue to judge, or the result if there is nothing to judge."""
        if isinstance(episode, Episode) and episode.end == "failed":
            return JudgeResult(
                "invalid", self.name, detail=f"the episode failed: {episode.error or 'no reason recorded'}"
            )
        if seats is not None and not seats:
            raise ValueError("no seats to judge: name at least one, or leave the default")
        return as_dialogue(episode)

    def _flagged(self, result: JudgeResult, dialogue: JudgedDialogue) -> JudgeResult:
        """Add what the detector finds in the dialogue."""
        return replace(result, injection=find_injections(dialogue))


async def ask_each(
    ask: Callable[[Judged], Coroutine[Any, Any, _Answer]], episodes: Sequence[Judged], concurrency: int
) -> list[_Answer]:
    """Ask about every episode, so many at a time, in order; an error stops all."""
    slots = asyncio.Semaphore(concurrency)

    async def ask_in_turn(episode: Judged) -> _Answer:
        """Ask when there is room."""
        async with slots:
            return await ask(episode)

    tasks = [asyncio.create_task(ask_in_turn(episode)) for episode in episodes]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def as_dialogue(episode: Judged) -> JudgedDialogue:
    """Return the dialogue of an episode, or the dialogue itself.

    Raises:
        JudgeError: If the episode holds no dialogue or a broken one.
    """
    return episode if isinstance(episode, JudgedDialogue) else dialogue_of(episode)
