"""Model text into action text by an exact grammar.

A reply is read in linear time and never raises: what cannot be read becomes an ``InvalidAction``
with a reason. Which action texts exist is the world's business (``language.py``), not decided here.
"""

from dataclasses import dataclass
from typing import Literal

from istar_envs.language import InvalidAction

Grammar = Literal["action", "think_action"]
"""``action``: an answer block; ``think_action``: a thought block, then an answer block."""

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that follows the grammar.

    Attributes:
        actions: Text of each action, outer white space removed; at least one.
        thought: Text of the thought blocks, or None without any.
    """

    actions: tuple[str, ...]
    thought: str | None


def parse_reply(
    text: str, grammar: Grammar, *, separator: str = "||", max_actions: int = 1
) -> Reply | InvalidAction:
    """Read the last complete ``<action>…</action>`` block outside every ``<think>…</think>`` block.

    Tags may be written in any case. A tag quoted inside a thought does not count, and an unclosed
    thought swallows everything after it.

    Args:
        text: The model's reply, of any length and content.
        grammar: Whether a thought is required before the answer.
        separator: What separates several actions in one block.
        max_actions: How many actions one reply may hold.

    Returns:
        The reply's parts, or why it could not be read.

    Example:
        >>> parse_reply("<think>up?</think><action>down</action>", "think_action").actions
        ('down',)
    """
    split = _split_thoughts(text)
    if isinstance(split, InvalidAction):
        return split
    thought, first_answer, rest = split
    if grammar == "think_action" and (thought is None or first_answer.strip()):
        return InvalidAction("the reply must begin with a <think>…</think> block")
    lowered = _lower(rest)
    close = lowered.rfind("</action>")
    start = lowered.rfind("<action>", 0, max(close, 0))
    if close < 0 or start < 0:
        return InvalidAction("no complete <action>…</action> block outside the thought")
    body = rest[start + len("<action>") : close]
    actions = tuple(part.strip() for part in body.split(separator)) if max_actions > 1 else (body.strip(),)
    if not all(actions):
        return InvalidAction("the <action> block is empty or has an empty part")
    if len(actions) > max_actions:
        return InvalidAction(f"{len(actions)} actions in one reply; at most {max_actions} are allowed")
    return Reply(actions, thought)


def format_reply(actions: tuple[str, ...], thought: str | None = None, *, separator: str = "||") -> str:
    """Write a reply that ``parse_reply`` reads back to the same parts."""
    answer = f"<action>{separator.join(actions)}</action>"
    return answer if thought is None else f"<think>{thought}</think>{answer}"


def shorten(text: str, limit: int = _SHOWN) -> str:
    """Cut text for an error message or a reason, and show control characters as escapes."""
    return repr(text if len(text) <= limit else text[:limit] + "…")


def _lower(text: str) -> str:
    """Lower-case ASCII only, so that indices into the text stay valid."""
    return text.translate(_ASCII_LOWER)


_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _split_thoughts(text: str) -> tuple[str | None, str, str] | InvalidAction:
    """Cut the thought blocks out: (thoughts or None, text before the first one, text outside)."""
    lowered = _lower(text)
    thoughts: list[str] = []
    outside: list[str] = []
    position = 0
    while (start := lowered.find("<think>", position)) >= 0:
        outside.append(text[position:start])
        stop = lowered.find("</think>", start)
        if stop < 0:
            return InvalidAction("the <think> block is never closed")
        thoughts.append(text[start + len("<think>") : stop])
        position = stop + len("</think>")
    outside.append(text[position:])
    return ("\n".join(thoughts) if thoughts else None), outside[0], "\n".join(outside)
