"""The language of commitments and what agreements are worth, with hand-computed numbers."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.sotopia.dialogue import Action, Event
from istar_envs.sotopia.families.moves import InvalidMove, Move, describe_moves, parse_move, write_move
from istar_envs.sotopia.families.outcome import Table, read_table, settle, worth
from istar_envs.sotopia.stakes import (
    BargainStakes,
    DivisionStakes,
    Friend,
    FriendsStakes,
    SchedulingStakes,
    Stakes,
    stakes_from_dict,
    stakes_to_dict,
)

# The seller (seat 1) hopes for 140 and gains nothing at 80; the buyer hopes for 90 and gains nothing at 130.
BIKE = BargainStakes("bike", 150.0, 1, targets=(90.0, 140.0), reserves=(130.0, 80.0))
# Everything is worth 10 to each seat.
SHED = DivisionStakes((("hat", 2), ("box", 1), ("pen", 3)), values=((1, 5, 1), (3, 1, 1)))
PARTY = FriendsStakes(
    (
        (Friend("Mara", (("job", "nurse"), ("hobby", "golf"))), Friend("Ivo")),
        (Friend("Mara", (("job", "nurse"), ("hobby", "golf"))), Friend("Uma")),
    ),
    "Mara",
)
WEEK = SchedulingStakes(
    ("Monday 8:00", "Tuesday 14:00", "Friday 9:00"),
    busy=(("Monday 8:00",), ("Friday 9:00",)),
    values=((0, 4, 8), (10, 5, 0)),
)
ALL: tuple[Stakes, ...] = (BIKE, SHED, PARTY, WEEK)


def talk(*acts: tuple[int, str]) -> list[Event]:
    """Events of physical actions, one a turn."""
    return [Event(turn, seat, Action("action", words)) for turn, (seat, words) in enumerate(acts, start=1)]


@pytest.mark.parametrize(
    ("stakes", "words", "terms"),
    [
        (BIKE, "propose 120", 120.0),
        (BIKE, "Propose  $99.50 ", 99.5),
        (SHED, "propose 2 hats, 1 box", (2, 1, 0)),
        (SHED, "propose 1 hat, 1 box and 3 pens", (1, 1, 3)),
        (SHED, "propose 1 hats", (1, 0, 0)),
        (SHED, "propose nothing", (0, 0, 0)),
        (PARTY, "propose MARA", "mara"),
        (PARTY, "propose maria lopez", "maria lopez"),
        (WEEK, "propose Tuesday 14:00", "tuesday 14:00"),
    ],
)
def test_a_proposal_in_any_case_and_spacing_is_read(stakes: Stakes, words: str, terms: object) -> None:
    assert parse_move(words, stakes) == Move("propose", terms)  # type: ignore[arg-type]


@pytest.mark.parametrize("stakes", ALL)
def test_accept_and_reject_are_single_words(stakes: Stakes) -> None:
    assert parse_move(" Accept ", stakes) == Move("accept")
    assert parse_move("reject", stakes) == Move("reject")
    assert isinstance(parse_move("accept the offer", stakes), InvalidMove)
    assert isinstance(parse_move("I accept", stakes), InvalidMove)


@pytest.mark.parametrize(
    ("stakes", "words", "reason"),
    [
        (BIKE, "propose 120 dollars", "no price"),
        (BIKE, "propose -5", "no price"),
        (BIKE, "propose 1e9", "no price"),
        (BIKE, "propose ١٢٠", "no price"),
        (BIKE, "propose", "no move"),
        (BIKE, "shakes hands", "propose PRICE | accept | reject"),
        (SHED, "propose 3 hats", "there is no 3 hats: only 2"),
        (SHED, "propose 1 hat, 1 hat", "named twice"),
        (SHED, "propose 1 dog", "'1 hat'"),
        (SHED, "propose hats", "'1 hat'"),
        (SHED, "propose 1 hat,", "no count"),
        (PARTY, "propose 7", "no name"),
        (WEEK, "propose sunday 8:00", "none of the times"),
        (BIKE, "propose " + "1" * 300, "at most 200 characters"),
    ],
)
def test_other_words_commit_nobody_and_say_why(stakes: Stakes, words: str, reason: str) -> None:
    move = parse_move(words, stakes)
    assert isinstance(move, InvalidMove)
    assert reason in move.reason


def test_moves_are_described_by_family() -> None:
    assert [describe_moves(stakes).split(" | ")[0] for stakes in ALL] == [
        "propose PRICE",
        "propose COUNT THING, COUNT THING (what you get)",
        "propose NAME",
        "propose DAY TIME",
    ]


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.sampled_from(ALL))
def test_no_text_raises(words: str, stakes: Stakes) -> None:
    parse_move(words, stakes)
    parse_move("propose " + words, stakes)


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.tuples(st.just(BIKE), st.integers(0, 10**6).map(lambda cents: cents / 100)),
        st.tuples(st.just(SHED), st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3))),
        st.tuples(st.just(PARTY), st.sampled_from(["mara", "ivo"])),
        st.tuples(st.just(WEEK), st.sampled_from([slot.casefold() for slot in WEEK.slots])),
    )
)
def test_reading_inverts_writing(pair: tuple[Stakes, float | tuple[int, ...] | str]) -> None:
    stakes, terms = pair
    move = Move("propose", terms)
    assert parse_move(write_move(move, stakes), stakes) == move


def test_a_megabyte_is_refused_at_once() -> None:
    start = time.process_time()
    for stakes in ALL:
        assert isinstance(parse_move("propose " + "a b " * 250_000, stakes), InvalidMove)
    assert time.process_time() - start < 5.0  # under 0.01 s is usual


@pytest.mark.parametrize("stakes", ALL)
def test_stakes_survive_json(stakes: Stakes) -> None:
    assert stakes_from_dict(json.loads(json.dumps(stakes_to_dict(stakes)))) == stakes


def test_a_price_is_worth_its_way_from_reserve_to_target() -> None:
    buyer, seller = settle(BIKE, talk((0, "propose 95"), (1, "propose 110"), (0, "accept")))
    assert buyer.goal == pytest.approx(10 * (110 - 130) / (90 - 130))  # 5
    assert seller.goal == pytest.approx(10 * (110 - 80) / (140 - 80))  # 5
    assert buyer.agreed
    assert seller.agreed
    assert "110" in buyer.reason


def test_a_price_beyond_target_or_reserve_is_clipped() -> None:
    buyer, seller = settle(BIKE, talk((1, "propose 200"), (0, "accept")))
    assert (buyer.goal, seller.goal) == (0.0, 10.0)
    assert worth(BIKE, 0, 200.0, 1) == pytest.approx(-1.75)


def test_a_share_is_what_the_speaker_gets() -> None:
    first, second = settle(SHED, talk((1, "propose 2 hats, 1 pen"), (0, "accept")))
    assert second.goal == pytest.approx(7.0)  # 2·3 + 1 of 10
    assert first.goal == pytest.approx(7.0)  # the box 5 and two pens of 10
    assert "1 box, 2 pens" in first.reason
    assert "2 hats, 1 pen" in second.reason


def test_only_the_friend_in_common_counts() -> None:
    assert [r.goal for r in settle(PARTY, talk((0, "propose mara"), (1, "accept")))] == [10.0, 10.0]
    wrong = settle(PARTY, talk((0, "propose ivo"), (1, "accept")))
    assert [(r.goal, r.agreed) for r in wrong] == [(0.0, True), (0.0, True)]


def test_a_time_is_worth_its_share_of_the_best_free_time() -> None:
    first, second = settle(WEEK, talk((0, "propose tuesday 14:00"), (1, "accept")))
    assert (first.goal, second.goal) == (5.0, 5.0)  # 4 of 8, 5 of 10


def test_a_time_at_which_one_is_busy_is_worth_nothing_to_both() -> None:
    assert [r.goal for r in settle(WEEK, talk((0, "propose friday 9:00"), (1, "accept")))] == [0.0, 0.0]


@pytest.mark.parametrize(
    "acts",
    [
        (),
        ((0, "propose 100"),),
        ((0, "propose 100"), (0, "accept")),  # of one's own proposal
        ((1, "accept"), (0, "propose 100")),  # before there is one
        ((0, "propose 100"), (1, "reject"), (1, "accept")),  # of an answered one
        ((0, "propose 100"), (1, "propose 120"), (1, "accept")),
        ((0, "propose 100"), (1, "accept!")),
    ],
)
def test_without_an_accepted_open_proposal_there_is_no_agreement(acts: tuple[tuple[int, str], ...]) -> None:
    results = settle(BIKE, talk(*acts))
    assert [(r.goal, r.agreed, r.reason) for r in results] == [(0.0, False, "no agreement")] * 2


def test_talk_in_between_leaves_a_proposal_open() -> None:
    events = [*talk((0, "propose 100")), Event(2, 1, Action("speak", "reject")), Event(3, 0, Action("none"))]
    events.append(Event(4, 1, Action("action", "accept")))
    agreement = read_table(BIKE, events).agreement
    assert agreement
    assert (agreement.seat, agreement.terms, agreement.turn) == (0, 100.0, 1)


def test_the_newest_proposal_of_a_seat_counts() -> None:
    agreement = read_table(BIKE, talk((0, "propose 90"), (0, "propose 100"), (1, "accept"))).agreement
    assert agreement
    assert agreement.terms == 100.0


def test_a_counter_offer_answers_a_proposal_but_can_be_accepted_itself() -> None:
    table = read_table(BIKE, talk((0, "propose 90"), (1, "propose 120")))
    assert table.proposals[0] is None
    assert read_table(BIKE, talk((0, "propose 90"), (1, "propose 120"), (0, "accept"))).agreement


def test_an_agreement_is_final() -> None:
    events = talk((0, "propose 100"), (1, "accept"), (0, "propose 80"), (1, "accept"))
    agreement = read_table(BIKE, events).agreement
    assert agreement
    assert agreement.terms == 100.0


def test_words_said_bind_nobody() -> None:
    events = [Event(1, 0, Action("speak", "propose 100")), Event(2, 1, Action("action", "accept"))]
    assert read_table(BIKE, events) == Table()


def at_once(turn: int, first: str, second: str) -> list[Event]:
    """Events of both seats in one turn."""
    return [Event(turn, seat, Action("action", words)) for seat, words in enumerate((first, second))]


def test_proposals_of_the_same_turn_do_not_answer_each_other() -> None:
    assert all(read_table(BIKE, at_once(1, "propose 100", "propose 120")).proposals)
    assert read_table(BIKE, at_once(1, "propose 100", "accept")).agreement is None


@pytest.mark.parametrize(
    ("first", "second", "price"), [("accept", "propose 125", 120.0), ("propose 105", "accept", 100.0)]
)
def test_who_accepts_accepts_what_was_there_before_the_turn(first: str, second: str, price: float) -> None:
    events = [*at_once(1, "propose 100", "propose 120"), *at_once(2, first, second)]
    agreement = read_table(BIKE, events).agreement
    assert agreement
    assert agreement.terms == price


def test_a_proposal_that_the_partner_does_not_perceive_binds_nobody() -> None:
    events = [
        Event(1, 0, Action("action", "propose 100", to=(0,))),
        Event(2, 1, Action("action", "accept")),
    ]
    assert read_table(BIKE, events).agreement is None


def test_terms_of_another_family_are_refused() -> None:
    with pytest.raises(ValueError, match="do not belong to DivisionStakes"):
        worth(SHED, 0, 12.0, 0)
