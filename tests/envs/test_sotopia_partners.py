"""How the scripted people take what others say and do."""

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sotopia_play import EXPERT, NAIVE, SCRIPTED, play, played, stakes_of
from sotopia_world import setting as plain_setting

from istar_envs.errors import ConfigError
from istar_envs.sotopia.book import FAMILIES
from istar_envs.sotopia.dialogue import MAX_ARGUMENT, PASS, Action, DialogueState, Event, Rules, advance
from istar_envs.sotopia.families.moves import Move, parse_move
from istar_envs.sotopia.partners.base import PartnerFailed, PartnerView, act_in_all, partner_view
from istar_envs.sotopia.partners.character import Style
from istar_envs.sotopia.partners.replay import ReplayPartner
from istar_envs.sotopia.partners.scripted import ScriptedPartner
from istar_envs.sotopia.records import Setting
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes, Stakes

T = TypeVar("T")

TRANSCRIPTS = "f408fbff7bb43dfb22903407c6586c637cf2a75e1a7c08129d83f10f8048a0ba"
"""Digest of the first dialogues of each family; changes only with what people say or do."""


# One bargain, in detail: the scripted seller hopes for 200 and gains nothing at 100; the buyer starts.
BARGAIN = BargainStakes("lamp", 210.0, 1, targets=(100.0, 200.0), reserves=(200.0, 100.0))
DIVISION = DivisionStakes((("hat", 2), ("pen", 2)), values=((3, 2), (2, 2)))
MEETING = SchedulingStakes(
    ("Monday 8:00", "Tuesday 8:00", "Friday 8:00"),
    busy=((), ("Friday 8:00",)),
    values=((5, 6, 10), (10, 6, 0)),
)


def setting_with(stakes: Stakes, pk: str = "a task") -> Setting:
    base = FAMILIES["bargaining"](0)
    return replace(base, scenario=replace(base.scenario, stakes=stakes), pk=pk)


def answers(stakes: Stakes, *acts: Action, style: Style = "linear", pk: str = "a task") -> list[Action]:
    """What the scripted person in seat 1 answers to each action of seat 0, until it leaves."""
    setting, state, given = setting_with(stakes, pk), DialogueState(), []
    for act in acts:
        state = advance(state, 0, act, Rules())
        if state.is_over:
            break
        answer = ScriptedPartner(style).act(partner_view(setting, 1, state, Rules()))
        given.append(answer)
        state = advance(state, 1, answer, Rules())
        if answer.kind == "leave":
            break
    return given


def price(action: Action) -> float:
    move = parse_move(action.argument, BARGAIN)
    assert action.kind == "action", action
    assert isinstance(move, Move), action
    assert isinstance(move.terms, float), action
    return move.terms


def last_price(given: list[Action]) -> float:
    return [price(answer) for answer in given if answer.kind == "action"][-1]


def propose(terms: object) -> Action:
    return Action("action", f"propose {terms}")


def test_steps_are_answered_by_steps() -> None:
    asked = [price(answer) for answer in answers(BARGAIN, *map(propose, (110, 115, 120, 125)))]
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] < asked[0] - 10


def test_insisting_is_answered_by_words_and_moves_nothing_until_the_other_leaves() -> None:
    given = answers(BARGAIN, *[propose(110)] * 12)
    assert len({price(answer) for answer in given if answer.kind == "action"}) == 1
    assert given[-1] == Action("leave")


def test_a_stated_reason_moves_more_than_the_same_number_of_words_without() -> None:
    reason = Action("speak", "I cannot pay that much because my budget is small this month.")
    chatter = Action("speak", "I cannot pay that much and my budget is what it is, you know.")
    with_reason = answers(BARGAIN, propose(110), reason, propose(112))
    with_chatter = answers(BARGAIN, propose(110), chatter, propose(112))
    assert last_price(with_reason) < last_price(with_chatter)
    assert price(with_reason[1]) < price(with_reason[0])
    assert with_chatter[1].kind == "speak"


def test_a_repeated_reason_counts_once() -> None:
    reason = Action("speak", "It should be cheaper because it is quite old.")
    given = answers(BARGAIN, propose(110), reason, reason, reason)
    assert len({price(answer) for answer in given if answer.kind == "action"}) == 2


CHATTER = Action("speak", "What a nice day it is.")
STEPS = (propose(110), propose(120), propose(130))


def test_a_lowball_makes_it_stiffer() -> None:
    unmoved = answers(BARGAIN, *STEPS, CHATTER, propose(140))
    stiff = answers(BARGAIN, *STEPS, propose(20), propose(140))
    assert stiff[3].kind == "speak"
    assert last_price(stiff) > last_price(unmoved)


def test_an_insult_makes_it_stiffer_and_a_few_make_it_leave() -> None:
    insult = Action("speak", "You greedy liar!")
    unmoved = answers(BARGAIN, *STEPS, CHATTER, propose(140))
    hurt = answers(BARGAIN, *STEPS, insult, propose(140))
    assert hurt[3].kind == "speak"
    assert last_price(hurt) > last_price(unmoved)
    assert answers(BARGAIN, insult, insult, insult)[-1] == Action("leave")


def test_a_price_said_in_words_is_heard_but_binds_nobody() -> None:
    said = answers(
        BARGAIN, Action("speak", "Would you take $110?"), Action("speak", "Let us say 130 dollars.")
    )
    done = answers(BARGAIN, propose(110), propose(130))
    assert said == done


def test_years_and_times_are_no_prices() -> None:
    years = Action("speak", "It is 3 years old.")
    assert answers(BARGAIN, years) == answers(BARGAIN, CHATTER)


def test_a_good_offer_is_accepted_at_once() -> None:
    assert answers(BARGAIN, propose(200)) == [Action("action", "accept")]


def test_telling_what_one_wants_gets_it_offered() -> None:
    reasons = [Action("speak", f"It is fair because of {what}.") for what in ("all my work", "the old times")]
    hats, pens = (
        answers(DIVISION, Action("speak", words), *reasons, style="conceder")[2]
        for words in ("I want the hats. You can have the pens.", "I want the pens, not the hats.")
    )
    assert hats == propose("1 hat, 2 pens")
    assert pens == propose("2 hats, 1 pen")


def test_a_busy_person_says_so_and_a_told_busy_time_is_not_proposed_again() -> None:
    assert "Friday 8:00" in answers(MEETING, propose("friday 8:00"))[0].argument
    busy = Action("speak", "I am busy Monday 8:00.")
    given = answers(MEETING, propose("friday 8:00"), busy, propose("tuesday 8:00"))
    assert given[1:] == [propose("tuesday 8:00"), Action("action", "accept")]


def test_nothing_is_proposed_when_no_good_time_is_left() -> None:
    stakes = replace(MEETING, values=((5, 6, 10), (10, 1, 0)))
    given = answers(
        stakes, Action("speak", "I am busy Monday 8:00."), Action("speak", "Sorry, no time then.")
    )
    assert [answer.kind for answer in given] == ["speak", "speak"]


def friends_setting(seed: int) -> tuple[Setting, FriendsStakes]:
    setting = FAMILIES["friends"](seed)
    stakes = setting.scenario.stakes
    assert isinstance(stakes, FriendsStakes)
    return setting, stakes


def ask_friends(seed: int, *acts: Action) -> list[Action]:
    """What the scripted person in seat 1 answers to each action of seat 0."""
    setting, state, given = friends_setting(seed)[0], DialogueState(), []
    for act in acts:
        state = advance(state, 0, act, Rules())
        given.append(SCRIPTED.act(partner_view(setting, 1, state, Rules())))
        state = advance(state, 1, given[-1], Rules())
    return given


@pytest.mark.parametrize("seed", range(10))
def test_the_description_of_a_shared_friend_brings_the_name(seed: int) -> None:
    _, stakes = friends_setting(seed)
    facts = next(dict(f.attributes) for f in stakes.friends[0] if f.name == stakes.answer)
    words = f"My friend works as a {facts['job']} and loves {facts['hobby']}."
    assert ask_friends(seed, Action("speak", words)) == [propose(stakes.answer.casefold())]


@pytest.mark.parametrize("seed", range(10))
def test_half_a_description_brings_no_name(seed: int) -> None:
    _, stakes = friends_setting(seed)
    facts = next(dict(f.attributes) for f in stakes.friends[0] if f.name == stakes.answer)
    assert ask_friends(seed, Action("speak", f"Do you know a {facts['job']}?"))[0].kind == "speak"


@pytest.mark.parametrize("seed", range(10))
def test_the_description_of_a_stranger_brings_no_name(seed: int) -> None:
    _, stakes = friends_setting(seed)
    facts = next(dict(f.attributes) for f in stakes.friends[0] if f.name != stakes.answer)
    given = ask_friends(seed, Action("speak", f"I know a {facts['job']} who likes {facts['hobby']}."))
    assert given[0].kind == "speak"


def test_listing_names_is_refused_and_ends_the_talk() -> None:
    _, stakes = friends_setting(0)
    names = Action("speak", "I know " + ", ".join(friend.name for friend in stakes.friends[0]))
    given = ask_friends(0, names, names)
    assert given[0].kind == "speak"
    assert stakes.answer not in given[0].argument
    assert given[1] == Action("leave")


def test_repeating_its_own_description_does_not_trick_it_into_a_name() -> None:
    for seed in range(10):
        (first,) = ask_friends(seed, Action("speak", "Hello there."))
        echo = ask_friends(seed, Action("speak", "Hello there."), first)[-1]
        assert echo.kind == "speak"


@pytest.mark.parametrize("family", ["bargaining", "division", "scheduling"])
def test_a_scripted_person_does_not_look_at_the_other_seats_numbers(family: str) -> None:
    for seed in range(40):
        setting, other, state = played(family, EXPERT, seed)
        own = 1 - other
        blind = replace(
            setting, scenario=replace(setting.scenario, stakes=_without_numbers(stakes_of(setting), other))
        )
        for turn, event in enumerate(state.events):
            before = replace(state, events=state.events[:turn], turn=turn, end_reason=None)
            if event.seat == own:
                assert SCRIPTED.act(partner_view(blind, own, before, Rules())) == event.action


def _without_numbers(stakes: Stakes, seat: int) -> Stakes:
    """The same stakes with made-up private numbers of one seat."""

    def put(pair: tuple[T, T], value: T) -> tuple[T, T]:
        return (value, pair[1]) if seat == 0 else (pair[0], value)

    match stakes:
        case BargainStakes():
            return replace(stakes, targets=put(stakes.targets, 1.0), reserves=put(stakes.reserves, 2.0))
        case DivisionStakes():
            return replace(stakes, values=put(stakes.values, (7,) * len(stakes.items)))
        case SchedulingStakes():
            values = put(stakes.values, (1,) * len(stakes.slots))
            return replace(stakes, values=values, busy=put(stakes.busy, ()))
    raise AssertionError(stakes)


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.integers(0, 50),
    st.lists(st.text(max_size=200), max_size=6),
    st.booleans(),
)
def test_no_words_make_it_raise(family: str, seed: int, lines: list[str], said: bool) -> None:
    setting, state = FAMILIES[family](seed), DialogueState()
    for line in lines:
        if not state.is_over:
            state = advance(state, 0, Action("speak" if said else "action", line), Rules())
            answer = SCRIPTED.act(partner_view(setting, 1, state, Rules()))
            state = advance(state, 1, answer, Rules())


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("word", ["because ", "$1 ", "not, ", "a", "1,", "Monday 8:00 "])
def test_long_words_are_heard_in_no_time(family: str, word: str) -> None:
    events = tuple(
        Event(1 + turn, turn % 2, Action("speak", (word * MAX_ARGUMENT)[:MAX_ARGUMENT])) for turn in range(19)
    )
    view = PartnerView(FAMILIES[family](0), 1, events, 20, 20, ("none", "speak", "action", "leave"))
    start = time.process_time()
    SCRIPTED.act(view)
    assert time.process_time() - start < 1.0  # under 0.01 s is usual


def test_settings_without_stakes_are_refused_with_a_hint() -> None:
    view = partner_view(plain_setting(), 0, DialogueState(), Rules())
    for partner in (SCRIPTED, EXPERT, NAIVE):
        with pytest.raises(ConfigError, match="scripted people need stakes"):
            partner.act(view)


def test_a_replay_plays_the_same_dialogue() -> None:
    for family in sorted(FAMILIES):
        setting, seat, state = played(family, EXPERT, 4)
        recorded = {setting.pk: [event.action for event in state.events if event.seat != seat]}
        again = play(setting, (EXPERT, ReplayPartner(recorded)))
        assert again == state


def test_a_replay_without_a_recording_fails_and_says_so() -> None:
    view = partner_view(FAMILIES["friends"](0), 0, DialogueState(), Rules())
    with pytest.raises(PartnerFailed, match="no recording of task 'friends#0'"):
        ReplayPartner({}).act(view)
    with pytest.raises(PartnerFailed, match="has 0 actions, but the dialogue needs number 1"):
        ReplayPartner({"friends#0": []}).act(view)


def test_a_failure_takes_the_place_of_an_action_in_many_dialogues() -> None:
    views = [partner_view(FAMILIES["friends"](seed), 0, DialogueState(), Rules()) for seed in (0, 1)]
    partner = ReplayPartner({"friends#1": [PASS]})
    failure, action = act_in_all(partner, views)
    assert isinstance(failure, PartnerFailed)
    assert action == PASS


def test_a_partner_that_can_act_in_many_dialogues_at_once_does() -> None:
    class Together:
        name = "together"

        def act(self, view: PartnerView) -> Action:
            raise AssertionError("asked one by one")

        def act_many(self, views: list[PartnerView]) -> list[Action | PartnerFailed]:
            return [PASS for _ in views]

    assert act_in_all(Together(), [partner_view(FAMILIES["friends"](0), 0, DialogueState(), Rules())]) == [
        PASS
    ]


def test_what_is_for_others_looks_like_a_pass() -> None:
    state = advance(DialogueState(), 0, Action("speak", "to myself", to=(0,)), Rules())
    setting = FAMILIES["friends"](0)
    assert partner_view(setting, 1, state, Rules()).events[0].action == PASS
    assert partner_view(setting, 0, state, Rules()).events[0].action.argument == "to myself"


def digest() -> str:
    """Digest of what is said and done in the first dialogues of every family."""
    said = [
        [
            (event.seat, event.action.kind, event.action.argument)
            for event in played(family, player, seed)[2].events
        ]
        for family in sorted(FAMILIES)
        for player in (EXPERT, SCRIPTED)
        for seed in range(10)
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def test_a_seed_gives_the_same_transcript_in_any_process() -> None:
    assert digest() == TRANSCRIPTS
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_sotopia_partners as t; print(t.digest())"
    other = subprocess.run(
        [sys.executable, "-c", code, os.path.dirname(__file__)],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert other.stdout.strip() == TRANSCRIPTS
