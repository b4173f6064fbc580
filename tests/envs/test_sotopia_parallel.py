"""Both seats of a social episode as a PettingZoo environment."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from sotopia_play import EXPERT
from sotopia_world import write_world

from istar_envs.episode import Episode, Outcome
from istar_envs.errors import EnvError, ResetNeeded
from istar_envs.sotopia.grammar import write_action

pytest.importorskip("pettingzoo")
from pettingzoo.test import parallel_api_test, parallel_seed_test

from istar_envs.sotopia.parallel import SotopiaParallelEnv

TASK = "division/test/3"
TALK = "say: What would you like?"


def start(**options: Any) -> SotopiaParallelEnv:
    env = SotopiaParallelEnv(split="test", **options)
    env.reset(seed=0, options={"task_id": TASK})
    return env


def expert_actions(env: SotopiaParallelEnv) -> dict[str, str]:
    """What the expert does in every seat that is to act."""
    encounter = env._games[0].encounter  # type: ignore[index]
    return {
        f"seat_{seat}": write_action(EXPERT.act(encounter.view(seat)), "plain") for seat in encounter.waiting
    }


@pytest.mark.parametrize("order", ["round_robin", "simultaneous", "random"])
@pytest.mark.parametrize("protocol", ["plain", "speech"])
def test_the_tests_of_pettingzoo_pass(order: Any, protocol: Any) -> None:
    parallel_api_test(SotopiaParallelEnv(order=order, protocol=protocol), num_cycles=100)
    parallel_seed_test(lambda: SotopiaParallelEnv(order=order, protocol=protocol))


@pytest.mark.parametrize("order", ["round_robin", "simultaneous"])
def test_self_play_pays_each_seat_for_its_own_goal(order: Any) -> None:
    env = start(order=order)
    while env.agents:
        observations, rewards, terminated, truncated, infos = env.step(expert_actions(env))
    first, second = infos["seat_0"], infos["seat_1"]
    assert first["end_reason"] == second["end_reason"] == "agreement"
    assert terminated == {"seat_0": True, "seat_1": True}
    assert truncated == {"seat_0": False, "seat_1": False}
    assert (first["goal"], second["goal"]) == (second["goal_partner"], first["goal_partner"])
    assert rewards == {"seat_0": first["goal"] / 10, "seat_1": second["goal"] / 10}
    assert first["task_id"] == f"{TASK}/seat0"
    for seat, agent in enumerate(("seat_0", "seat_1")):
        own, other = infos[agent]["task"], infos[f"seat_{1 - seat}"]["task"]
        assert own in observations[agent]
        assert other not in observations[agent]
        assert json.loads(infos[agent]["dialogue"])["seat"] == seat


def test_only_the_seat_whose_turn_it_is_acts() -> None:
    env = start()
    observations, *_, infos = env.step({"seat_0": TALK, "seat_1": "leave"})
    assert env.agents == ["seat_0", "seat_1"]
    assert infos["seat_0"]["admissible_actions"] == []
    assert infos["seat_1"]["admissible_actions"]
    names = json.loads(json.dumps([person.name for person in env._games[0].encounter.setting.agents]))  # type: ignore[index]
    for observation in observations.values():
        assert observation.endswith(f"Turn 2 of 20: {names[1]} acts.")
    env.step({"seat_1": "leave"})
    assert env.agents == []


def test_an_unreadable_text_is_seen_as_doing_nothing_and_counted() -> None:
    env = start()
    observations, *_, infos = env.step({"seat_0": "gibberish"})
    assert "did nothing" in observations["seat_1"]
    assert (infos["seat_0"]["valid"], infos["seat_1"]["valid"]) == (False, True)
    assert infos["seat_0"]["num_invalid"] == infos["seat_1"]["num_invalid_partner"] == 1
    *_, infos = env.step({"seat_1": TALK})
    assert infos["seat_0"]["valid"]


class Scorer:
    """Scores the first seat 0.8 and cannot judge the second."""

    def __call__(self, episode: Episode) -> Outcome:
        is_first = json.loads(episode.transitions[-1].info["dialogue"])["seat"] == 0
        return Outcome("ok", "judge-1", 0.8, True) if is_first else Outcome("refused", "judge-1")


def test_a_scorer_is_asked_about_each_seat(tmp_path: Path) -> None:
    env = SotopiaParallelEnv(write_world(tmp_path), split="test", scorer=Scorer())
    env.reset(seed=0)
    _, rewards, *_, infos = env.step({"seat_0": "leave"})
    assert rewards["seat_0"] == 0.8
    assert math.isnan(rewards["seat_1"])
    assert infos["seat_0"]["goal"] == 8.0
    assert (infos["seat_1"]["goal"], infos["seat_1"]["end_reason"]) == (None, "judge_failure")


def test_tasks_have_no_seat() -> None:
    env = SotopiaParallelEnv(split="test")
    assert env.task_ids()[:2] == ["bargaining/test/0", "division/test/0"]
    assert len(env.task_ids()) == 2000


def test_render_shows_the_view_of_the_first_seat() -> None:
    env = start(render_mode="ansi")
    assert "Turn 1 of 20" in str(env.render())
    assert start().render() is None


def test_misuse_is_refused_with_a_reason() -> None:
    for name in ("partner", "seat"):
        with pytest.raises(EnvError, match=f"no option '{name}'.*both seats are played from outside"):
            SotopiaParallelEnv(**{name: 0})
    env = SotopiaParallelEnv()
    with pytest.raises(ResetNeeded):
        env.step({"seat_0": TALK})
    with pytest.raises(ResetNeeded):
        env.render()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="the action of seat_0 is None, but it is to act"):
        env.step({"seat_1": TALK})
    env.step({"seat_0": "leave"})
    with pytest.raises(ResetNeeded):
        env.step({"seat_0": TALK})


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "istar_envs.sotopia.parallel")
    with pytest.raises(EnvError, match=r'pip install "istar-envs\[pettingzoo\]"'):
        import istar_envs.sotopia.parallel  # noqa: F401
