"""Who says how the episodes of a run went: a verifier, or a model that is watched by canaries.

A model's verdicts are kept, so that a resumed run gets the same ones. An episode without a verdict has no
outcome and counts in no mean; too many stop the run.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import gymnasium as gym

from istar_envs.chat import ChatClient
from istar_envs.episode import Episode, Outcome
from istar_envs.errors import ConfigError
from istar_judges.asking import Sampling
from istar_judges.base import Verifier
from istar_judges.budget import Budget
from istar_judges.cache import VerdictCache
from istar_judges.dialogue import FIELD
from istar_judges.drift import FAILED_LIMIT, CanaryReport, canary_report, judge_canaries
from istar_judges.errors import JudgeUnavailable
from istar_judges.llm_judge import LlmJudge
from istar_judges.outcome_files import JudgedEpisode, read_outcomes
from istar_judges.pair_files import write_lines
from istar_judges.panel import Panel
from istar_judges.results import ScoreRule
from istar_judges.verifiers import make_verifier, verifier_of
from istar_trainer.config import RunConfig
from istar_trainer.config_judge import JudgeConfig
from istar_trainer.folder import RunFolder

_LOG: Final = "judge.jsonl"
"""What each round of judging cost and found. It is never rewound: what was spent stays spent."""
_CANARIES: Final = "canaries"
"""Folder of the passes over the canaries, by iteration, as ``istar-judge score`` writes them."""


class Judging(Protocol):
    """Says how the episodes of a run went."""

    def outcomes(self, episodes: Sequence[Episode], iteration: int) -> list[Outcome]:
        """Judge the episodes of an iteration, in order."""
        ...

    def watch(self, iteration: int) -> dict[str, float]:
        """Return metrics about the judge itself, at the end of an iteration."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class RuleJudging:
    """Judges by a verifier."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def outcomes(self, episodes: Sequence[Episode], iteration: int) -> list[Outcome]:
        """Judge the episodes of an iteration, in order."""
        return [self._verifier(episode) for episode in episodes]

    def watch(self, iteration: int) -> dict[str, float]:
        """Return nothing: rules do not drift."""
        return {}

    def close(self) -> None:
        """Close nothing."""


class ModelJudging:
    """Judges by a model, many episodes at a time.

    Args:
        config: The judge.
        scale: ``success`` makes the outcome 1 or 0, ``return`` the judged score over ``config.divisor``.
        folder: The run's folder, with what was spent and what the canaries got before.

    Raises:
        ConfigError: If an option names nothing that exists, or the cache cannot be opened.
    """

    def __init__(self, config: JudgeConfig, scale: str, folder: RunFolder) -> None:
        self._config, self._scale, self._folder = config, scale, folder
        before = folder.records(_LOG)
        spent = sum(line["tokens"] for line in before)
        left = None if config.max_tokens is None else max(0, config.max_tokens - spent)
        self._meter, self._counted = Budget(max_tokens=left), 0
        self._tokens = 0
        passes = map(read_outcomes, sorted((folder.path / _CANARIES).glob("*.jsonl")))
        self._reference = next(filter(_is_usable, passes), ())
        self._chat = make_chat(config, self._meter)
        self._cache = VerdictCache(config.cache or folder.path / "verdicts.sqlite")
        self._panel = make_panel(config, self._chat, self._cache)
        self._canary_panel = make_panel(config, self._chat, None)

    def outcomes(self, episodes: Sequence[Episode], iteration: int) -> list[Outcome]:
        """Judge the episodes of an iteration, in order.

        Raises:
            JudgeUnavailable: If too many of those that did not break get no verdict.
        """
        found = self._panel.outcomes(episodes)
        self._note(iteration, statuses=dict(Counter(outcome.status for outcome in found)))
        whole = [o for e, o in zip(episodes, found, strict=True) if e.end != "failed"]
        require_verdicts(whole, self._config.max_failed_frac)
        return [self._scaled(outcome) for outcome in found]

    def watch(self, iteration: int) -> dict[str, float]:
        """Judge the canaries if it is time, and return what judging cost and what they say."""
        metrics: dict[str, float] = {}
        every = self._config.canaries_every
        if every and iteration % every == 0:
            judged = judge_canaries(self._canary_panel)
            self._note(iteration, canaries=dict(Counter(record.status for record in judged)))
            path = self._folder.path / _CANARIES / f"{iteration:06d}.jsonl"
            path.parent.mkdir(exist_ok=True)
            write_lines(path, (record.to_json() for record in judged), overwrite=True)
            report = canary_report(judged, self._reference, rule=self._panel.judge.rule)
            metrics = _canary_metrics(report, is_compared=bool(self._reference))
            self._reference = self._reference or (judged if _is_usable(judged) else ())
        metrics["judge/tokens"] = self._tokens
        self._tokens = 0
        return metrics

    def close(self) -> None:
        """Close the cache and the connections."""
        self._cache.close()
        self._chat.close()

    def _scaled(self, outcome: Outcome) -> Outcome:
        is_success = self._scale == "success" and outcome.success is not None
        return replace(outcome, score=float(bool(outcome.success))) if is_success else outcome

    def _note(self, iteration: int, **found: Any) -> None:
        """Write down what was found, and what was spent since the last line."""
        usage = self._meter.spent.usage
        total = usage.prompt_tokens + usage.completion_tokens
        tokens, self._counted = total - self._counted, total
        self._tokens += tokens
        self._folder.append(_LOG, [{"iteration": iteration, "tokens": tokens, **found}])


def make_judging(config: RunConfig, folder: RunFolder) -> Judging:
    """Make what judges a run's episodes."""
    if config.verifier == "llm":
        return ModelJudging(config.judge, config.outcome, folder)
    return RuleJudging(verifier_for(config))


def check_judging(config: RunConfig, env: gym.Env[Any, Any]) -> None:
    """See that what judges a run exists and can judge its episodes.

    Raises:
        ConfigError: If it does not, or a model is to judge a world without dialogues.
    """
    if config.verifier != "llm":
        verifier_for(config)
        return
    make_panel(config.judge, make_chat(config.judge, None), None)
    language: Any = env.unwrapped.language  # type: ignore[attr-defined]
    if FIELD not in getattr(language, "recorded_info", ()):
        raise ConfigError(
            f"verifier: llm judges dialogues, and episodes of {config.env.id} hold none. "
            "Play istar/Sotopia-v0, or leave verifier out for the environment's own."
        )


def verifier_for(config: RunConfig) -> Verifier:
    """Make the verifier of a run: the configured one, or that of its environment."""
    name = config.verifier or verifier_of(config.env.id)
    return make_verifier(name, config.outcome, config.env.kwargs)


def make_chat(config: JudgeConfig, meter: Budget | None) -> ChatClient:
    """Make the client of a judge's endpoint; nothing is opened yet."""
    return ChatClient(
        config.base_url,
        config.model,
        api_key_env=config.api_key_env,
        timeout_s=config.timeout_s,
        concurrency=config.concurrency,
        meter=meter,
    )


def make_panel(config: JudgeConfig, chat: ChatClient, cache: VerdictCache | None) -> Panel:
    """Make a judge as configured.

    Raises:
        ConfigError: If the rubric does not exist or lacks the dimension.
    """
    judge = LlmJudge(
        chat,
        config.rubric,
        sampling=Sampling(temperature=config.temperature),
        snapshot=config.snapshot,
        cache=cache,
        rule=ScoreRule(config.dimension, config.divisor, config.threshold),
        on_injection=config.on_injection,
    )
    return Panel(judge, samples=config.samples, both_orders=config.both_orders)


def require_verdicts(outcomes: Sequence[Outcome], max_failed_frac: float) -> None:
    """Stop when too many episodes got no verdict.

    Raises:
        JudgeUnavailable: If their share is above ``max_failed_frac``, or nothing was judged.
    """
    failed = [outcome for outcome in outcomes if outcome.status != "ok"]
    if failed and (len(failed) > max_failed_frac * len(outcomes) or len(failed) == len(outcomes)):
        counts = Counter(outcome.status for outcome in failed)
        causes = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
        raise JudgeUnavailable(
            f"{len(failed)} of {len(outcomes)} episodes got no verdict ({causes}), more than "
            f"judge.max_failed_frac={max_failed_frac}. The first: {failed[0].detail.rstrip('.')}. "
            "See that the endpoint answers and the budget is not spent, then go on with --resume."
        )


def _canary_metrics(report: CanaryReport, *, is_compared: bool) -> dict[str, float]:
    metrics = {
        "judge/canary_error": report.error,
        "judge/canary_contradicted_frac": report.contradicted_frac,
        "judge/canary_failed_frac": report.failed_frac,
        "judge/canary_drifted": float(bool(report.findings)),
    }
    if is_compared:
        metrics |= {"judge/canary_shift": report.shift, "judge/canary_changed_frac": report.changed_frac}
    return metrics


def _is_usable(judged: Sequence[JudgedEpisode]) -> bool:
    """Whether later passes can be compared with this one."""
    return bool(judged) and canary_report(judged).failed_frac <= FAILED_LIMIT
