"""Messages into prompts, token in and token out.

A sampled reply is never decoded and encoded again: in a full dialogue the next prompt is the last
prompt, the sampled ids and the ids of what the environment said, and the template is checked to
agree (spec §7.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from istar_envs.agent import Message
from istar_envs.errors import ConfigError
from istar_trainer.pictures import Picture, PlacedPicture, look, reader_of, spread


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a reply is conditioned on.

    Attributes:
        ids: Token ids, with placeholders where pictures stand.
        pictures: The pictures.
    """

    ids: list[int]
    pictures: tuple[PlacedPicture, ...] = ()


class Context(Protocol):
    """How one trajectory's messages become prompts."""

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Return what asks for the next step."""
        ...

    def responded(self, response_ids: Sequence[int]) -> None:
        """Take note of the sampled ids of the step."""
        ...


class WindowContext:
    """Each step's prompt is rendered anew from its messages.

    Args:
        tokenizer: Hugging Face tokenizer with a chat template.
        cache: Prompts by messages, shared by trajectories that see the same.
    """

    def __init__(self, tokenizer: Any, cache: dict[str, Prompt]) -> None:
        self._tokenizer = tokenizer
        self._cache = cache

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Return what asks for the next step."""
        messages, pictures = look(self._tokenizer, messages)
        key = repr(messages)
        if key not in self._cache:
            self._cache[key] = encode_prompt(
                self._tokenizer, render(self._tokenizer, messages), pictures, after=Prompt([])
            )
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
        self._said = Prompt([])
        self._text = ""
        self._ended = False

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Return all that was said so far and the newest message.

        Raises:
            ConfigError: If the chat template rewrites earlier turns.
        """
        messages, pictures = look(self._tokenizer, messages)
        text = render(self._tokenizer, messages)
        before = self._text
        if self._said.ids:
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
        new = pictures[len(self._said.pictures) :]
        self._said = encode_prompt(self._tokenizer, added, new, after=self._said)
        self._text = text
        return Prompt(list(self._said.ids), self._said.pictures)

    def responded(self, response_ids: Sequence[int]) -> None:
        """Keep the sampled ids as part of the dialogue."""
        self._said = Prompt([*self._said.ids, *response_ids], self._said.pictures)
        self._ended = bool(response_ids) and response_ids[-1] == self._tokenizer.eos_token_id


def render(tokenizer: Any, messages: Sequence[Message]) -> str:
    """Render messages by the tokenizer's chat template, up to where the assistant begins."""
    return str(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Encode rendered text; special tokens in it are recognized, none are added."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_prompt(tokenizer: Any, text: str, pictures: Sequence[Picture], *, after: Prompt) -> Prompt:
    """Encode rendered text with pictures, and append it to what was there before."""
    ids, reader = encode(tokenizer, text), reader_of(tokenizer)
    if reader is None or not pictures:
        return Prompt([*after.ids, *ids], after.pictures)
    longer, placed = spread(ids, pictures, reader.token_id, start=len(after.ids))
    return Prompt([*after.ids, *longer], (*after.pictures, *placed))
