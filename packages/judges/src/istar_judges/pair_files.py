"""Preference pairs in files: our own JSON lines, and the prompt/chosen/rejected layout of DPO trainers.

Every file is written whole or not at all, and read back to equal records. One record is one line.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from istar_envs.episode import Episode
from istar_envs.errors import ConfigError
from istar_judges.errors import JudgeError
from istar_judges.pairs import PreferencePair

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation in text."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class PreferenceExample:
    """A pair as two ways to go on from one prompt: what DPO trainers call a conversational example.

    Attributes:
        prompt: One user message: the task and the first observation.
        chosen: The preferred episode from its first reply on: assistant and user messages in turn,
            an assistant message last.
        rejected: The rejected episode, likewise.
    """

    prompt: tuple[ChatMessage, ...]
    chosen: tuple[ChatMessage, ...]
    rejected: tuple[ChatMessage, ...]


def preference_example(preferred: Episode, rejected: Episode) -> PreferenceExample:
    """Write two episodes of one task as an example for DPO trainers.

    Raises:
        JudgeError: If the episodes do not start alike, one has no step, or one has pictures (the
            layout holds text only).
    """
    prompt = _opening(preferred)
    if prompt != _opening(rejected):
        raise JudgeError(
            f"episodes of tasks {preferred.task_id} and {rejected.task_id} do not start alike, so they "
            "share no prompt. Pair episodes of one task only."
        )
    return PreferenceExample((prompt,), _continuation(preferred), _continuation(rejected))


def write_pairs(path: Path, pairs: Iterable[PreferencePair], *, overwrite: bool = False) -> None:
    """Write pairs as JSON lines with the fields of ``PreferencePair``.

    Raises:
        ConfigError: If the file exists and may not be replaced, or cannot be written.
    """
    write_lines(path, (_line(pair) for pair in pairs), overwrite=overwrite)


def read_pairs(path: Path) -> tuple[PreferencePair, ...]:
    """Read what ``write_pairs`` wrote.

    Raises:
        ConfigError: If the file is missing or a line is not a pair; names the line.
    """
    return read_records(path, TypeAdapter(PreferencePair), "preference pair")


def write_preference_examples(
    path: Path, examples: Iterable[PreferenceExample], *, overwrite: bool = False
) -> None:
    """Write examples as JSON lines with the fields ``prompt``, ``chosen`` and ``rejected``.

    Each field is a list of ``{"role", "content"}`` messages: the conversational preference layout
    that ``datasets.load_dataset("json", …)`` and DPO trainers read.

    Raises:
        ConfigError: If the file exists and may not be replaced, or cannot be written.
    """
    write_lines(path, (_line(example) for example in examples), overwrite=overwrite)


def read_preference_examples(path: Path) -> tuple[PreferenceExample, ...]:
    """Read what ``write_preference_examples`` wrote.

    Raises:
        ConfigError: If the file is missing or a line is not an example; names the line.
    """
    return read_records(path, TypeAdapter(PreferenceExample), "prompt/chosen/rejected example")


def write_lines(path: Path, lines: Iterable[str], *, overwrite: bool = False) -> None:
    """Write a text file whole or not at all.

    Args:
        path: The file. It appears only once it is complete.
        lines: Its lines without line ends.
        overwrite: Whether an existing file may be replaced.

    Raises:
        ConfigError: If the file exists and may not be replaced, or cannot be written.
    """
    if path.exists() and not overwrite:
        raise ConfigError(
            f"output exists already: {path}. Choose another path, or allow it with --overwrite."
        )
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(f"{line}\n" for line in lines)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror}). Choose a path in a folder that exists and is writable."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _opening(episode: Episode) -> ChatMessage:
    if not episode.transitions:
        raise JudgeError(
            f"an episode of task {episode.task_id} has no step, so it has no reply to prefer. Leave it out."
        )
    if any(transition.image is not None for transition in episode.transitions):
        raise JudgeError(
            f"an episode of task {episode.task_id} ({episode.env_id}) has pictures; the messages layout "
            "holds text only. Use the pairs layout, which names episodes by id."
        )
    parts = (episode.task, episode.transitions[0].observation)
    return ChatMessage("user", "\n\n".join(part for part in parts if part))


def _continuation(episode: Episode) -> tuple[ChatMessage, ...]:
    first, *later = episode.transitions
    messages = [ChatMessage("assistant", first.reply)]
    for transition in later:
        messages += ChatMessage("user", transition.observation), ChatMessage("assistant", transition.reply)
    return tuple(messages)


def _line(record: PreferencePair | PreferenceExample) -> str:
    return json.dumps(asdict(record), ensure_ascii=False)


def read_records(path: Path, adapter: TypeAdapter[_Record], kind: str) -> tuple[_Record, ...]:
    """Read a JSON-lines file whose lines are records of one type.

    Args:
        path: The file.
        adapter: What a line must be.
        kind: What a line is called in messages.

    Raises:
        ConfigError: If the file is missing or a line is no such record; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {kind}s: {path} ({error.strerror}). Check the path.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {kind}s: {path} is not UTF-8 text. Check the path.") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(adapter.validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise ConfigError(
                f"{path}, line {number}: not a {kind}: {where}: {first['msg']}. "
                "Each line must be one JSON record as written by istar-judge."
            ) from error
    return tuple(records)
