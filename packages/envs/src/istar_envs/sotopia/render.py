"""What each viewer reads: the background of a setting and what happens in the dialogue.

The only place that decides who sees what. Texts go in whole, by concatenation, so that braces, percent
signs and angle brackets in them mean nothing here.
"""

import re
from typing import Final, Literal

from istar_envs.sotopia.dialogue import Action, Event
from istar_envs.sotopia.records import (
    KNOWN_VIEWERS,
    SEAT_VIEWERS,
    AgentProfile,
    Relationship,
    Setting,
    Text,
)

JUDGE: Final = "judge"
Viewer = int | Literal["judge"]
"""Who reads: a seat (0 or 1) or ``JUDGE``, who reads everything."""

Visibility = Literal["strict", "leaky_ampo"]
"""``strict`` as the rules say; ``leaky_ampo`` as in a published harness that hid only the partner's goal."""

UNKNOWN: Final = "Unknown"
"""Stands where a viewer may not read."""

_GENDERS: Final = {"Man": "male", "Woman": "female", "Nonbinary": "nonbinary"}
_LINE_BREAKS: Final = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


def render_background(
    setting: Setting,
    viewer: Viewer,
    *,
    visibility: Visibility = "strict",
    lite: bool = False,
    omniscient: bool = False,
) -> str:
    """Write what a viewer knows before the first word: scenario, people, their backgrounds, their goals.

    About the partner, a stranger reads nothing; who knows them by name the name; an acquaintance also age,
    gender, occupation, pronouns and public facts; a friend and closer also the personality. Secrets and
    goals stay with their owner. The judge reads everything.

    Args:
        setting: What is played and by whom.
        viewer: The reader.
        visibility: ``leaky_ampo`` shows the partner's whole background and texts for the judge to both
            seats; only for comparison with numbers published that way.
        lite: Leave out both backgrounds.
        omniscient: Let a seat read what the judge reads.

    Returns:
        Lines with a label each; what is hidden reads ``Unknown``.

    Raises:
        ValueError: If there is no such viewer or visibility.
    """
    _check(viewer, visibility)
    reader = JUDGE if omniscient else viewer
    leaks = visibility == "leaky_ampo"
    scenario, people = setting.scenario, setting.agents
    lines = [
        "Scenario: " + read_text(scenario.context, reader, unmasked=leaks),
        "Participants: " + people[0].name + " and " + people[1].name,
    ]
    if not lite:
        for seat, person in enumerate(people):
            is_whole = leaks or reader in (seat, JUDGE)
            known = _background(person, scenario.relationship, is_whole=is_whole)
            lines.append("About " + person.name + ": " + known)
    for seat, person in enumerate(people):
        goal = UNKNOWN
        if reader in (seat, JUDGE):
            goal = read_text(scenario.goals[seat], reader, unmasked=leaks)
        lines.append("Goal of " + person.name + ": " + goal)
    return "\n".join(lines)


def render_event(event: Event, viewer: Viewer, names: tuple[str, ...]) -> str:
    """Write what a viewer perceives of an event, on one line.

    All who perceive it read the same words, the judge included. Line breaks inside an utterance become
    spaces, so that no utterance can look like the next line of the dialogue.

    Args:
        event: What somebody did.
        viewer: The reader. A private action is "did nothing" to seats that it is not for.
        names: Names of the people by seat.

    Example:
        >>> render_event(Event(3, 0, Action("speak", "I <3 you")), 1, ("Ann Lee", "Bo Roe"))
        'Turn 3: Ann Lee said: "I <3 you"'
    """
    return (
        f"Turn {event.turn}: "
        + names[event.seat]
        + " "
        + _deed(event.action, is_perceived=_is_perceived(event, viewer))
    )


def _deed(action: Action, *, is_perceived: bool) -> str:
    argument = _LINE_BREAKS.sub(" ", action.argument)
    match action.kind if is_perceived else "none":
        case "speak":
            return 'said: "' + argument + '"'
        case "nonverbal":
            return "[non-verbal communication] " + argument
        case "action":
            return "[action] " + argument
        case "leave":
            return "left the conversation"
        case _:
            return "did nothing"


def _is_perceived(event: Event, viewer: Viewer) -> bool:
    return not event.action.to or viewer in (JUDGE, event.seat, *event.action.to)


def _background(person: AgentProfile, relationship: Relationship, *, is_whole: bool) -> str:
    """Describe a person, whole or as somebody in a relationship to them knows them."""
    if not is_whole and relationship is Relationship.STRANGER:
        return UNKNOWN
    if not is_whole and relationship is Relationship.KNOWN_BY_NAME:
        return person.name
    facts = [f"{person.age} years old"] if person.age else []
    facts += [_GENDERS.get(person.gender, person.gender), person.occupation]
    facts += [_labelled("pronouns ", person.pronouns)]
    sentences = [", ".join(fact for fact in facts if fact), person.public_info]
    if is_whole or relationship >= Relationship.FRIEND:
        sentences.append(_labelled("Personality and values: ", person.personality))
    if is_whole:
        sentences.append(_labelled("Secret: ", person.secret))
    return " ".join(_sentence(text) for text in sentences if text.strip()) or UNKNOWN


def _labelled(label: str, text: str) -> str:
    return label + text if text.strip() else ""


def _sentence(text: str) -> str:
    """Close a text with a full stop unless it has its own ending."""
    text = text.strip()
    return text if text[-1] in ".!?…\"'" else text + "."


def read_text(text: Text, viewer: Viewer, *, unmasked: bool = False) -> str:
    """Join the segments of a text that a viewer reads; all of them if ``unmasked``."""
    allowed = (None, *KNOWN_VIEWERS) if viewer == JUDGE else (None, SEAT_VIEWERS[viewer])
    return "".join(piece.text for piece in text if unmasked or piece.viewer in allowed).strip()


def _check(viewer: Viewer, visibility: Visibility) -> None:
    if viewer not in (0, 1, JUDGE):
        raise ValueError(f"no viewer {viewer!r}; give seat 0, seat 1 or JUDGE")
    if visibility not in ("strict", "leaky_ampo"):
        raise ValueError(f"unknown visibility {visibility!r}; give 'strict' or 'leaky_ampo'")
