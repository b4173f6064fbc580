"""A model as judge: dialogue → question → answer → scores, or an honest reason why there are none.

Nothing is clamped and no other model steps in. Asking is ``asking.py``; what it costs is ``budget.py``.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Unpack

from istar_envs.chat import NO_USAGE
from istar_envs.errors import ConfigError
from istar_judges.asking import GREEDY, Answer, Asker, Chat, Sampling
from istar_judges.cache import VerdictCache
from istar_judges.dialogue import JudgedDialogue
from istar_judges.dialogue_judge import DialogueJudge, Judged, JudgeOptions
from istar_judges.injection import Finding, find_injections
from istar_judges.prompting import ask, load_prompt, seat_labels
from istar_judges.results import JudgeResult
from istar_judges.rubric import Rubric, load_rubric

_VERSION: Final = 1


class LlmJudge(DialogueJudge):
    """Judges dialogues by asking a model.

    Args:
        chat: The model.
        rubric: What is asked: a ``Rubric``, or what ``load_rubric`` takes.
        prompt: Name or path of the texts around the record.
        sampling: How answers are sampled.
        max_reasks: How often the model is asked again after an answer that is no verdict.
        snapshot: The exact model that every answer must come from, by the endpoint's word; an answer
            from another one is no verdict. None accepts all.
        cache: Where verdicts are kept; None keeps none. Judging raises ``CacheMiss`` if it is read-only
            and does not hold the verdict.
        options: ``perspective``, ``rule``, ``on_injection`` and ``penalty`` of ``DialogueJudge``.

    Raises:
        ConfigError: If an option is unknown or out of range, or the rubric lacks the rule's dimension.
    """

    def __init__(
        self,
        chat: Chat,
        rubric: Rubric | str = "sotopia-v1",
        *,
        prompt: str = "judge-v1",
        sampling: Sampling = GREEDY,
        max_reasks: int = 2,
        snapshot: str | None = None,
        cache: VerdictCache | None = None,
        **options: Unpack[JudgeOptions],
    ) -> None:
        if max_reasks < 0 or sampling.max_tokens < 1:
            raise ConfigError(
                f"judge: max_reasks = {max_reasks} must be >= 0, max_tokens = {sampling.max_tokens} >= 1."
            )
        rubric = load_rubric(rubric) if isinstance(rubric, str) else rubric
        self.chat, self.prompt = chat, load_prompt(prompt)
        self.model = snapshot or str(chat.identity["model"])
        name = f"llm-judge/{_VERSION} {self.model} {rubric.version} {self.prompt.version}"
        super().__init__(name, rubric, concurrency=chat.concurrency, **options)
        self._asker = Asker(
            chat,
            self.rubric,
            self.prompt,
            sampling=sampling,
            max_reasks=max_reasks,
            snapshot=snapshot,
            cache=cache,
        )

    async def ajudge(
        self,
        episode: Judged,
        *,
        seats: Sequence[int] | None = None,
        sample: int = 0,
        swapped: bool = False,
    ) -> JudgeResult:
        """Judge one episode; see ``DialogueJudge.ajudge``.

        Raises:
            JudgeError: If the episode holds no dialogue, or the read-only cache no verdict on it.
        """
        dialogue = self._prepare(episode, seats)
        if isinstance(dialogue, JudgeResult):
            return dialogue
        labels = seat_labels(len(dialogue.names), swapped=swapped)

        async def answer(scored: tuple[int, ...]) -> Answer:
            """Ask about some seats."""
            messages = ask(self.prompt, self.rubric, dialogue, scored, swapped=swapped)
            return await self._asker.answer(messages, sorted(labels[seat] for seat in scored), sample)

        answers, found = await asyncio.gather(
            asyncio.gather(*map(answer, self._calls(dialogue, seats))), _look_meanwhile(dialogue)
        )
        return replace(self._merge(answers, labels), injection=found)

    def _calls(self, dialogue: JudgedDialogue, seats: Sequence[int] | None) -> list[tuple[int, ...]]:
        """Say which seats are scored in which call."""
        if self.rubric.calls == "together":
            return [tuple(range(len(dialogue.names)) if seats is None else seats)]
        return [(seat,) for seat in ((self.seat_of(dialogue),) if seats is None else seats)]

    def _merge(self, answers: Sequence[Answer], labels: Sequence[str]) -> JudgeResult:
        """Put the answers of one dialogue together; one without a verdict leaves all without."""
        bad = next((answer for answer in answers if answer.status != "ok"), None)
        scores = {labels.index(label): seat for answer in answers for label, seat in answer.scores.items()}
        return JudgeResult(
            status="ok" if bad is None else bad.status,
            source=self.name,
            scores={} if bad else dict(sorted(scores.items())),
            detail="" if bad is None else bad.detail,
            failures=tuple(cause for answer in answers for cause in answer.failures),
            usage=sum((answer.usage for answer in answers), NO_USAGE),
            model=(bad or answers[0]).model,
            fingerprint=(bad or answers[0]).fingerprint,
            is_cached=all(answer.is_cached for answer in answers),
        )


async def _look_meanwhile(dialogue: JudgedDialogue) -> tuple[Finding, ...]:
    """Look for text that is meant for the judge while the judge is thinking."""
    await asyncio.sleep(0)  # the questions of all episodes go out first
    return find_injections(dialogue)


def require_distinct(training: LlmJudge, evaluation: LlmJudge) -> None:
    """Refuse to measure what was trained against a judge with the same judge.

    Raises:
        ConfigError: If both ask the same model.
    """
    if training.model == evaluation.model:
        raise ConfigError(
            f"the model {training.model!r} judges both training and evaluation: a policy learns the taste of "
            "its judge, so the same judge overrates it. Choose another model for one of them."
        )
