"""Dialogues between two players, many played together.

A player is asked for all dialogues in which it is to act at once, so that slow endpoints are waited for
together and a local model gets whole batches. What breaks ends its own dialogue only.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from istar_envs.actions import format_reply
from istar_envs.episode import Episode, Transition
from istar_envs.sotopia.dialogue import Action, Rules
from istar_envs.sotopia.encounter import Encounter
from istar_envs.sotopia.game import Game, PlayOptions, conclude
from istar_envs.sotopia.grammar import write_action
from istar_envs.sotopia.language import SotopiaLanguage
from istar_envs.sotopia.partners.base import Partner, PartnerFailed, Reply, act_in_all
from istar_envs.sotopia.records import Setting
from istar_envs.sotopia.verdict import ENV_ID

Role = Literal["policy", "partner"]
"""Who is evaluated, and who sits opposite."""

RULES: Final = Rules()
"""Twenty turns, seat 0 begins, three chosen passes in a row end it: as published."""

_OPTIONS: Final = PlayOptions(RULES)
_MOST_PLAYERS: Final = 32
"""Asked at the same time."""


class PromptOverflow(PartnerFailed):
    """The dialogue no longer fits a model's prompt; that truncates the episode and breaks nothing."""


class Chair:
    """One seat of one dialogue, and what its player saw and did there.

    Args:
        encounter: The dialogue; both chairs share it.
        seat: Which seat.
        number: Which playing of the setting it is, counted from 0.

    Attributes:
        game: The dialogue as the seat sees it.
        transitions: One for each own action so far.
    """

    def __init__(self, encounter: Encounter, seat: int, number: int) -> None:
        self.game = Game(f"{encounter.setting.pk}/seat{seat}", encounter, seat, _OPTIONS)
        self.number = number
        self.transitions: list[Transition] = []

    @property
    def encounter(self) -> Encounter:
        """The dialogue."""
        return self.game.encounter

    @property
    def seat(self) -> int:
        """Which seat."""
        return self.game.seat

    def act(self, reply: Reply) -> None:
        """Do something and record it; what could not be read is seen as doing nothing."""
        observation, info = self.game.start()
        self.encounter.act(self.seat, reply)
        action = write_action(reply, "plain") if isinstance(reply, Action) else None
        self.transitions.append(
            Transition(
                observation=observation,
                reply="" if action is None else format_reply((action,)),
                action=action,
                reward=0.0,
                valid=action is not None,
                state_key=str(info["state_key"]),
                invalid_reason=None if isinstance(reply, Action) else reply.reason,
            )
        )

    def episode(self) -> Episode:
        """Return the finished dialogue as an environment records it from this seat.

        The score is what the stakes say, 0 without any. A failed dialogue has none.
        """
        conclude([self.game], None)
        observation, reward, is_terminated, _, info = self.game.answer()
        failure = str(info["failure"]) or None
        kept = {key: info[key] for key in SotopiaLanguage.recorded_info if info[key] not in (None, "")}
        last = self.transitions[-1:] or [Transition(observation, "", None, 0.0, True, str(info["state_key"]))]
        closing = replace(last[0], reward=0.0 if failure else reward, info=kept)
        return Episode(
            env_id=ENV_ID,
            task_id=self.game.task_id,
            task=str(info["task"]),
            transitions=(*self.transitions[:-1], closing),
            success=bool(info["success"]),
            score=float(info["score"]),
            end="failed" if failure else "terminated" if is_terminated else "truncated",
            final_observation=observation,
            error=failure,
        )


class Player(Protocol):
    """Somebody who takes seats in many dialogues."""

    def act_many(self, chairs: Sequence[Chair]) -> list[Reply | PartnerFailed]:
        """Choose an action on each chair; a failure takes the place of its action."""
        ...


@dataclass(frozen=True)
class PartnerPlayer:
    """A partner of the environment as a player.

    Attributes:
        partner: Who it is.
    """

    partner: Partner

    def act_many(self, chairs: Sequence[Chair]) -> list[Reply | PartnerFailed]:
        """Choose an action on each chair."""
        return act_in_all(self.partner, [chair.encounter.view(chair.seat) for chair in chairs])


@dataclass(slots=True)
class Dialogue:
    """A setting with a player on each chair.

    Attributes:
        encounter: The dialogue.
        number: Which playing of the setting it is, counted from 0.
        players: Who sits where.
        roles: In which role.
        culprit: In which role somebody failed, if that ended it.
        chairs: The seats.
    """

    encounter: Encounter
    number: int
    players: tuple[Player, Player]
    roles: tuple[Role, Role]
    culprit: Role | None = None
    chairs: tuple[Chair, Chair] = field(init=False)

    def __post_init__(self) -> None:
        """Set both chairs."""
        self.chairs = (Chair(self.encounter, 0, self.number), Chair(self.encounter, 1, self.number))

    @classmethod
    def begin(
        cls, setting: Setting, number: int, players: tuple[Player, Player], roles: tuple[Role, Role]
    ) -> "Dialogue":
        """Seat the players; nobody has acted yet."""
        return cls(Encounter.begin(setting, RULES), number, players, roles)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.encounter.is_over

    def take(self, seat: int, reply: Reply | PartnerFailed) -> None:
        """Carry out what a player answered, or end the dialogue by its failure."""
        if isinstance(reply, PromptOverflow):
            self.encounter.overflow()
        elif isinstance(reply, PartnerFailed):
            self.culprit = self.roles[seat]
            self.encounter.fail(str(reply))
        else:
            self.chairs[seat].act(reply)


def play(dialogues: Sequence[Dialogue], on_wave: Callable[[int], None] = lambda _: None) -> None:
    """Play dialogues to their ends.

    Each player is asked about all its chairs at once, and different players at the same time.

    Args:
        dialogues: What to play; changed in place.
        on_wave: Told after every action of all how many dialogues are over.
    """
    with ThreadPoolExecutor(_MOST_PLAYERS) as pool:
        while groups := _waiting(dialogues):
            asked = [
                pool.submit(player.act_many, [d.chairs[seat] for d, seat in at]) for player, at in groups
            ]
            for (_, at), replies in zip(groups, asked, strict=True):
                for (dialogue, seat), reply in zip(at, replies.result(), strict=True):
                    dialogue.take(seat, reply)
            on_wave(sum(dialogue.is_over for dialogue in dialogues))


def _waiting(dialogues: Sequence[Dialogue]) -> list[tuple[Player, list[tuple[Dialogue, int]]]]:
    """Return who is to act, with every dialogue and seat in which that is so."""
    groups: dict[int, tuple[Player, list[tuple[Dialogue, int]]]] = {}
    for dialogue in dialogues:
        for seat in dialogue.encounter.waiting:
            player = dialogue.players[seat]
            groups.setdefault(id(player), (player, []))[1].append((dialogue, seat))
    return list(groups.values())
