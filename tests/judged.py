"""Dialogues, episodes and models for the tests of the judges."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bad_endpoint import right_scores
from istar_envs.chat import ChatError, ChatReply, Usage
from istar_envs.episode import Episode, Transition
from istar_judges.dialogue import JudgedDialogue

NAMES = ("Ann Lee", "Bo Roe")


def make_dialogue(
    *words: str, goals: tuple[int, int] = (7, 3), seat: int | None = 0, background: str = "Two meet."
) -> JudgedDialogue:
    """Both speak in turn, seat 0 first; a goal's number is what the scripted models score it with."""
    turns = tuple(
        (n % 2, f'{NAMES[n % 2]} said: "{text}"') for n, text in enumerate(words or ("Hi.", "Hello."))
    )
    return JudgedDialogue(background, turns, tuple(f"Reach #{goal}" for goal in goals), NAMES, seat=seat)


def make_social_episode(
    *words: str, goals: tuple[int, int] = (7, 3), seat: int | None = 0, **fields: Any
) -> Episode:
    """The dialogue of ``make_dialogue`` as an environment records it."""
    dialogue = make_dialogue(*words, goals=goals, seat=seat)
    record = {
        "background": dialogue.background,
        "names": list(dialogue.names),
        "goals": list(dialogue.seat_goals),
        "seat": seat,
        "turns": [{"seat": seat, "kind": "speak", "text": text} for seat, text in dialogue.turns],
    }
    last = Transition("o", "<action>say: hi</action>", "say: hi", 0.0, True, "k", info={"dialogue": record})
    return Episode(
        **{
            "env_id": "istar/Sotopia-v0",
            "task_id": "bargaining/1/seat0",
            "task": "Sell it.",
            "transitions": (last,),
            "success": False,
            "score": 0.0,
            "end": "terminated",
            **fields,
        }
    )


class ScriptedModel:
    """Says what a script, or a function of the request, tells it to; without one it judges rightly."""

    def __init__(
        self,
        *script: str | ChatError | None,
        answer: Callable[[Mapping[str, Any]], str] | None = None,
        model: str = "judge-2025",
        finish_reason: str = "stop",
        **settings: Any,
    ) -> None:
        self.script = list(script)
        self.identity = {"model": model, **settings}
        self.concurrency = 8
        self.requests: list[dict[str, Any]] = []
        self._answer = answer or (lambda request: json.dumps(right_scores(request)))
        self._finish_reason = finish_reason

    async def acomplete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        response_schema: Mapping[str, Any] | None,
        **sampling: Any,
    ) -> ChatReply:
        await asyncio.sleep(0)
        wanted = {"json_schema": {"schema": response_schema}}
        request = {"messages": list(messages), "response_format": wanted, **sampling}
        self.requests.append(request)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, ChatError):
            raise step
        text = self._answer(request) if step is None else step
        return ChatReply(text, self.identity["model"], self._finish_reason, Usage(100, 20), "fp_1")
