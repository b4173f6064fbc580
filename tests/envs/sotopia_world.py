"""A made-up world in the layout of the published SOTOPIA files: invented people, texts and ids."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from istar_envs.sotopia.records import AgentProfile, Relationship, Scenario, Segment, Setting, plain

ANN = AgentProfile(
    pk="P1",
    first_name="Ann",
    last_name="Quill",
    age=31,
    occupation="Beekeeper",
    gender="Woman",
    pronouns="She/her",
    public_info="Ann sells honey at the market.",
    personality="Ann is patient and proud",
    secret="Ann never paid for the hives.",
    big_five="Openness - High",
    mbti="INTP",
)
BO = AgentProfile(
    pk="P2",
    first_name="Bo",
    last_name="Tarn",
    age=44,
    occupation="Glazier",
    gender="Man",
    pronouns="He/him",
    public_info="Bo paints boats.",
    personality="Bo is quick to laugh.",
    secret="Bo broke the church window.",
)


def setting(relationship: Relationship = Relationship.FRIEND) -> Setting:
    """Two made-up people at a fair, with a line for each viewer."""
    context = (
        Segment("Two people meet at a fair. "),
        Segment("Both know Kim.", "environment"),
        Segment("Ann arrived first.", "agent_1"),
    )
    goals = (plain("Get a lift home."), plain("Sell the old boat."))
    scenario = Scenario("S1", "fair", "made-up", context, goals, relationship)
    return Setting(scenario, (ANN, BO), "T1")


def agent_row(number: int) -> dict[str, Any]:
    """A row of ``agents.json``."""
    return {
        "pk": f"A{number:02}",
        "first_name": f"First{number}",
        "last_name": f"Last{number}",
        "age": 20 + number,
        "occupation": "Miller",
        "gender": "Nonbinary",
        "gender_pronoun": "They/them",
        "public_info": "Grinds corn.",
        "big_five": "",
        "moral_values": ["Care"],
        "schwartz_personal_values": [],
        "personality_and_values": "Calm.",
        "decision_making_style": "",
        "secret": "Hates bread.",
        "model_id": "",
        "mbti": "",
    }


def scenario_row(pk: str, relationship: int, **changed: Any) -> dict[str, Any]:
    """A row of ``envs.json``."""
    row = {
        "pk": pk,
        "codename": "at_the_mill",
        "source": "hand-craft",
        "scenario": "Two people at a mill owned by Salt & Sons",
        "agent_goals": ["Buy flour (<extra_info>You are in a hurry</extra_info>)", "Sell flour"],
        "relationship": relationship,
        "age_constraint": "[(18, 70), (18, 70)]",
        "occupation_constraint": "nan",
        "agent_constraint": None,
    }
    return row | changed


def pair(relationship: int, number: int) -> list[str]:
    """The ids of one of the 20 pairs that stand in a relationship."""
    first = number % 20
    return [f"A{first:02}", f"A{20 + (first + relationship) % 20:02}"]


def write_world(folder: Path) -> Path:
    """Write all published files with made-up content, as many records as were published."""
    _write_set(folder, "T", 90, "envs.json", 90, 5, as_list=True)
    _write_set(folder, "D", 386, "pi-drafts/EnvironmentProfile.json", 251, 10, as_list=False)
    write(folder / "agents.json", {f"A{i:02}": agent_row(i) for i in range(40)})
    relations = [(kind, i) for kind in range(6) for i in range(20)]
    lines = []
    drafts = {}
    for kind, i in relations:
        pk, (first, second) = f"R{kind}{i:02}", pair(kind, i)
        line = {"relationship_id": pk, "agent1_id": second, "agent2_id": first, "relationship": str(kind)}
        lines.append(json.dumps(line))
        drafts[pk] = {"pk": pk, "agent_1_id": first, "agent_2_id": second, "relationship": kind}
    (folder / "relationship_profiles.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write(folder / "pi-drafts/RelationshipProfile.json", drafts)
    test, hard = [f"T{i:03}" for i in range(90)], [f"T{i:03}" for i in range(14)]
    write(folder / "env_ids.json", {"sotopia_env_id": test, "sotopia_hard_env_id": hard})
    train = [f"X{i:03}" for i in range(410)]
    write(folder / "used_env.json", {"sotopia_env": test, "sotopia_hard_env": hard, "SFT": train})
    write(folder / "sotopia_hard.json", list(range(70)))
    return folder


def _write_set(
    folder: Path, letter: str, count: int, name: str, num_played: int, each: int, *, as_list: bool
) -> None:
    rows = {f"{letter}{i:03}": scenario_row(f"{letter}{i:03}", i % 6) for i in range(count)}
    pairings = [
        {"pk": f"C{letter}{i:03}-{k}", "env_id": f"{letter}{i:03}", "agent_ids": pair(i % 6, i + k)}
        for i in range(num_played)
        for k in range(each)
    ]
    write(folder / name, rows)
    if as_list:
        write(folder / "env_agent_combos.json", pairings)
    else:
        write(folder / "pi-drafts/EnvAgentComboStorage.json", {row["pk"]: row for row in pairings})


def write(path: Path, content: Any) -> None:
    """Write JSON, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    """Edit the JSON in a file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    write(path, content)
