"""The people, the situations and who may read which words: frozen records, without input or output.

Texts are opaque strings cut into segments; markup lives in data files and is gone before a record is made.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from istar_envs.sotopia.stakes import Stakes

ENVIRONMENT: Final = "environment"
"""Viewer of a segment that only the judge reads."""

SEAT_VIEWERS: Final = ("agent_1", "agent_2")
"""Viewers of segments that only one seat reads, by seat."""

KNOWN_VIEWERS: Final = (ENVIRONMENT, *SEAT_VIEWERS)
"""Every viewer a segment may name."""


class Relationship(IntEnum):
    """How well the two people of a scenario know each other."""

    STRANGER = 0
    KNOWN_BY_NAME = 1
    ACQUAINTANCE = 2
    FRIEND = 3
    ROMANTIC = 4
    FAMILY = 5


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a text and who reads it.

    Attributes:
        text: The words themselves.
        viewer: ``None`` for everyone who may read the field; ``"environment"`` for the judge alone;
            ``"agent_1"`` or ``"agent_2"`` for that seat and the judge.
    """

    text: str
    viewer: str | None = None


Text = tuple[Segment, ...]
"""A text of a scenario: its segments in reading order."""


def plain(text: str) -> Text:
    """Make a text that everyone who may read the field reads whole.

    Example:
        >>> plain("Two people meet.")
        (Segment(text='Two people meet.', viewer=None),)
    """
    return (Segment(text),)


class AgeRange(NamedTuple):
    """The ages a seat may have, in years, both ends included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """One person.

    Attributes:
        pk: Unique id.
        first_name: Given name.
        last_name: Family name; may be empty.
        age: Years.
        occupation: What the person does for a living.
        gender: As the data say it, such as ``"Woman"``.
        pronouns: Such as ``"she/her"``.
        public_info: Hobbies and the like; for acquaintances and closer.
        personality: Personality and values in prose; for friends and closer.
        secret: For the person and the judge alone.
        big_five: Five traits in words; never shown.
        moral_values: Never shown.
        schwartz_values: Never shown.
        decision_style: Never shown.
        mbti: Never shown.
        tag: Label of the data set.
    """

    pk: str
    first_name: str
    last_name: str
    age: int
    occupation: str
    gender: str
    pronouns: str
    public_info: str
    personality: str
    secret: str
    big_five: str = ""
    moral_values: tuple[str, ...] = ()
    schwartz_values: tuple[str, ...] = ()
    decision_style: str = ""
    mbti: str = ""
    tag: str = ""

    @property
    def name(self) -> str:
        """First and last name, joined by a space."""
        return f"{self.first_name} {self.last_name}".strip()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation with a private goal for each seat.

    Attributes:
        pk: Unique id; ``codename`` is not unique.
        codename: Short readable name.
        source: Where the situation was taken from.
        context: What both seats know.
        goals: The goal of each seat, for that seat and the judge alone.
        relationship: What the two people must be to each other.
        age_range: Ages allowed per seat, or ``None`` for any.
        occupations: Occupations asked for, as the data say it, or ``None``; published pairings break it.
        tag: Label of the data set.
        stakes: What a verifier checks, or ``None`` when only a judge can score the goals.
    """

    pk: str
    codename: str
    source: str
    context: Text
    goals: tuple[Text, Text]
    relationship: Relationship
    age_range: tuple[AgeRange, AgeRange] | None = None
    occupations: str | None = None
    tag: str = ""
    stakes: Stakes | None = None


@dataclass(frozen=True, slots=True)
class RelationshipProfile:
    """What two people are to each other.

    Attributes:
        pk: Unique id.
        agent_pks: The two people; their order means nothing.
        relationship: What they are to each other. A pair may have several such records.
        background_story: How they met; never shown.
        tag: Label of the data set.
    """

    pk: str
    agent_pks: tuple[str, str]
    relationship: Relationship
    background_story: str = ""
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A scenario together with the people who play it.

    Attributes:
        pk: Unique id.
        scenario_pk: The situation.
        agent_pks: The people by seat.
    """

    pk: str
    scenario_pk: str
    agent_pks: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """All that one episode is played in.

    Attributes:
        scenario: The situation.
        agents: The people by seat.
        pk: Task id.
    """

    scenario: Scenario
    agents: tuple[AgentProfile, AgentProfile]
    pk: str
