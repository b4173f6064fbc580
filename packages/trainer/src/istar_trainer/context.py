"""Messages into prompt ids, token in and token out.

A sampled reply is never decoded and encoded again: in a full dialogue the next prompt is the last
prompt, the sampled ids and the ids of what the environment said, and the template is checked to
agree (spec §7.2).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from istar_envs.agent import Message
from istar_envs.errors import ConfigError


class Context(Protocol):
    """How one trajectory's messages become prompt ids."""

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids that ask for the next step."""
        ...

    def responded(self, response_ids: Sequence[int]) -> None:
        """Take note of the sampled ids of the step."""
        ...


class WindowContext:
    """Each step's prompt is rendered anew from its messages.

    Args:
        tokenizer: Hugging Face tokenizer with a chat template.
        cache: Ids by rendered text, shared by trajectories that see the same.
    """

    def __init__(self, tokenizer: Any, cache: dict[str, list[int]]) -> None:
        self._tokenizer = tokenizer
        self._cache = cache

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids that ask for the next step."""
        key = repr(messages)
        if key not in self._cache:
            self._cache[key] = encode(self._tokenizer, render(self._tokenizer, messages))
        return self._cache[key]

    def responded(self, response_ids: Sequence[int]) -> None:
        """Nothing is carried over: the next prompt is rendered from text."""


class FullContext:
    """One growing dialogue; earlier ids are kept as they were sampled.

    Args:
        tokenizer: Hugging Face tokenizer with a chat template that only ever appends.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._text = ""
        self._ended = False

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return all ids so far and those of the newest message.

        Raises:
            ConfigError: If the chat template rewrites earlier turns.
        """
        text = render(self._tokenizer, messages)
        before = self._text
        if self._ids:
            before += str(messages[-2]["content"])
        if not text.startswith(before):
            raise ConfigError(
                "the tokenizer's chat template rewrites earlier turns (it may drop reasoning or strip "
                "white space), so a full dialogue cannot keep the sampled ids. Use a template that only "
                "appends, or env.window >= 0."
            )
        added = text[len(before) :]
        if self._ended:
            added = added.removeprefix(self._tokenizer.eos_token)
        self._ids = self._ids + encode(self._tokenizer, added)
        self._text = text
        return list(self._ids)

    def responded(self, response_ids: Sequence[int]) -> None:
        """Keep the sampled ids as part of the dialogue."""
        self._ids = [*self._ids, *response_ids]
        self._ended = bool(response_ids) and response_ids[-1] == self._tokenizer.eos_token_id


def render(tokenizer: Any, messages: Sequence[Message]) -> str:
    """Render messages by the tokenizer's chat template, up to where the assistant begins."""
    return str(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Encode rendered text; special tokens in it are recognized, none are added."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
