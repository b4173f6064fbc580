"""What a judge of dialogues reads: the setting, who sat where, and what was said.

An environment leaves it in the record of its episode, in the last transition's ``info["dialogue"]``, as
an object or as the JSON text of one:

    {"background": str, "names": [str, …], "goals": [str, …], "seat": int | null,
     "turns": [{"seat": int, "kind": str, "text": str, "turn": int}, …]}

``text`` is what the other seat perceived, word for word; ``turn`` may be left out if no two entries are of
one turn. The agent never sees this part of a record.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from istar_envs.episode import Episode
from istar_judges.errors import JudgeError

FIELD: Final = "dialogue"
"""Where the last transition's ``info`` holds the record."""
PASS: Final = "none"
"""Kind of a turn in which its seat did nothing."""


@dataclass(frozen=True, slots=True)
class JudgedDialogue:
    """A finished dialogue as its judge reads it.

    Attributes:
        background: The whole setting, private parts included.
        turns: (seat, what the other seat perceived) in order, without passes.
        seat_goals: Goal of each seat.
        names: Name of each seat.
        seat: The seat of the agent that the episode is about, or None if it is about all.
    """

    background: str
    turns: tuple[tuple[int, str], ...]
    seat_goals: tuple[str, ...]
    names: tuple[str, ...]
    seat: int | None = None

    def __post_init__(self) -> None:
        """Refuse seats that nobody sits on."""
        seats = range(len(self.names))
        used = {seat for seat, _ in self.turns} | ({self.seat} - {None})
        if len(self.seat_goals) != len(self.names) or not self.names or not used <= set(seats):
            raise ValueError(
                f"{len(self.names)} names, {len(self.seat_goals)} goals, seats {sorted(map(str, used))}: "
                "each seat needs one name and one goal"
            )


class Turn(BaseModel):
    """One entry of the record."""

    model_config = ConfigDict(frozen=True, strict=True)

    seat: Annotated[int, Field(ge=0)]
    kind: str
    """Kind of the action, as the rules of the dialogue name it."""
    text: str
    """What the other seat perceived."""
    turn: int | None = None
    """In which turn; None if every entry is a turn of its own."""


class _Record(BaseModel):
    model_config = ConfigDict(strict=True)

    background: str
    names: list[str]
    goals: list[str]
    turns: list[Turn]
    seat: int | None = None


def dialogue_of(episode: Episode) -> JudgedDialogue:
    """Read the dialogue out of an episode. Passes are left out by their kind, never by their words.

    A text that begins with the number of its turn loses it: judges count turns without passes.

    Raises:
        JudgeError: If the episode holds no dialogue or a broken one.
    """
    record = _read_record(episode)
    turns = tuple(
        (turn.seat, turn.text.removeprefix(f"Turn {turn.turn}: "))
        for turn in record.turns
        if turn.kind != PASS
    )
    try:
        return JudgedDialogue(
            record.background, turns, tuple(record.goals), tuple(record.names), seat=record.seat
        )
    except ValueError as error:
        raise JudgeError(f"{_named(episode)}: {FIELD}: {error}. Record the episode again.") from error


def turns_of(episode: Episode) -> tuple[Turn, ...]:
    """Read every entry of an episode's dialogue, passes included.

    Raises:
        JudgeError: If the episode holds no dialogue or a broken one.
    """
    return tuple(_read_record(episode).turns)


def _read_record(episode: Episode) -> _Record:
    info = episode.transitions[-1].info if episode.transitions else {}
    if not info.get(FIELD):
        raise JudgeError(
            f'{_named(episode)} holds no dialogue: its last transition has no info["{FIELD}"]. '
            "Judge it with the verifier of its own world."
        )
    try:
        record = info[FIELD]
        return (
            _Record.model_validate_json(record) if isinstance(record, str) else _Record.model_validate(record)
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise JudgeError(
            f"{_named(episode)}: {FIELD}.{'.'.join(map(str, first['loc']))}: {first['msg']}. "
            "Record the episode again."
        ) from error


def _named(episode: Episode) -> str:
    return f"an episode of {episode.env_id} (task {episode.task_id})"
