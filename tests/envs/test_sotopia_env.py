"""``istar/Sotopia-v0`` as its users meet it: tasks, turns, ends, rewards, failures and errors."""

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sotopia_play import EXPERT, PATIENT
from sotopia_players import Habit
from sotopia_world import write_world

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.conformance import check_env
from istar_envs.episode import Episode, Outcome
from istar_envs.errors import ConfigError, EnvError, IstarError, ResetNeeded
from istar_envs.sotopia.book import family_setting
from istar_envs.sotopia.dialogue import PASS, Action
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.families.outcome import settle
from istar_envs.sotopia.grammar import ParseError, write_action
from istar_envs.sotopia.partners.base import PartnerFailed, PartnerView, Reply
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_envs.sotopia.stakes import BargainStakes

TALK = "say: What would you like?"
BARGAIN = "bargaining/test/0"
FAMILIES = ("bargaining", "division", "friends", "scheduling")


def make(**options: Any) -> SotopiaEnv:
    env = istar_envs.make("istar/Sotopia-v0", **{"split": "test", **options}).unwrapped
    assert isinstance(env, SotopiaEnv)
    return env


def start(task_id: str, **options: Any) -> tuple[SotopiaEnv, str, dict[str, Any]]:
    env = make(**options)
    return (env, *env.reset(seed=0, options={"task_id": task_id}))


def says(*words: str) -> Habit:
    """A partner that says these words in turn, and then passes."""

    def choose(view: PartnerView) -> Action:
        said = sum(event.seat == view.seat for event in view.events)
        return Action("speak", words[said]) if said < len(words) else PASS

    return Habit("talker", choose)


def does(reply: Reply | Exception) -> Habit:
    """A partner that always does the same, or raises."""

    def choose(view: PartnerView) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    return Habit("one-track", choose)


CHATTY, ACCEPTING = does(Action("speak", "Hm.")), does(Action("action", "accept"))
LOST = does(PartnerFailed("the line is dead"))


def play(env: SotopiaEnv, act: Callable[[], str]) -> list[tuple[Any, ...]]:
    """Step until the end."""
    steps = [env.step(act())]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(act()))
    return steps


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up files in the published layout; their scenarios have no stakes."""
    return write_world(tmp_path_factory.mktemp("world"))


# Tasks and what a seat reads


def test_both_seats_of_every_task_are_played_equally_often() -> None:
    ids = make().task_ids()
    assert len(ids) == 2 * 4 * 500
    assert ids[:3] == ["bargaining/test/0/seat0", "bargaining/test/0/seat1", "division/test/0/seat0"]
    assert make(seat=1).task_ids()[:2] == ["bargaining/test/0/seat1", "division/test/0/seat1"]


@pytest.mark.parametrize("seat", [0, 1])
def test_a_seat_reads_its_own_goal_and_never_the_other_one(seat: int) -> None:
    for family in FAMILIES:
        for number in range(20):
            task = f"{family}/test/{number}"
            _, observation, info = start(f"{task}/seat{seat}")
            setting = family_setting(task)
            own, other = setting.scenario.goals[seat][0].text, setting.scenario.goals[1 - seat][0].text
            assert info["task"] == own
            assert own in observation
            assert other not in observation
            assert setting.agents[1 - seat].secret not in observation


def test_the_second_seat_is_asked_after_the_partner_has_spoken() -> None:
    _, first, info = start(f"{BARGAIN}/seat0", partner=says("Hello."))
    assert "Turn 1 of 20" in first
    assert (info["seat"], info["turn"]) == (0, 0)
    _, second, info = start(f"{BARGAIN}/seat1", partner=says("Hello."))
    assert 'said: "Hello."\nTurn 2 of 20' in second
    assert (info["seat"], info["turn"]) == (1, 1)


def test_a_drawn_task_depends_on_the_seed_alone() -> None:
    drawn = [make().reset(seed=seed)[1]["task_id"] for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_new_history_shows_every_line_once() -> None:
    env, first, _ = start(f"{BARGAIN}/seat0", history="new", partner=says("Hello.", "Well."))
    texts = [first, env.step(TALK)[0], env.step("say: I see.")[0]]
    assert [text.count("Scenario:") for text in texts] == [1, 0, 0]
    told = "\n".join(texts)
    for words in (TALK[5:], "Hello.", "I see.", "Well."):
        assert told.count(f'said: "{words}"') == 1


def test_new_history_is_repeated_after_an_unreadable_reply() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", history="new", partner=says("Hello."))
    shown = env.step(TALK)[0]
    assert env.step("gibberish")[0] == shown
    assert env.step(TALK)[0] != shown


def test_a_restored_episode_shows_the_whole_dialogue() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", history="new", partner=says("Hello."))
    env.step(TALK)
    snapshot = pickle.loads(pickle.dumps(env.clone_state()))
    observation, info = env.restore_state(snapshot)
    assert "Scenario:" in observation
    assert "Hello." in observation
    assert info["turn"] == 2


@pytest.mark.parametrize("protocol", ["json", "react", "speech"])
def test_every_notation_is_played(protocol: Any) -> None:
    env = make(protocol=protocol, partner=says("Hello."))
    env.reset(seed=0)
    *_, info = env.step(write_action(Action("speak", "Good day."), protocol))
    assert info["valid"]


def test_render_shows_the_whole_dialogue() -> None:
    env, observation, _ = start(f"{BARGAIN}/seat0", render_mode="ansi", history="new")
    assert env.render() == observation
    assert make().render() is None


# Rewards and ends


def test_an_agreement_ends_the_episode_and_pays_a_tenth_of_the_goal() -> None:
    stakes = family_setting(BARGAIN).scenario.stakes
    assert isinstance(stakes, BargainStakes)
    target, reserve = stakes.targets[0], stakes.reserves[0]
    price = round(reserve + (target - reserve) * 0.7)
    env, *_ = start(f"{BARGAIN}/seat0", partner=ACCEPTING)
    _, reward, terminated, truncated, info = env.step(f"do: propose {price}")
    share = (price - reserve) / (target - reserve)
    assert reward == info["score"] == pytest.approx(share)
    assert info["goal"] == pytest.approx(10 * share)
    assert (terminated, truncated, info["end_reason"], info["scored"]) == (True, False, "agreement", True)
    other = (price - stakes.reserves[1]) / (stakes.targets[1] - stakes.reserves[1])
    assert info["goal_partner"] == pytest.approx(10 * min(1.0, max(0.0, other)))
    assert info["success"] is True
    assert info["admissible_actions"] == []


def test_a_goal_of_exactly_six_is_no_success() -> None:
    for number in range(500):
        stakes = family_setting(f"bargaining/test/{number}").scenario.stakes
        assert isinstance(stakes, BargainStakes)
        target, reserve = stakes.targets[0], stakes.reserves[0]
        price = reserve + (target - reserve) * 0.6
        if price == int(price):
            break
    env, *_ = start(f"bargaining/test/{number}/seat0", partner=ACCEPTING)
    *_, info = env.step(f"do: propose {int(price)}")
    assert (info["goal"], info["success"]) == (6.0, False)


@pytest.mark.parametrize("family", FAMILIES)
def test_rewards_are_0_until_the_end_and_then_what_the_stakes_say(family: str) -> None:
    for seat in (0, 1):
        env, *_ = start(f"{family}/test/1/seat{seat}")
        steps = play(env, env.expert_action)
        *_, info = steps[-1]
        assert [step[1] for step in steps[:-1]] == [0.0] * (len(steps) - 1)
        assert [step[-1]["goal"] for step in steps[:-1]] == [None] * (len(steps) - 1)
        results = settle(env.game.encounter.setting.scenario.stakes, env.game.encounter.state.events)  # type: ignore[arg-type]
        assert (info["goal"], info["goal_partner"]) == (results[seat].goal, results[1 - seat].goal)
        assert steps[-1][1] == info["score"] == results[seat].goal / 10


def test_leaving_and_passing_terminate_and_the_turn_limit_truncates() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", partner=CHATTY)
    *_, info = step = env.step("leave")
    assert (step[1:4], info["end_reason"], info["goal"]) == ((0.0, True, False), "left", 0.0)
    env, *_ = start(f"{BARGAIN}/seat0", partner=does(PASS))
    last = play(env, lambda: "pass")[-1]
    assert (last[2:4], last[-1]["end_reason"], last[-1]["turn"]) == ((True, False), "stale", 3)
    env, *_ = start(f"{BARGAIN}/seat0", partner=CHATTY, max_turns=6)
    steps = play(env, lambda: TALK)
    assert len(steps) == 3
    assert (steps[-1][2:4], steps[-1][-1]["end_reason"]) == ((False, True), "max_turns")


def test_unreadable_replies_use_up_turns_and_nobody_acts_beyond_the_limit() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", partner=CHATTY, max_turns=4)
    *_, info = env.step("gibberish")
    assert (info["valid"], info["num_invalid"], info["turn"]) == (False, 1, 0)
    assert "an action reads say: words" in info["invalid_reason"]
    env.step(TALK)
    *_, truncated, info = env.step(TALK)
    assert truncated
    assert info["turn"] == 3  # one of the four turns was wasted, so the partner has no last word
    assert json.loads(info["dialogue"])["turns"][-1]["seat"] == 0


def test_leaving_or_agreeing_in_the_last_turn_is_no_truncation() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", partner=ACCEPTING, max_turns=2)
    _, _, terminated, truncated, info = env.step("do: propose 100")
    assert (terminated, truncated, info["end_reason"]) == (True, False, "agreement")
    env, *_ = start(f"{BARGAIN}/seat0", partner=CHATTY, max_turns=3)
    env.step(TALK)
    _, _, terminated, truncated, info = env.step("leave")
    assert (terminated, truncated, info["end_reason"]) == (True, False, "left")


def test_the_published_count_of_passes_can_be_had() -> None:
    def passes(**options: Any) -> str:
        env, *_ = start(f"{BARGAIN}/seat0", partner=does(PASS), **options)
        return str(env.step(TALK)[-1]["end_reason"])

    assert (passes(), passes(legacy_stale=True, stale_limit=1)) == ("", "stale")


@pytest.mark.parametrize(
    "options",
    [
        {"order": "simultaneous", "protocol": "json", "history": "new"},
        {"order": "random", "protocol": "react", "seat": 1, "partner": "naive"},
    ],
    ids=lambda options: options["order"],
)
def test_other_options_keep_every_promise(options: dict[str, Any]) -> None:
    check_env("istar/Sotopia-v0", **options)


@pytest.mark.parametrize("order", ["simultaneous", "random"])
def test_other_orders_of_turns_are_played(order: Any) -> None:
    env, *_ = start(f"{BARGAIN}/seat0", order=order, partner=CHATTY)
    steps = play(env, lambda: TALK)
    turns = json.loads(steps[-1][-1]["dialogue"])["turns"]
    assert len(turns) == (40 if order == "simultaneous" else 20)


def test_in_random_order_the_task_decides_who_is_drawn() -> None:
    def seats(task: str) -> list[int]:
        env, *_ = start(f"{task}/seat0", order="random", partner=CHATTY)
        return [turn["seat"] for turn in json.loads(play(env, lambda: TALK)[-1][-1]["dialogue"])["turns"]]

    assert seats(BARGAIN) == seats(BARGAIN) != seats("bargaining/test/1")


def test_in_a_simultaneous_turn_the_partner_does_not_hear_the_words_of_that_turn() -> None:
    heard: list[int] = []

    def listen(view: PartnerView) -> Action:
        heard.append(len(view.events))
        return Action("speak", "Hm.")

    env, *_ = start(f"{BARGAIN}/seat0", order="simultaneous", partner=Habit("listener", listen))
    env.step(TALK)
    env.step(TALK)
    assert heard == [0, 2]


# Partners that fail


def test_a_partner_that_fails_ends_the_episode_without_a_number() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", partner=LOST)
    _, reward, terminated, truncated, info = env.step(TALK)
    assert math.isnan(reward)
    assert (terminated, truncated) == (False, True)
    assert (info["end_reason"], info["failure"]) == ("agent_failure", "the line is dead")
    assert (info["goal"], info["goal_partner"], info["scored"]) == (None, None, False)
    with pytest.raises(ResetNeeded):
        env.step(TALK)


@pytest.mark.parametrize(
    ("partner", "reason"), [(LOST, "agent_failure"), (does(Action("leave")), "left")], ids=["fails", "leaves"]
)
def test_a_partner_that_ends_it_before_the_first_turn_ends_it_at_the_first_step(
    partner: Habit, reason: str
) -> None:
    env, _, info = start(f"{BARGAIN}/seat1", partner=partner)
    assert info["end_reason"] == reason
    assert info["admissible_actions"] == []
    _, reward, terminated, truncated, info = env.step(TALK)
    assert terminated is (reason == "left")
    assert truncated is (reason != "left")
    assert math.isnan(reward) is (reason != "left")
    assert info["end_reason"] == reason


def test_a_conversation_with_a_failed_partner_is_a_failed_episode() -> None:
    conversation = Conversation(make(partner=LOST, seat=0), template="bare-v1")
    conversation.reset(seed=0)
    conversation.respond(f"<action>{TALK}</action>")
    assert conversation.done
    episode = conversation.episode()
    assert (episode.end, episode.error, episode.success) == ("failed", "the line is dead", False)
    assert Episode.from_json(episode.to_json()) == episode


def test_an_unreadable_partner_is_counted_and_its_passes_were_not_chosen() -> None:
    unreadable = does(ParseError("syntax", (0, 3), "no notation"))
    env, *_ = start(f"{BARGAIN}/seat0", partner=unreadable)
    last = play(env, lambda: TALK)[-1]
    assert (last[-1]["end_reason"], last[-1]["num_invalid_partner"]) == ("max_turns", 10)
    assert "did nothing" in last[0]


def test_errors_in_a_partner_of_ones_own_are_not_hidden() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", partner=does(KeyError("a bug")))
    with pytest.raises(KeyError, match="a bug"):
        env.step(TALK)


def test_a_scripted_partner_in_scenarios_without_stakes_is_refused_with_a_hint(world: Path) -> None:
    with pytest.raises(ConfigError, match="scripted people need stakes"):
        make(scenarios=world, seat=1).reset(seed=0)


# Scorers


class Scorer:
    """Gives the outcomes of a script; a score, a status or an error."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[Episode] = []

    def __call__(self, episode: Episode) -> Outcome:
        self.asked.append(episode)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, str):
            return Outcome(step, "judge-1", detail="no luck")  # type: ignore[arg-type]
        return Outcome("ok", "judge-1", score=step, success=step > 0.5)


def leave_with(world: Path, scorer: Any) -> tuple[Any, ...]:
    env = make(scenarios=world, partner=CHATTY, scorer=scorer, seat=0)
    env.reset(seed=0)
    env.step(TALK)
    return env.step("leave")


def test_a_scenario_without_stakes_is_scored_by_the_scorer(world: Path) -> None:
    scorer = Scorer(0.7)
    _, reward, terminated, _, info = leave_with(world, scorer)
    assert (reward, terminated, info["goal"], info["success"]) == (0.7, True, 7.0, True)
    assert info["goal_partner"] is None
    (episode,) = scorer.asked
    assert (episode.env_id, episode.task_id, episode.end) == (
        "istar/Sotopia-v0",
        info["task_id"],
        "terminated",
    )
    assert episode.transitions[-1].info["dialogue"] == info["dialogue"]


def test_without_a_scorer_such_a_scenario_is_unscored(world: Path) -> None:
    _, reward, terminated, _, info = leave_with(world, None)
    assert (reward, terminated, info["goal"], info["scored"]) == (0.0, True, None, False)
    assert (info["failure"], info["end_reason"]) == ("", "left")


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        *((status, f"judge-1: {status}: no luck") for status in ("invalid", "refused", "timeout", "budget")),
        (IstarError("no key"), "the scorer failed: no key"),
        (1.5, "gave 1.5, which is not from 0 to 1"),
        (float("nan"), "gave nan, which is not from 0 to 1"),
    ],
    ids=str,
)
def test_a_scorer_that_fails_gives_no_number(world: Path, trouble: Any, told: str) -> None:
    _, reward, terminated, truncated, info = leave_with(world, Scorer(trouble))
    assert math.isnan(reward)
    assert (terminated, truncated, info["end_reason"]) == (True, False, "judge_failure")
    assert (info["goal"], info["scored"], info["success"]) == (None, False, False)
    assert told in info["failure"]


def test_a_scorer_is_not_asked_where_the_stakes_tell() -> None:
    scorer = Scorer(0.7)
    env, *_ = start(f"{BARGAIN}/seat0", partner=CHATTY, scorer=scorer)
    assert env.step("leave")[-1]["goal"] == 0.0
    assert not scorer.asked


def test_a_scorer_whose_scores_are_no_goals_is_refused() -> None:
    scorer = Scorer(0.0)
    scorer.score_range = (-0.5, 0.5)  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match=r"scores from 0 to 1; this one gives -0.5 to 0.5"):
        make(scorer=scorer)
    with pytest.raises(EnvError, match="cannot score goals"):
        make(scorer="gpt")


# Records


def test_the_record_holds_exactly_what_the_partner_perceived() -> None:
    env, *_ = start(f"{BARGAIN}/seat0", partner=says("Well\nTurn 9: no <b>"))
    env.step('say: {secret} </p> "quoted" %s')
    *_, info = env.step("leave")
    record = json.loads(info["dialogue"])
    first, second = record["names"]
    assert [turn["text"] for turn in record["turns"]] == [
        f'Turn 1: {first} said: "{{secret}} </p> "quoted" %s"',
        f'Turn 2: {second} said: "Well Turn 9: no <b>"',
        f"Turn 3: {first} left the conversation",
    ]
    assert [(turn["seat"], turn["turn"], turn["kind"]) for turn in record["turns"]] == [
        (0, 1, "speak"),
        (1, 2, "speak"),
        (0, 3, "leave"),
    ]
    setting = family_setting(BARGAIN)
    assert record["goals"] == [goal[0].text for goal in setting.scenario.goals]
    for person in setting.agents:
        assert person.secret in record["background"]


def test_a_conversation_keeps_the_record_with_its_last_step() -> None:
    conversation = Conversation(make(seat=0), template="bare-v1")
    conversation.reset(seed=0)
    conversation.respond(f"<action>{TALK}</action>")
    conversation.respond("<action>leave</action>")
    first, last = conversation.episode().transitions
    assert "dialogue" not in first.info
    assert json.loads(last.info["dialogue"])["seat"] == 0
    assert last.info["end_reason"] == "left"


# Arguments


def test_a_model_as_partner_is_described_by_a_mapping() -> None:
    described = {
        "model": "m-2025",
        "base_url": "http://127.0.0.1:9/v1",
        "protocol": "plain",
        "timeout_s": 5.0,
    }
    partner = make(partner=described).partner
    assert isinstance(partner, LlmPartner)
    assert (partner.model, partner.protocol, partner.chat.timeout_s) == ("m-2025", "plain", 5.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partner": "scriped"}, 'Did you mean "scripted"'),
        ({"partner": {"model": "m"}}, "needs 'base_url'"),
        ({"partner": {"model": "m", "base_url": "http://x/v1", "timeout": 3}}, 'Did you mean "timeout_s"'),
        ({"protocol": "plan"}, 'Did you mean "plain"'),
        ({"history": "none"}, "Known: all, new"),
        ({"visibility": "strickt"}, 'Did you mean "strict"'),
        ({"order": "robin"}, "order='robin'"),
        ({"seat": 2}, "Give 'both', 0 or 1"),
        ({"max_turns": 0}, "max_turns=0"),
        ({"split": "tests"}, 'Did you mean "test"'),
        ({"scenarios": "bargain"}, 'Did you mean "bargaining"'),
    ],
    ids=str,
)
def test_an_argument_that_cannot_be_used_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(IstarError, match=message):
        make(**options)


def test_an_unknown_render_mode_is_named() -> None:
    with pytest.raises(EnvError, match="Known: ansi"):
        SotopiaEnv(render_mode="human")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "jason"}, "no protocol 'jason' .*Did you mean \"json\""),
        ({"history": "old"}, "no history 'old' .*Known: all, new"),
        ({"visibility": "strickt"}, 'option visibility.*Did you mean "strict"'),
    ],
)
def test_an_unknown_value_of_an_option_is_answered_with_the_nearest(options: dict[str, Any], message: str):
    with pytest.raises(EnvError, match=message):
        SotopiaEnv(**options)


def test_a_limit_of_the_agent_ends_the_dialogue_with_its_verdict() -> None:
    env, _, _ = start(f"{BARGAIN}/seat0")
    env.step("say: Hello.")
    _, reward, terminated, truncated, info = env.truncate()
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["end_reason"], info["scored"], info["failure"]) == ("prompt_overflow", True, "")
    assert 'said: "Hello."' in json.loads(info["dialogue"])["turns"][0]["text"]
    with pytest.raises(ResetNeeded, match="has ended"):
        env.truncate()


def test_a_scorer_is_asked_when_a_prompt_is_full_too(tmp_path: Path) -> None:
    def middling(episode: Episode) -> Outcome:
        return Outcome("ok", "test", score=0.5, success=False)

    env = make(scenarios=write_world(tmp_path), scorer=middling, partner=CHATTY)
    conversation = Conversation(env, template="bare-v1")
    conversation.reset(seed=0)
    conversation.respond("<action>say: Hello.</action>")
    conversation.truncate()
    episode = conversation.episode()
    assert (episode.end, episode.score, episode.episode_return) == ("truncated", 0.5, 0.5)
    assert episode.transitions[-1].info["end_reason"] == "prompt_overflow"
    assert json.loads(episode.transitions[-1].info["dialogue"])["turns"]


def test_a_scorer_that_cannot_tell_at_a_full_prompt_fails_the_episode(tmp_path: Path) -> None:
    silent = Outcome("timeout", "test", detail="slow")
    env = make(scenarios=write_world(tmp_path), scorer=lambda _: silent, partner=CHATTY)
    conversation = Conversation(env, template="bare-v1")
    conversation.reset(seed=0)
    conversation.respond("<action>say: Hello.</action>")
    conversation.truncate()
    episode = conversation.episode()
    assert (episode.end, episode.success, episode.episode_return) == ("failed", False, 0.0)
    assert "slow" in str(episode.error)


@pytest.mark.parametrize("task_id", ["bargaining/test/0", "bargaining/test/0/seat2", "x/seat0", 7])
def test_an_unknown_task_is_refused(task_id: Any) -> None:
    with pytest.raises(IstarError, match="looks like"):
        make().reset(options={"task_id": task_id})


def test_an_unknown_reset_option_is_named() -> None:
    with pytest.raises(EnvError, match='Did you mean "task_id"'):
        make().reset(options={"task": "x"})


def test_an_action_that_is_no_text_is_refused_and_changes_nothing() -> None:
    env, _, before = start(f"{BARGAIN}/seat0")
    with pytest.raises(EnvError, match="is no text"):
        env.step(3)  # type: ignore[arg-type]
    assert env.step(TALK)[-1]["state_key"] != before["state_key"]


# Determinism


def transcripts() -> list[str]:
    """What is said when the expert plays the scripted people, and what the records hold."""
    env = make()
    told = []
    for seed in range(12):
        env.reset(seed=seed)
        told.append(play(env, env.expert_action)[-1][-1]["dialogue"])
    return told


def test_a_seed_gives_the_same_transcript_in_a_fresh_process() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import json, test_sotopia_env as t; "
        "print(json.dumps(t.transcripts()))"
    )
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", code, here, os.path.dirname(here)],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert json.loads(done.stdout) == transcripts()


def test_a_partner_by_name_plays_like_the_object() -> None:
    def played(partner: Any) -> Sequence[str]:
        env, *_ = start("division/test/3/seat0", partner=partner)
        return [step[0] for step in play(env, env.expert_action)]

    assert played("expert") == played(EXPERT) != played("naive")


def test_the_rule_demonstrator_is_the_patient_person() -> None:
    env, *_ = start("bargaining/test/1/seat1")
    rule, *_ = start("bargaining/test/1/seat1")

    def as_patient() -> str:
        return write_action(PATIENT.act(env.game.encounter.view(1)), "plain")

    assert [step[0] for step in play(env, as_patient)] == [step[0] for step in play(rule, rule.rule_action)]
    with pytest.raises(ResetNeeded):
        rule.rule_action()
