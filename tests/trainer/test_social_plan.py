"""What an evaluation plays: sets, families, pairs of people, seats and repetitions."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from istar_envs.errors import ConfigError
from istar_trainer.social.evaluation import enter
from istar_trainer.social.options import SocialEvalArgs
from istar_trainer.social.plan import Plan, make_plan
from istar_trainer.social.sides import make_side
from official_data import SOTOPIA, needs_sotopia


def args(**options: Any) -> SocialEvalArgs:
    return SocialEvalArgs(**{"policy": "expert", "max_scenarios": 3, **options})


def official(**options: Any) -> Plan:
    return make_plan(args(**{"data_dir": SOTOPIA, "judge": "llm", "max_scenarios": 100, **options}))


def planned(options: SocialEvalArgs) -> list[tuple[str, int, tuple[str, str], tuple[int, ...]]]:
    """Setting, number, roles and evaluated seats of everything that would be played."""
    plan = make_plan(options)
    sides = {"policy": make_side(options, "policy")}
    if options.protocol == "fixed-partner":
        sides["partner"] = make_side(options, "partner")
    return [
        (e.dialogue.encounter.setting.pk, e.dialogue.number, e.dialogue.roles, e.seats)
        for e in enter(plan, sides, options.scored_seats, options.episodes_per_scenario)  # type: ignore[arg-type]
    ]


def test_all_own_families_are_played_alike_often():
    scenarios = make_plan(args()).scenarios
    assert Counter(s.family for s in scenarios) == dict.fromkeys(
        ("bargaining", "division", "friends", "scheduling"), 3
    )
    assert [s.settings[0].pk for s in scenarios[:3]] == [f"bargaining/test/{n}" for n in range(3)]
    assert len({s.pk for s in scenarios}) == 12


def test_a_family_and_a_split_can_be_chosen():
    plan = make_plan(args(scenarios="friends", split="dev", max_scenarios=2))
    assert [s.settings[0].pk for s in plan.scenarios] == ["friends/dev/0", "friends/dev/1"]
    assert plan.left_out == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenarios": "freinds"}, 'Did you mean "friends"'),
        ({"scenarios": "hard"}, "--data-dir"),
        ({"data_dir": Path("nowhere")}, "neither an own family nor a folder"),
    ],
)
def test_what_cannot_be_played_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(args(**options))


def test_against_a_partner_the_policy_takes_every_seat_once():
    played = planned(args(scenarios="division", max_scenarios=2))
    assert played == [
        ("division/test/0", 0, ("policy", "partner"), (0,)),
        ("division/test/0", 0, ("partner", "policy"), (1,)),
        ("division/test/1", 0, ("policy", "partner"), (0,)),
        ("division/test/1", 0, ("partner", "policy"), (1,)),
    ]
    assert planned(args(scenarios="division", max_scenarios=1, seats="1")) == played[1:2]


def test_in_self_play_one_dialogue_evaluates_both_seats():
    played = planned(args(scenarios="division", max_scenarios=1, protocol="self-play"))
    assert played == [("division/test/0", 0, ("policy", "policy"), (0, 1))]
    one = planned(args(scenarios="division", max_scenarios=1, protocol="self-play", seats="0"))
    assert one == [("division/test/0", 0, ("policy", "policy"), (0,))]


def test_a_scenario_with_one_pair_is_played_again_under_another_number():
    played = planned(
        args(scenarios="division", max_scenarios=1, protocol="self-play", episodes_per_scenario=3)
    )
    assert [(pk, number) for pk, number, _, _ in played] == [("division/test/0", n) for n in range(3)]


@needs_sotopia
def test_the_published_sets_have_their_published_sizes():
    plan = official()
    assert (len(plan.scenarios), plan.left_out) == (90, 0)
    assert {len(s.settings) for s in plan.scenarios} == {5}
    assert sum(s.is_hard for s in plan.scenarios) == 14
    hard = official(scenarios="hard")
    assert {s.pk for s in hard.scenarios} == {s.pk for s in plan.scenarios if s.is_hard}


@needs_sotopia
def test_all_is_450_dialogues_in_self_play_and_900_against_a_partner():
    options = {"data_dir": SOTOPIA, "judge": "llm", "max_scenarios": 100}
    alone, against = planned(args(**options, protocol="self-play")), planned(args(**options))
    assert (len(alone), len(against)) == (450, 900)
    assert Counter(seats for *_, seats in against) == {(0,): 450, (1,): 450}
    assert len(planned(args(**options, scenarios="hard", protocol="self-play"))) == 70


@needs_sotopia
def test_pairs_of_people_take_turns():
    (scenario,) = official(scenarios="normbank", max_scenarios=1).scenarios
    pks = [setting.pk for setting in scenario.settings]
    assert scenario.playings(None) == [(setting, 0) for setting in scenario.settings]
    assert [(s.pk, n) for s, n in scenario.playings(7)] == [
        *((pk, 0) for pk in pks),
        (pks[0], 1),
        (pks[1], 1),
    ]
    assert [s.pk for s, _ in scenario.playings(2)] == pks[:2]


@needs_sotopia
def test_without_a_model_judge_only_what_can_be_checked_is_played_and_the_rest_counted():
    plan = official(judge="verifier")
    assert (len(plan.scenarios), plan.left_out) == (30, 60)
    with pytest.raises(ConfigError, match=r"none of the 9 scenarios of 'normbank'.*--judge llm"):
        official(judge="verifier", scenarios="normbank")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "self-play", "partner": "naive"}, "--partner belongs to"),
        ({"max_scenarios": 0}, "--max-scenarios"),
        ({"episodes_per_scenario": 0}, "--episodes-per-scenario"),
        ({"temperature": -1.0}, "--temperature"),
        ({"policy_model": "m"}, "Add --policy endpoint"),
        ({"partner_model": "m"}, "Add --partner endpoint"),
        ({"judge_model": "m"}, "Add --judge llm"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        args(**options)


@pytest.mark.parametrize(
    ("given", "missing"), [({}, "url"), ({"policy_url": "http://127.0.0.1:1/v1"}, "model")]
)
def test_an_endpoint_needs_an_address_and_a_model(given, missing):
    with pytest.raises(ConfigError, match=f"--policy-{missing} is not given"):
        make_side(args(policy="endpoint", **given), "policy")


def test_a_player_that_does_not_exist_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no policy 'exprt'.*Did you mean \"expert\""):
        make_side(args(policy="exprt"), "policy")
