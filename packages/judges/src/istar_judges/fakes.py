"""Judges for tests and work without a network: one that follows a rule, one that only remembers.

Public, because whoever builds on judges needs them too. Neither calls a model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Unpack

from istar_envs.chat import ChatMessages, ChatReply
from istar_envs.errors import ConfigError
from istar_envs.seeding import CounterRng, derive_seed
from istar_judges.cache import VerdictCache
from istar_judges.dialogue import JudgedDialogue
from istar_judges.dialogue_judge import DialogueJudge, Judged, JudgeOptions, words_of
from istar_judges.errors import JudgeError
from istar_judges.injection import find_injections
from istar_judges.llm_judge import LlmJudge
from istar_judges.results import JudgeResult
from istar_judges.rubric import Dimension, Rubric
from istar_judges.verdict import Score

_VERSION: Final = 1
GoalRule = Callable[[JudgedDialogue, int], float]
"""From a dialogue and a seat to how far the goal is reached, 0 to 10."""

_MOVE: Final = re.compile(r" \[action\] (propose .+|accept)$", re.IGNORECASE)


def deal_rule(dialogue: JudgedDialogue, seat: int) -> float:
    """Score 8 if an action ``propose …`` is answered by the other's ``accept``, 2 if not, 0 for a mute.

    Only actions count; what anybody says about a deal does not.
    """
    proposer = None
    for speaker, text in dialogue.turns:
        move = _MOVE.search(text)
        if move and move[1].casefold() == "accept" and proposer is not None and proposer != speaker:
            return 8.0
        if move and move[1].casefold() != "accept":
            proposer = speaker
    return 2.0 if words_of(dialogue, seat) else 0.0


class StubJudge(DialogueJudge):
    """A judge by rule, with weaknesses to order: equal dialogues get equal scores in every process.

    The goal's score is the rule's plus the biases, rounded and kept within the range. Every other
    dimension scores 0.

    Args:
        rubric: What is scored.
        rule_of_goal: How far the goal is reached.
        noise: Standard deviation of what each sample adds, in points.
        length_bias: Points for each 100 words that the seat said.
        claim_bias: Points if the detector finds text of the seat that is meant for the judge.
        first_bias: Points for the seat that is presented first.
        seed: Which noise.
        options: ``perspective``, ``rule``, ``on_injection`` and ``penalty`` of ``DialogueJudge``.

    Raises:
        ConfigError: As ``DialogueJudge`` does.
    """

    def __init__(
        self,
        rubric: Rubric | str = "goal-v1",
        *,
        rule_of_goal: GoalRule = deal_rule,
        noise: float = 0.0,
        length_bias: float = 0.0,
        claim_bias: float = 0.0,
        first_bias: float = 0.0,
        seed: int = 0,
        **options: Unpack[JudgeOptions],
    ) -> None:
        super().__init__(f"stub-judge/{_VERSION}", rubric, **options)
        self.rule_of_goal, self.noise, self.seed = rule_of_goal, noise, seed
        self.length_bias, self.claim_bias, self.first_bias = length_bias, claim_bias, first_bias

    async def ajudge(
        self,
        episode: Judged,
        *,
        seats: Sequence[int] | None = None,
        sample: int = 0,
        swapped: bool = False,
    ) -> JudgeResult:
        """Judge one episode; see ``DialogueJudge.ajudge``."""
        dialogue = self._prepare(episode, seats)
        if isinstance(dialogue, JudgeResult):
            return dialogue
        wanted = range(len(dialogue.names)) if seats is None else seats
        scores = {seat: self._scores(dialogue, seat, sample, swapped) for seat in wanted}
        return self._flagged(JudgeResult("ok", self.name, scores), dialogue)

    def _scores(self, dialogue: JudgedDialogue, seat: int, sample: int, swapped: bool) -> Mapping[str, Score]:
        is_first = seat == (len(dialogue.names) - 1 if swapped else 0)
        goal = (
            self.rule_of_goal(dialogue, seat)
            + self.length_bias * words_of(dialogue, seat) / 100
            + self.claim_bias * bool(find_injections(dialogue, (seat,)))
            + self.first_bias * is_first
            + self.noise * _gauss(derive_seed(self.seed, repr(dialogue), seat, sample, swapped))
        )
        return {d.key: _score(d, goal if d.key == "goal" else 0.0) for d in self.rubric.dimensions}


class ReplayJudge(LlmJudge):
    """A model's verdicts out of a cache alone; a verdict that is not there is an error, never a call.

    Args:
        cache: The cache, opened to be read only.
        model: The model whose verdicts are in it.
        identity: What else the ``identity`` of the model's client held; by default that of a
            ``ChatClient`` with default options.
        options: Those of ``LlmJudge``, equal to the ones the verdicts were reached with.

    Raises:
        ConfigError: If the cache could be written to, or as ``LlmJudge`` does.
    """

    def __init__(
        self, cache: VerdictCache, model: str, *, identity: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        if not cache.read_only:
            raise ConfigError(f"replay judge: open the verdict cache {cache.path} with read_only=True.")
        chat = _NoChat({"structured": "json_schema", "extra": {}, **(identity or {}), "model": model})
        super().__init__(chat, cache=cache, **options)


class _NoChat:
    """Stands for a model that must not be called."""

    concurrency: Final = 32

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self.identity = identity

    async def acomplete(self, messages: ChatMessages, **_: Any) -> ChatReply:
        raise JudgeError(
            f"a replay judge was to call {self.identity['model']!r} with {len(messages)} messages"
        )


def _score(dimension: Dimension, value: float) -> Score:
    return Score(min(dimension.high, max(dimension.low, round(value))), "by rule")


def _gauss(seed: int) -> float:
    """Draw from nearly a standard normal distribution: twelve uniform numbers, centred."""
    rng = CounterRng(seed)
    return sum(rng.random() for _ in range(12)) - 6.0
