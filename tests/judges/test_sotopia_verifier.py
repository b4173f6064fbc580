"""What was really agreed in a dialogue, and that nothing else counts."""

import json
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest

import istar_envs  # noqa: F401  (registers the environments)
from istar_envs.agent import Conversation
from istar_envs.episode import Episode
from istar_envs.errors import ConfigError
from istar_envs.sotopia.book import FAMILIES, family_setting, open_book
from istar_envs.sotopia.dialogue import Action, Event
from istar_envs.sotopia.families.moves import Move, write_move
from istar_envs.sotopia.families.outcome import settle
from istar_envs.sotopia.records import Setting
from istar_envs.sotopia.scene import judged
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes
from istar_judges import (
    JudgeError,
    Panel,
    SotopiaVerifier,
    StubJudge,
    canary_episodes,
    make_verifier,
    verifier_of,
)
from istar_judges.dialogue import dialogue_of
from official_data import SOTOPIA, needs_sotopia

BARGAIN = "bargaining/test/0"


def episode_of(setting: Setting, seat: int, *actions: Action, first: int = 0, **fields: Any) -> Episode:
    """An episode as the environment records it, in which the seats act in turn."""
    events = [Event(n + 1, (first + n) % 2, action) for n, action in enumerate(actions)]
    some = canary_episodes()[0]
    last = replace(some.transitions[0], info={"dialogue": judged(setting, events, seat)})
    task_id = f"{setting.pk}/seat{seat}"
    return replace(some, **{"task_id": task_id, "transitions": (last,), "success": False, **fields})


def do(words: str) -> Action:
    return Action("action", words)


def bargain() -> tuple[Setting, BargainStakes]:
    setting = family_setting(BARGAIN)
    assert isinstance(setting.scenario.stakes, BargainStakes)
    return setting, setting.scenario.stakes


def price_worth(stakes: BargainStakes, seat: int, share: float) -> str:
    """The proposal of a price that is worth a share of its goal to a seat."""
    reserve, target = stakes.reserves[seat], stakes.targets[seat]
    return f"propose {reserve + share * (target - reserve):.2f}"


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(
    ("share", "goal", "success"), [(1.0, 10.0, True), (0.5, 5.0, False), (0.0, 0.0, False)]
)
def test_an_accepted_price_is_worth_its_place_between_reserve_and_target(seat, share, goal, success):
    setting, stakes = bargain()
    episode = episode_of(setting, seat, do(price_worth(stakes, seat, share)), do("accept"), first=seat)
    scaled = SotopiaVerifier("return")(episode)
    assert scaled.score == pytest.approx(goal / 10, abs=2e-3)
    binary = SotopiaVerifier()(episode)
    assert (binary.score, binary.success) == (float(success), success)


@pytest.mark.parametrize(("goal", "success"), [(0.59, False), (0.61, True)])
def test_a_success_is_a_goal_above_six(goal, success):
    setting, stakes = bargain()
    seat = 0
    episode = episode_of(setting, seat, do(price_worth(stakes, seat, goal)), do("accept"))
    assert SotopiaVerifier()(episode).success is success


def test_both_seats_are_settled_and_the_task_says_which_one_counts():
    setting, stakes = bargain()
    actions = do(price_worth(stakes, 0, 1.0)), do("accept")
    for seat in (0, 1):
        episode = episode_of(setting, seat, *actions)
        goals = SotopiaVerifier().goals(episode)
        assert not isinstance(goals, str)
        assert SotopiaVerifier("return")(episode).score == goals[seat].goal / 10
        other = SotopiaVerifier("return", perspective=1 - seat)(episode)
        assert other.score == goals[1 - seat].goal / 10


def test_words_agree_to_nothing():
    setting, stakes = bargain()
    price = price_worth(stakes, 0, 1.0)
    name = setting.agents[1].name
    for turns in (
        (do(price), Action("speak", "accept")),
        (do(price), Action("speak", f'fine." {name} [action] accept')),
        (do(price), Action("nonverbal", "accept")),
        (Action("speak", price), do("accept")),
        (do(price), do("accept the offer")),
        (do(price), do(f"{name} [action] accept")),
    ):
        outcome = SotopiaVerifier("return")(episode_of(setting, 0, *turns))
        assert (outcome.score, outcome.success) == (0.0, False)
        assert outcome.detail == "no agreement"


def test_what_the_record_claims_counts_for_nothing():
    setting, _ = bargain()
    episode = episode_of(setting, 0, Action("speak", "Sold!"), success=True, score=1.0)
    outcome = SotopiaVerifier()(episode)
    assert (outcome.score, outcome.success) == (0.0, False)
    assert outcome.detail == "no agreement; the record claims success=True"


def test_turns_in_which_both_act_are_settled_as_one():
    setting, stakes = bargain()
    price = price_worth(stakes, 0, 0.5)
    episode = episode_of(setting, 0, do(price), do("accept"))
    last = episode.transitions[0]
    record = {**last.info["dialogue"]}
    record["turns"] = [{**turn, "turn": 1} for turn in record["turns"]]
    together = replace(episode, transitions=(replace(last, info={"dialogue": record}),))
    assert SotopiaVerifier("return")(episode).score == pytest.approx(0.5, abs=2e-3)
    assert SotopiaVerifier("return")(together).score == 0.0


def test_a_record_as_json_text_without_numbers_is_read_too():
    setting, stakes = bargain()
    episode = episode_of(setting, 0, do(price_worth(stakes, 0, 1.0)), do("accept"))
    last = episode.transitions[0]
    record = {**last.info["dialogue"]}
    plain = [{**turn, "text": turn["text"].partition(": ")[2], "turn": None} for turn in record["turns"]]
    for written in (json.dumps(record), json.dumps({**record, "turns": plain}), {**record, "turns": plain}):
        other = replace(episode, transitions=(replace(last, info={"dialogue": written}),))
        assert SotopiaVerifier("return")(other).score == 1.0
        assert dialogue_of(other) == dialogue_of(episode)


def test_a_private_acceptance_binds_nobody():
    setting, stakes = bargain()
    private = Action("action", "accept", to=(1,))
    episode = episode_of(setting, 0, do(price_worth(stakes, 0, 1.0)), private)
    assert SotopiaVerifier("return")(episode).score == 0.0


def test_a_record_that_no_environment_writes_gives_no_number():
    setting, stakes = bargain()
    episode = episode_of(setting, 0, do(price_worth(stakes, 0, 1.0)), do("accept"))
    last = episode.transitions[0]
    record = last.info["dialogue"]
    turns = [record["turns"][0], {**record["turns"][1], "text": "Somebody [action] accept"}]
    broken = replace(episode, transitions=(replace(last, info={"dialogue": {**record, "turns": turns}}),))
    outcome = SotopiaVerifier()(broken)
    assert (outcome.status, outcome.score) == ("invalid", None)
    assert outcome.detail == "entry 2 of the record is no action as this world writes it"


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"end": "failed", "error": "partner gone"}, "partner gone"),
        ({"task_id": "bargaining/nowhere/3/seat0"}, "the scenario cannot be found"),
        ({"task_id": "S-77/seat0"}, "the scenario cannot be found"),
    ],
)
def test_what_cannot_be_settled_has_no_number(fields, detail):
    setting, _ = bargain()
    outcome = SotopiaVerifier()(episode_of(setting, 0, **fields))
    assert (outcome.status, outcome.score, outcome.success) == ("invalid", None, None)
    assert detail in outcome.detail


def test_an_episode_of_another_world_is_refused(play):
    with pytest.raises(JudgeError, match="came to the SOTOPIA verifier"):
        SotopiaVerifier()(play(["right"]))


def test_an_episode_about_nobody_needs_a_perspective():
    setting, _ = bargain()
    episode = episode_of(setting, 0, do("accept"), task_id=BARGAIN)
    last = episode.transitions[0]
    record = {**last.info["dialogue"], "seat": None}
    shared = replace(episode, transitions=(replace(last, info={"dialogue": record}),))
    with pytest.raises(JudgeError, match="Set perspective to 0 or 1"):
        SotopiaVerifier()(shared)
    assert SotopiaVerifier(perspective=1)(shared).score == 0.0


def test_it_is_found_by_name_and_by_environment():
    assert verifier_of("istar/Sotopia-v0") == "sotopia"
    verifier = make_verifier("sotopia", "return", {"scenarios": "division", "partner": "scripted"})
    assert verifier == SotopiaVerifier("return", "division")
    assert (verifier.name, verifier.score_range) == ("sotopia-verifier/1", (0.0, 1.0))
    with pytest.raises(ConfigError, match="unknown scale 'points'"):
        SotopiaVerifier("points")


# The canaries


def test_canaries_are_always_the_same_and_cover_every_family_seat_and_result():
    episodes = canary_episodes()
    assert len(episodes) == 40
    assert {episode.task_id.split("/")[0] for episode in episodes} == set(FAMILIES)
    assert {episode.task_id[-1] for episode in episodes} == {"0", "1"}
    goals = [SotopiaVerifier("return")(episode).score for episode in episodes]
    assert goals == [episode.score for episode in episodes]
    assert all(goals[n : n + 5][3:] == [0.0, 0.0] for n in range(0, 40, 5))
    assert all(goals[n] > 0.9 for n in range(0, 40, 5))
    assert sum(0.2 < goal < 0.8 for goal in goals) >= 4


def test_canaries_are_dialogues_that_any_judge_can_read():
    for episode in canary_episodes():
        dialogue = dialogue_of(Episode.from_json(episode.to_json()))
        assert [seat for seat, _ in dialogue.turns] == [dialogue.seat, 1 - dialogue.seat] * 2
        assert all(text.startswith(dialogue.names[seat]) for seat, text in dialogue.turns)


# Published scenarios


@needs_sotopia
@pytest.mark.slow
def test_j11_thirty_published_scenarios_can_be_settled_and_no_other():
    book = open_book(SOTOPIA)
    settled, others = set(), set()
    for pk in book.pks("test"):
        setting = book.setting(pk)
        goals = SotopiaVerifier(scenarios=SOTOPIA).goals(episode_of(setting, 0, do("accept")))
        (others if isinstance(goals, str) else settled).add(setting.scenario.pk)
    assert (len(settled), len(others), settled & others) == (30, 60, set())


@needs_sotopia
def test_the_best_agreement_of_a_published_scenario_is_a_success_for_its_seat():
    book = open_book(SOTOPIA)
    settings = {s.scenario.source: s for s in map(book.setting, book.pks("test")) if s.scenario.stakes}
    assert len(settings) == 3
    for setting in settings.values():
        stakes = setting.scenario.stakes
        terms: Any = None
        match stakes:
            case BargainStakes():
                terms = stakes.targets[0]
            case DivisionStakes():
                terms = tuple(count for _, count in stakes.items)
            case FriendsStakes():
                terms = stakes.answer.casefold()
        moves = do(write_move(Move("propose", terms), stakes)), do("accept")
        outcome = SotopiaVerifier("return", SOTOPIA)(episode_of(setting, 0, *moves))
        assert (outcome.score, outcome.success) == (1.0, True)
        events = [Event(n + 1, n, action) for n, action in enumerate(moves)]
        assert outcome.detail.startswith(settle(stakes, events)[0].reason)


# Played episodes


@pytest.mark.integration
@pytest.mark.parametrize("player", ["expert", "hasty"])
@pytest.mark.parametrize("order", ["round_robin", "simultaneous"])
def test_the_verifier_agrees_with_the_environment_on_played_episodes(player, order):
    env = gym.make("istar/Sotopia-v0", split="test", order=order)
    conversation, results = Conversation(env, template="act-v1"), set()
    for seed in range(24):
        conversation.reset(seed=seed)
        while not conversation.done:
            action = env.unwrapped.expert_action() if player == "expert" else "do: accept"
            conversation.respond(f"<action>{action}</action>")
        episode = Episode.from_json(conversation.episode().to_json())
        outcome = SotopiaVerifier("return")(episode)
        assert outcome.score == pytest.approx(episode.score, abs=1e-9)
        assert outcome.success == episode.success
        results.add(outcome.score)
    assert len(results) > 2


@needs_sotopia
@pytest.mark.integration
def test_a_panel_scores_what_no_rule_can_settle_inside_the_environment():
    env = gym.make("istar/Sotopia-v0", scenarios=SOTOPIA, split="test", scorer=Panel(StubJudge(), samples=1))
    conversation = Conversation(env, template="act-v1")
    conversation.reset(seed=0, options={"task_id": _unsettled(env)})
    conversation.respond("<action>leave</action>")
    assert conversation.done
    episode = conversation.episode()
    assert episode.score == 0.2
    assert SotopiaVerifier(scenarios=SOTOPIA)(episode).status == "invalid"


def _unsettled(env: gym.Env) -> str:
    """The first task of a published scenario without stakes."""
    book = open_book(SOTOPIA)
    tasks = env.unwrapped.task_ids()
    return next(task for task in tasks if book.setting(task.rpartition("/")[0]).scenario.stakes is None)
