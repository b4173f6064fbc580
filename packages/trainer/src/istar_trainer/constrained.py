"""JSON of a wanted shape, written by a causal language model whatever its weights.

What a schema fixes is put there. The model chooses where there is a choice: one of the listed values, or
the words of a text. One request at a time; batches of free text are ``sampler.py``'s.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from istar_envs.seeding import CounterRng
from istar_trainer.context import encode

_MOST_NUMBERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Choice:
    """A value out of several, each as JSON."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """Free text between quotation marks."""


Outline = tuple[str | Choice | Words, ...]
"""What is fixed, and what is to be chosen, in order; after a choice comes something fixed or the end."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it.

    Attributes:
        text: JSON of the wanted shape, or its beginning.
        num_tokens: Tokens of it.
        is_whole: Whether it was finished before the tokens ran out.
    """

    text: str
    num_tokens: int
    is_whole: bool


def outline(schema: Mapping[str, Any]) -> Outline:
    """Work out what a JSON schema fixes.

    Understood are ``enum``, ``const``, strings, booleans, integers from ``minimum`` to ``maximum``, and
    objects of such things, all of whose properties are written, in order.

    Raises:
        ValueError: If the schema needs more; the message names the place.

    Example:
        >>> outline({"type": "object", "properties": {"ok": {"type": "boolean"}}})
        ('{"ok": ', Choice(options=('true', 'false')), '}')
    """
    pieces: list[str | Choice | Words] = []
    for piece in _pieces(schema, "schema"):
        if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return tuple(pieces)


def _pieces(schema: Any, where: str) -> list[str | Choice | Words]:
    match schema:
        case {"const": value}:
            return [_as_json(value)]
        case {"enum": [_, *_] as values}:
            options = tuple(dict.fromkeys(map(_as_json, values)))
            if all(option.startswith('"') for option in options):  # a tokenizer may join it to what is before
                return ['"', Choice(tuple(option[1:] for option in options))]
            return [Choice(options)]
        case {"type": "boolean"}:
            return [Choice(("true", "false"))]
        case {"type": "integer", "minimum": int(low), "maximum": int(high)} if (
            0 <= high - low < _MOST_NUMBERS
        ):
            return [Choice(tuple(map(str, range(low, high + 1))))]
        case {"type": "string"}:
            return ['"', Words(), '"']
        case {"type": "object", "properties": dict(properties)}:
            pieces: list[str | Choice | Words] = []
            for key, value in properties.items():
                mark = ", " if pieces else ""
                pieces += [f"{mark}{_as_json(key)}: ", *_pieces(value, f"{where}.{key}")]
            return ["{", *pieces, "}"]
    raise ValueError(
        f"{where}: this kind of value cannot be forced. Known are enum, const, string, boolean, integer with "
        "minimum and maximum, and object with properties."
    )


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class JsonWriter:
    """Writes outlines with a model.

    Args:
        model: Causal LM.
        tokenizer: Hugging Face tokenizer.
        max_words: Most tokens of one free text, for models that find no end.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, *, max_words: int) -> None:
        self._model, self._tokenizer, self._max_words = model, tokenizer, max_words
        special = set(tokenizer.all_special_ids)
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        plain = [token for token, text in enumerate(texts) if token not in special and _is_plain(text)]
        ends = [t for t, text in enumerate(texts) if t == tokenizer.eos_token_id or text.startswith('"')]
        self._ends = frozenset(ends)
        self._allowed = torch.tensor(plain + ends)

    @torch.no_grad()
    def write(
        self, prompt_ids: Sequence[int], wanted: Outline, *, temperature: float, seed: int, max_tokens: int
    ) -> Written:
        """Write JSON after a prompt.

        Args:
            prompt_ids: Token ids to condition on; not empty.
            wanted: Its outline.
            temperature: Divides the logits; 0 takes the most likely token.
            seed: Seed of the draws.
            max_tokens: Most tokens of it.
        """
        pen = _Pen(self._model, prompt_ids, CounterRng(seed), temperature=temperature, left=max_tokens)
        text, is_marked = "", False
        try:
            for place, piece in enumerate(wanted):
                if isinstance(piece, Choice):
                    text += self._choose(pen, piece.options, _first_sign(wanted[place + 1 :]))
                elif isinstance(piece, Words):
                    text += self._say(pen)
                else:
                    pen.put(encode(self._tokenizer, piece[1:] if is_marked else piece))
                    text += piece
                is_marked = isinstance(piece, Choice)
        except _OutOfTokens:
            return Written(text, max_tokens, is_whole=False)
        return Written(text, max_tokens - pen.left, is_whole=True)

    def _choose(self, pen: "_Pen", options: Sequence[str], mark: str) -> str:
        """Let the model take one option and put the sign after it, which tells 1 from 10."""
        alive = {option: encode(self._tokenizer, option + mark) for option in options}
        place = 0
        while len(alive) > 1:
            token = pen.draw(torch.tensor(sorted({ids[place] for ids in alive.values()})))
            alive = {option: ids for option, ids in alive.items() if ids[place] == token}
            place += 1
        ((chosen, ids),) = alive.items()
        pen.put(ids[place:])
        return chosen

    def _say(self, pen: "_Pen") -> str:
        said: list[int] = []
        while len(said) < self._max_words:
            token = pen.draw(self._allowed, ends=self._ends)
            if token in self._ends:
                break
            said.append(token)
        return str(self._tokenizer.decode(said))


class _OutOfTokens(Exception):
    """Nothing more may be written."""


class _Pen:
    """A model in the middle of a text; tokens are read only when it has to choose the next one."""

    def __init__(
        self, model: nn.Module, prompt_ids: Sequence[int], rng: CounterRng, *, temperature: float, left: int
    ) -> None:
        self._model, self._rng, self._temperature = model, rng, temperature
        self.left = left
        self._unread = list(prompt_ids)
        # transformers renamed this argument and output in 5.x
        self._cache_key = (
            "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        )
        self._cache: Any = None

    def put(self, ids: Sequence[int]) -> None:
        """Write these tokens."""
        if len(ids) > self.left:
            raise _OutOfTokens
        self.left -= len(ids)
        self._unread += ids

    def draw(self, allowed: Int[Tensor, " some"], *, ends: frozenset[int] = frozenset()) -> int:
        """Let the model choose one of some tokens, and write it unless it is one of the ends."""
        if not self.left:
            raise _OutOfTokens
        logits = self._read()[allowed].double()
        if self._temperature == 0:
            place = int(logits.argmax())
        else:
            cumulative = (logits / self._temperature).softmax(dim=0).cumsum(dim=0)
            threshold = self._rng.random() * cumulative[-1:]
            place = min(int(torch.searchsorted(cumulative, threshold, right=True)), len(allowed) - 1)
        token = int(allowed[place])
        if token not in ends:
            self.put([token])
        return token

    def _read(self) -> Float[Tensor, " vocab"]:
        known = {} if self._cache is None else {self._cache_key: self._cache}
        ids = torch.tensor([self._unread])
        output = self._model(input_ids=ids, use_cache=True, logits_to_keep=1, **known)
        self._cache, self._unread = output[self._cache_key], []
        logits: Tensor = output.logits[0, -1].float()
        return logits


def _is_plain(text: str) -> bool:
    return bool(text) and text.isprintable() and '"' not in text and "\\" not in text


def _first_sign(rest: Outline) -> str:
    return rest[0][0] if rest and isinstance(rest[0], str) else "\n"
