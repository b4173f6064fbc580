"""How far goals were reached: by rule, or by the word of a chat model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from istar_envs.episode import Episode, Outcome
from istar_envs.sotopia.book import MIX
from istar_judges.budget import Budget
from istar_judges.cache import VerdictCache
from istar_judges.dialogue import JudgedDialogue, dialogue_of
from istar_judges.dialogue_judge import DialogueJudge
from istar_judges.llm_judge import LlmJudge
from istar_judges.sotopia import SotopiaVerifier
from istar_trainer.social.options import SocialEvalArgs
from istar_trainer.social.sides import make_chat


@dataclass(frozen=True)
class Judging:
    """Who judges.

    Attributes:
        name: The judge, in which version.
        outcomes: Judges episodes, in order; scores are goal / 10.
        budget: What it spent, if it is an endpoint.
    """

    name: str
    outcomes: Callable[[Sequence[Episode]], list[Outcome]]
    budget: Budget | None = None


@contextmanager
def open_judging(args: SocialEvalArgs) -> Iterator[Judging]:
    """Make the judge, and close its connections and cache afterwards.

    Raises:
        ConfigError: If an option of a model judge is missing or cannot be used.
    """
    if args.judge == "verifier":
        verifier = SotopiaVerifier("return", args.data_dir or MIX)
        yield Judging(verifier.name, lambda episodes: [verifier(episode) for episode in episodes])
        return
    chat, budget = make_chat(args.endpoint("judge"), args)
    cache = None if args.judge_cache is None else VerdictCache(args.judge_cache)
    try:
        judge = LlmJudge(chat, args.judge_rubric, cache=cache)
        yield Judging(judge.name, lambda episodes: ask_once(judge, episodes), budget)
    finally:
        chat.close()
        if cache is not None:
            cache.close()


def ask_once(judge: DialogueJudge, episodes: Sequence[Episode]) -> list[Outcome]:
    """Judge episodes; where one answer scores both seats, equal dialogues are asked about once.

    Failed episodes get no verdict and cost nothing.
    """
    dialogues = [None if episode.end == "failed" else dialogue_of(episode) for episode in episodes]
    is_shared = judge.rubric.calls == "together"
    questions = {d: replace(d, seat=None) if is_shared else d for d in dialogues if d is not None}
    asked = list(dict.fromkeys(questions.values()))
    results = dict(zip(asked, judge.judge_many(asked), strict=True))

    def outcome(dialogue: JudgedDialogue | None, episode: Episode) -> Outcome:
        """Read the seat of an episode out of the answer."""
        if dialogue is None:
            return Outcome("invalid", judge.name, detail=f"the episode failed: {episode.error}")
        return judge.outcome(dialogue, results[questions[dialogue]])

    return [outcome(*pair) for pair in zip(dialogues, episodes, strict=True)]
