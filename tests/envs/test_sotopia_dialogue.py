"""Turns, passes, leaving and ends of a dialogue; the faults of earlier implementations stay away."""

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.errors import ConfigError
from istar_envs.sotopia.dialogue import (
    ACTION_KINDS,
    MAX_ARGUMENT,
    PASS,
    Action,
    DialogueState,
    EndReason,
    Event,
    Rules,
    advance,
    allowed_kinds,
    seats_to_act,
    stop,
)

SAY = Action("speak", "Hm.")
LEAVE = Action("leave")
TURNS = Rules()
TOGETHER = Rules(order="simultaneous")
DRAWN = Rules(order="random")


def play(actions, rules=TURNS, state=None) -> DialogueState:
    """Let whoever is first in line act, action by action."""
    state = state or DialogueState()
    for action in actions:
        state = advance(state, seats_to_act(state, rules)[0], action, rules)
    return state


def seats(state: DialogueState) -> list[int]:
    return [event.seat for event in state.events]


def test_seats_take_turns_beginning_with_the_first():
    state = play([SAY] * 5)
    assert seats(state) == [0, 1, 0, 1, 0]
    assert [event.turn for event in state.events] == [1, 2, 3, 4, 5]
    assert state.turn == 5
    assert seats_to_act(state, TURNS) == (1,)


def test_twenty_turns_are_twenty_actions():
    state = play([SAY] * 19)
    assert not state.is_over
    state = play([SAY], state=state)
    assert state.end_reason is EndReason.MAX_TURNS
    assert seats_to_act(state, TURNS) == ()
    assert sum(event.seat == 0 for event in state.events) == 10


def test_kinds_stand_in_one_order_and_others_may_only_pass():
    state = DialogueState()
    assert ACTION_KINDS == ("none", "speak", "nonverbal", "action", "leave")
    assert allowed_kinds(state, 0, TURNS) == ACTION_KINDS
    assert allowed_kinds(state, 1, TURNS) == ("none",)
    assert allowed_kinds(play([LEAVE]), 0, TURNS) == ("none",)


def test_a_simultaneous_turn_takes_one_action_of_each_seat():
    first = advance(DialogueState(), 1, SAY, TOGETHER)
    assert (first.turn, first.events, seats_to_act(first, TOGETHER)) == (0, (), (0,))
    with pytest.raises(ValueError, match="seat 1 cannot act in turn 1: it is the turn of seat 0"):
        advance(first, 1, SAY, TOGETHER)
    both = advance(first, 0, PASS, TOGETHER)
    assert both.turn == 1
    assert both.events == (Event(1, 0, PASS), Event(1, 1, SAY))
    assert both.pending == ()


def test_who_chose_first_in_a_simultaneous_turn_makes_no_difference():
    start = DialogueState(num_seats=3)
    chosen = {0: SAY, 1: PASS, 2: Action("nonverbal", "nods")}
    states = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        state = start
        for seat in order:
            state = advance(state, seat, chosen[seat], TOGETHER)
        states.append(state)
    assert states[0] == states[1] == states[2]


def test_twenty_simultaneous_turns_are_forty_actions():
    state = play([SAY] * 40, TOGETHER)
    assert (state.end_reason, state.turn, len(state.events)) == (EndReason.MAX_TURNS, 20, 40)


def test_words_of_the_last_simultaneous_turn_are_kept_when_somebody_leaves():
    state = play([LEAVE, SAY], TOGETHER)
    assert state.end_reason is EndReason.LEFT
    assert state.events == (Event(1, 0, LEAVE), Event(1, 1, SAY))


def test_random_order_follows_its_seed_and_uses_every_seat():
    rules = replace(DRAWN, max_turns=50)
    drawn = [seats(play([SAY] * 50, rules, DialogueState(order_seed=seed))) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 15 <= sum(drawn[0]) <= 35


def test_random_order_draws_only_seats_that_are_there():
    state = DialogueState(num_seats=4, left=frozenset({1}))
    state = play([SAY] * 200, replace(DRAWN, max_turns=200), state)
    assert set(seats(state)) == {0, 2, 3}


@pytest.mark.parametrize(
    ("pattern", "end"),
    [
        ("ppp", "stale"),
        ("pp", None),
        ("sppp", "stale"),
        ("pspsps", None),
        ("ppspp", None),
        ("ppsppp", "stale"),
        ("ppn", None),
        ("ppa", None),
    ],
)
def test_three_passes_in_a_row_end_a_dialogue(pattern, end):
    deeds = {"p": PASS, "s": SAY, "n": Action("nonverbal", "shrugs"), "a": Action("action", "sits")}
    assert play([deeds[letter] for letter in pattern]).end_reason == end


def test_passes_of_simultaneous_turns_are_counted_one_by_one():
    assert play([PASS] * 2, TOGETHER).end_reason is None
    assert play([PASS] * 4, TOGETHER).end_reason is EndReason.STALE
    assert play([PASS, PASS, SAY, PASS], TOGETHER).passes == 1


def test_stale_limit_and_turn_limit_are_what_the_rules_say():
    assert play([PASS], Rules(stale_limit=0)).end_reason is EndReason.STALE
    assert play([SAY], Rules(max_turns=1)).end_reason is EndReason.MAX_TURNS


def test_of_several_ends_leaving_goes_before_passing_before_the_limit():
    assert play([SAY, LEAVE], Rules(max_turns=2)).end_reason is EndReason.LEFT
    assert play([PASS] * 3, Rules(max_turns=3)).end_reason is EndReason.STALE
    two_passes = play([PASS] * 2, TOGETHER)
    assert play([PASS, LEAVE], TOGETHER, two_passes).end_reason is EndReason.LEFT


def test_three_people_go_on_when_one_leaves_and_skip_the_empty_seat():
    state = play([SAY, LEAVE, SAY, SAY, SAY], state=DialogueState(num_seats=3))
    assert seats(state) == [0, 1, 2, 0, 2]
    assert (state.left, state.active, state.is_over) == ({1}, (0, 2), False)
    assert play([LEAVE], state=state).end_reason is EndReason.LEFT


def test_simultaneous_turns_wait_only_for_seats_that_are_there():
    state = play([SAY, LEAVE, SAY], TOGETHER, DialogueState(num_seats=3))
    assert seats_to_act(state, TOGETHER) == (0, 2)
    assert play([SAY, SAY], TOGETHER, state).turn == 2


@pytest.mark.parametrize(("leaver", "end"), [(0, None), (1, "left"), (2, "left")])
def test_legacy_leave_looks_at_the_last_two_seats_only(leaver, end):
    actions = [SAY] * leaver + [LEAVE]
    assert play(actions, Rules(legacy_leave=True), DialogueState(num_seats=3)).end_reason == end
    assert play(actions, Rules(), DialogueState(num_seats=3)).end_reason is None


@pytest.mark.parametrize("rules", [TURNS, TOGETHER, DRAWN])
@pytest.mark.parametrize("pattern", ["l", "sl", "ssl"])
def test_legacy_leave_is_no_different_between_two(rules, pattern):
    actions = [LEAVE if letter == "l" else SAY for letter in pattern]
    assert play(actions, replace(rules, legacy_leave=True)) == play(actions, rules)


# Faults of earlier implementations, by their number in the list of known faults.


def test_f7_only_chosen_passes_count():
    """The second seat once ended a dialogue by passing once; the first could pass at will."""
    assert play([SAY, PASS]).passes == 1
    assert not play([SAY, PASS]).is_over
    assert not play([SAY, SAY, PASS]).is_over
    assert play([SAY, PASS, PASS, PASS]).end_reason is EndReason.STALE
    assert play([SAY, SAY, PASS, PASS, PASS]).end_reason is EndReason.STALE


def test_f7_the_published_asymmetry_can_be_had():
    legacy = Rules(legacy_stale=True)
    assert play([SAY, PASS], legacy).end_reason is EndReason.STALE
    assert not play([PASS], legacy).is_over
    assert not play([PASS, SAY, PASS, SAY, PASS], legacy).is_over
    assert not play([SAY, SAY, PASS], legacy).is_over
    assert play([SAY, SAY, PASS, PASS], legacy).end_reason is EndReason.STALE
    assert not play([PASS, SAY], replace(legacy, order="simultaneous")).is_over


@pytest.mark.parametrize("rules", [TURNS, TOGETHER, DRAWN])
def test_f8_a_dialogue_goes_on_after_the_first_words(rules):
    state = advance(DialogueState(), seats_to_act(DialogueState(), rules)[0], SAY, rules)
    assert not state.is_over
    assert seats_to_act(state, rules)


@pytest.mark.parametrize(
    ("actions", "end"), [([LEAVE], "left"), ([PASS] * 3, "stale"), ([SAY] * 20, "max_turns")]
)
def test_f9_a_dialogue_ends_without_any_judge(actions, end):
    assert play(actions).end_reason == end


def test_f10_unreadable_replies_are_no_passes():
    state = DialogueState()
    for _ in range(20):
        assert not state.is_over
        state = advance(state, seats_to_act(state, TURNS)[0], PASS, TURNS, valid=False)
    assert state.end_reason is EndReason.MAX_TURNS
    assert (state.passes, state.num_invalid(0), state.num_invalid(1)) == (0, 10, 10)
    assert not any(event.valid for event in state.events)


def test_f10_an_unreadable_reply_neither_adds_to_passes_nor_breaks_them():
    state = play([SAY, PASS, PASS])
    state = advance(state, 1, PASS, TURNS, valid=False)
    assert (state.passes, state.is_over) == (2, False)
    assert play([PASS], state=state).end_reason is EndReason.STALE


def test_f10_a_failure_is_an_end_of_its_own():
    state = stop(play([SAY, PASS]), EndReason.AGENT_FAILURE)
    assert (state.end_reason, state.events) == ("agent_failure", play([SAY, PASS]).events)
    assert seats_to_act(state, TURNS) == ()
    with pytest.raises(ValueError, match="over already"):
        stop(state, EndReason.AGREEMENT)
    assert stop(play([LEAVE]), EndReason.JUDGE_FAILURE).end_reason == "judge_failure"
    assert stop(advance(DialogueState(), 0, SAY, TOGETHER), EndReason.PROMPT_OVERFLOW).pending == ()


PRINT_ORDER = """
from istar_envs.sotopia.dialogue import *
rules, state = Rules(order="random"), DialogueState(num_seats=5, order_seed=7)
for _ in range(20):
    state = advance(state, seats_to_act(state, rules)[0], Action("speak", "Hm."), rules)
print([event.seat for event in state.events], allowed_kinds(DialogueState(), 0, Rules()))
"""


def test_f11_order_and_kinds_are_the_same_in_every_process():
    shown = {
        subprocess.run(
            [sys.executable, "-c", PRINT_ORDER],
            env=os.environ | {"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(shown) == 1
    assert "('none', 'speak', 'nonverbal', 'action', 'leave')" in shown.pop()


def test_f21_who_left_stays_away():
    state = play([LEAVE, SAY, SAY, SAY], state=DialogueState(num_seats=3))
    assert state.left == {0}
    for action in (PASS, SAY):
        with pytest.raises(ValueError, match="seat 0 cannot act in turn 5: it is the turn of seat 2"):
            advance(state, 0, action, TURNS)


def test_f21_nothing_that_happened_can_be_changed():
    state = play([SAY])
    for record, field in [(state, "turn"), (state.events[0], "seat"), (SAY, "argument"), (TURNS, "order")]:
        with pytest.raises(FrozenInstanceError):
            setattr(record, field, 0)


def test_f25_words_about_leaving_end_nothing():
    words = ["I left my keys.", "bye", "left the conversation", "my left hand", "have a good day", "[leave]"]
    assert not play([Action("speak", text) for text in words]).is_over


def test_words_about_doing_nothing_are_no_pass():
    assert play([Action("speak", "did nothing")] * 4).passes == 0


def test_equal_actions_have_one_form():
    assert Action("leave", "bye", (1,)) == LEAVE
    assert Action("none", "ignored") == PASS
    assert Action("speak", "psst", (2, 1, 2)).to == (1, 2)
    assert Action("speak", "a\ud800b").argument == "a\ufffdb"
    assert Action("speak", " {x} <b> \n").argument == " {x} <b> \n"


def test_misuse_is_refused_with_a_reason():
    with pytest.raises(ValueError, match=r"no action kind 'spaek'\. Did you mean .speak"):
        Action("spaek")
    with pytest.raises(ValueError, match="4001 characters; at most 4000"):
        Action("speak", "x" * (MAX_ARGUMENT + 1))
    with pytest.raises(ValueError, match="counted from 0"):
        Action("speak", "x", (-1,))
    with pytest.raises(ValueError, match="at least 2 seats, got 1"):
        DialogueState(num_seats=1)
    with pytest.raises(ValueError, match=r"seat 1 cannot act in turn 2: the dialogue is over \(left\)"):
        advance(play([LEAVE]), 1, SAY, TURNS)
    with pytest.raises(ValueError, match="seats 0 to 1"):
        advance(DialogueState(), 0, Action("speak", "x", (2,)), TURNS)
    with pytest.raises(ValueError, match="recorded as a pass, not as 'speak'"):
        advance(DialogueState(), 0, SAY, TURNS, valid=False)


def test_unplayable_rules_are_refused_with_a_reason():
    with pytest.raises(ConfigError, match="max_turns=0"):
        Rules(max_turns=0)
    with pytest.raises(ConfigError, match="stale_limit=-1"):
        Rules(stale_limit=-1)
    with pytest.raises(ConfigError, match=r"order='round robin'.*Did you mean .round_robin"):
        Rules(order="round robin")


def test_a_private_action_is_recorded_with_its_receivers():
    state = play([Action("speak", "psst", (2,))], state=DialogueState(num_seats=3))
    assert state.events[0].action.to == (2,)


RULES = st.builds(
    Rules,
    max_turns=st.integers(1, 12),
    stale_limit=st.integers(0, 3),
    order=st.sampled_from(["round_robin", "simultaneous", "random"]),
    legacy_stale=st.booleans(),
    legacy_leave=st.booleans(),
)
CHOICES = st.lists(
    st.sampled_from(["speak", "speak", "none", "unreadable", "leave"]), min_size=60, max_size=60
)


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(RULES, st.integers(2, 4), st.integers(0, 9), CHOICES)
def test_any_dialogue_only_grows_and_ends_in_time(rules, num_seats, order_seed, choices):
    state = DialogueState(num_seats=num_seats, order_seed=order_seed)
    for number, choice in enumerate(choices):
        if state.is_over:
            break
        waiting = seats_to_act(state, rules)
        assert waiting
        assert set(waiting) <= set(state.active)
        is_valid = choice != "unreadable"
        action = Action(choice if is_valid else "none", f"word {number}")
        before, state = state, advance(state, waiting[number % len(waiting)], action, rules, valid=is_valid)
        assert state.events[: len(before.events)] == before.events
        assert state.left >= before.left
        assert state.turn == before.turn + (len(waiting) == 1)
    assert state.is_over
    assert 1 <= state.turn <= rules.max_turns
    assert [event.turn for event in state.events] == sorted(event.turn for event in state.events)
    assert {event.turn for event in state.events} == set(range(1, state.turn + 1))
    for seat in state.left:
        kinds = [event.action.kind for event in state.events if event.seat == seat]
        assert kinds.index("leave") == len(kinds) - 1


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([SAY, PASS]), min_size=1, max_size=12), st.integers(0, 2))
def test_counting_turn_by_turn_agrees_with_counting_the_flat_record(actions, stale_limit):
    """As published: every step records every seat, unasked ones as passing; trailing passes end."""
    flat, num_steps = [], 0
    for number, action in enumerate(actions):
        flat += [action if seat == number % 2 else PASS for seat in (0, 1)]
        num_steps += 1
        spoken = [place for place, recorded in enumerate(flat) if recorded is SAY]
        if len(flat) - 1 - max(spoken, default=-1) > stale_limit:
            break
    rules = Rules(stale_limit=stale_limit, legacy_stale=True)
    state = DialogueState()
    while not state.is_over and state.turn < len(actions):
        state = play([actions[state.turn]], rules, state)
    assert state.turn == num_steps
