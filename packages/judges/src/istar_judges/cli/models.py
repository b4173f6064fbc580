"""Options of the commands that ask a model, and how the model is asked."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from istar_envs.chat import ChatClient
from istar_envs.episode import Episode
from istar_envs.errors import ConfigError
from istar_judges.agreement.attacks import ATTACKS
from istar_judges.asking import Sampling
from istar_judges.budget import Budget
from istar_judges.cache import VerdictCache
from istar_judges.dialogue import dialogue_of
from istar_judges.dialogue_judge import Judged
from istar_judges.fakes import ReplayJudge
from istar_judges.llm_judge import LlmJudge
from istar_judges.outcome_files import JudgedEpisode
from istar_judges.panel import Panel
from istar_judges.results import GOAL, ScoreRule

_Job = tuple[str, Episode, Judged, tuple[int | None, ...], str | None]
"""Trajectory id, episode, what is judged, seats to report, attack."""


@dataclass(frozen=True)
class Asked:
    """Which model is asked what, and how."""

    model: str | None = None
    """The model to ask, by the endpoint's name; a dated snapshot for results that count."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """Address of an OpenAI-compatible endpoint."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    snapshot: str | None = None
    """The exact model that must answer, if the name is an alias."""
    rubric: str = "goal-v1"
    """What is asked: goal-v1 or sotopia-v1, or either with each (a call per seat) or plus (with the meaning
    of each part of a range) before the v1, or a .toml file of your own."""
    dimension: str = GOAL.dimension
    """The dimension that becomes the score, or overall for the mean of all."""
    divisor: float = GOAL.divisor
    """The written score is the judged one divided by this."""
    threshold: float = GOAL.threshold
    """Judged scores above it are successes."""
    samples: int = 1
    """How often each episode is judged; the median counts."""
    both_orders: tyro.conf.FlagCreatePairsOff[bool] = False
    """Judge each sample in both orders of the seats."""
    temperature: float = 0.0
    """Sampling temperature."""
    max_tokens: int | None = None
    """Most tokens to spend, prompts and answers together."""
    concurrency: int = 16
    """Calls at a time."""

    @property
    def rule(self) -> ScoreRule:
        """How scores become outcomes.

        Raises:
            ConfigError: If the divisor is out of range.
        """
        return ScoreRule(self.dimension, self.divisor, self.threshold)

    @contextmanager
    def open_panel(self, cache: VerdictCache | None = None) -> Iterator[Panel]:
        """Make the judge, and close its connections afterwards.

        Args:
            cache: Where verdicts are kept; one that is read-only answers alone, without any call.

        Raises:
            ConfigError: If an option is out of range.
        """
        options: dict[str, Any] = {
            "rubric": self.rubric,
            "sampling": Sampling(temperature=self.temperature),
            "snapshot": self.snapshot,
            "rule": self.rule,
        }
        with ExitStack() as stack:
            if cache is not None and cache.read_only:
                judge: LlmJudge = ReplayJudge(cache, self.model or "", **options)
            else:
                chat = self._chat()
                stack.callback(chat.close)
                judge = LlmJudge(chat, cache=cache, **options)
            yield Panel(judge, samples=self.samples, both_orders=self.both_orders)

    def _chat(self) -> ChatClient:
        return ChatClient(
            self.base_url,
            self.model or "",
            api_key_env=self.api_key_env,
            concurrency=self.concurrency,
            meter=None if self.max_tokens is None else Budget(max_tokens=self.max_tokens),
        )


@dataclass(frozen=True)
class Model(Asked):
    """Judge dialogues by asking a model instead."""

    seats: Literal["player", "both"] = "player"
    """Whose scores are written: the seat that was played, or both, one line each."""
    attacks: tyro.conf.FlagCreatePairsOff[bool] = False
    """Judge each episode under every attack as well: padding, claims, false summaries, flattery, markup."""
    cache: Path | None = None
    """File in which verdicts are kept, so that a second pass is free."""
    offline: tyro.conf.FlagCreatePairsOff[bool] = False
    """Take verdicts from the cache alone."""

    def judge(self, episodes: Mapping[str, Episode]) -> list[JudgedEpisode]:
        """Ask about every episode, and about its attacked versions if wanted.

        Raises:
            ConfigError: If an option is out of range or contradicts another.
            JudgeError: If an episode holds no dialogue, or the cache alone was to know a verdict.
        """
        jobs = [job for key, episode in episodes.items() for job in self._jobs(key, episode)]
        with self._open_cache() as cache, self.open_panel(cache) as panel:
            ballots = panel.judge_many([judged for _, _, judged, _, _ in jobs], seats=self._seats)
        return [
            JudgedEpisode.of(key, episode, tally.outcome, seat=seat, attack=attack, votes=tally.votes)
            for (key, episode, judged, seats, attack), ballot in zip(jobs, ballots, strict=True)
            for seat in seats
            for tally in [panel.tally(judged, ballot, seat)]
        ]

    @property
    def _seats(self) -> tuple[int, ...] | None:
        return (0, 1) if self.seats == "both" else None

    def _jobs(self, key: str, episode: Episode) -> Iterator[_Job]:
        if episode.end == "failed":
            yield key, episode, episode, (None,), None
            return
        dialogue = dialogue_of(episode)
        if self._seats is None and dialogue.seat is None:
            raise ConfigError(
                f"the episode of task {episode.task_id} is about no seat in particular. Give --seats both."
            )
        seats = self._seats or (dialogue.seat or 0,)
        yield key, episode, dialogue, seats, None
        if self.attacks:
            for name, attack in ATTACKS.items():
                yield from ((key, episode, attack(dialogue, seat), (seat,), name) for seat in seats)

    @contextmanager
    def _open_cache(self) -> Iterator[VerdictCache | None]:
        """Open the cache, if there is to be one, and close it afterwards."""
        if self.offline and self.cache is None:
            raise ConfigError("--offline takes verdicts from a cache; name its file with --cache.")
        if self.cache is None:
            yield None
            return
        with VerdictCache(self.cache, read_only=self.offline) as cache:
            yield cache
