"""Cleaning rules for the draft scenarios of SOTOPIA-π, a stand-in for training scenarios.

Goals come in stray quotes or with a label, tags are left open, and texts speak of "Agent1" and "Agent2".
"""

import re
from dataclasses import replace
from typing import Final

from istar_envs.sotopia.markup import parse_markup
from istar_envs.sotopia.records import AgentProfile, Scenario, Segment, Text

_LABEL: Final = re.compile(r"\s*[Aa]gent[12]:\s*")
_QUOTED: Final = re.compile(r"""(["'])(?P<start>.*)\1(?P<end>\)?\.?)""", re.DOTALL)
_AGENT: Final = re.compile(r"\b[Aa]gent([12])\b")


def parse_draft(text: str) -> Text:
    """Cut a draft text into segments, without the label and the quotes around it.

    Raises:
        ValueError: If a tag is unknown, or closed without being open.

    Example:
        >>> parse_draft("'Buy the lamp (<extra_info>You collect lamps.)'")
        (Segment(text='Buy the lamp (You collect lamps.)', viewer=None),)
    """
    bare = text[label.end() :] if (label := _LABEL.match(text)) else text
    bare = bare.strip()
    if quoted := _QUOTED.fullmatch(bare):
        bare = quoted["start"] + quoted["end"]
    return parse_markup(bare, close_at_end=True)


def name_people(scenario: Scenario, agents: tuple[AgentProfile, AgentProfile]) -> Scenario:
    """Put the names of the people in place of "Agent1" and "Agent2".

    Everyone may know the names, so nothing is given away.
    """

    def named(text: Text) -> Text:
        return tuple(
            Segment(_AGENT.sub(lambda agent: agents[int(agent[1]) - 1].name, piece.text), piece.viewer)
            for piece in text
        )

    first, second = scenario.goals
    return replace(scenario, context=named(scenario.context), goals=(named(first), named(second)))
