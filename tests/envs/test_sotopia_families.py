"""Settings of the own families: what always holds of them, and that a seed says it all."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from itertools import product

import pytest

from istar_envs.sotopia.book import FAMILIES
from istar_envs.sotopia.families import bargaining, division, friends, scheduling
from istar_envs.sotopia.families.moves import Move, parse_move, plural, write_move
from istar_envs.sotopia.families.outcome import rest, worth
from istar_envs.sotopia.records import ENVIRONMENT, Relationship, Setting
from istar_envs.sotopia.stakes import (
    BargainStakes,
    DivisionStakes,
    FriendsStakes,
    SchedulingStakes,
    stakes_from_dict,
    stakes_to_dict,
)

SEEDS = range(300)
MAX_WORDS = 60

FIRST_SETTINGS = "225cb40947fd4e001239c509f4b5b352d3eb70f77b8dd6ee843f8ae1c6e1ea95"
"""Digest of the first 20 settings of each family; changes only with the texts or the draws."""


def told(setting: Setting, seat: int) -> str:
    """What a seat is told: the scenario and its goal."""
    pieces = (*setting.scenario.context, *setting.scenario.goals[seat])
    return " ".join(piece.text for piece in pieces if piece.viewer != ENVIRONMENT)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_texts_are_short_and_ready_to_read(family: str) -> None:
    for seed in SEEDS:
        setting = FAMILIES[family](seed)
        for seat in (0, 1):
            text = told(setting, seat)
            assert len(text.split()) <= MAX_WORDS
            assert text.isascii()
            assert not set("{}<>") & set(text)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_people_are_two_and_whole(family: str) -> None:
    for seed in SEEDS:
        setting = FAMILIES[family](seed)
        first, second = setting.agents
        assert first.first_name != second.first_name
        assert first.last_name != second.last_name
        for person in setting.agents:
            assert 19 <= person.age <= 75
            assert all((person.occupation, person.pronouns, person.public_info, person.secret))
        assert len({first.pk, second.pk, setting.pk}) == 3


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_seeds_give_many_different_instances(family: str) -> None:
    instances = {repr(FAMILIES[family](seed).scenario.stakes) for seed in range(2000)}
    assert len(instances) >= 1980


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_stakes_survive_plain_values(family: str) -> None:
    stakes = FAMILIES[family](7).scenario.stakes
    assert stakes is not None
    assert stakes_from_dict(stakes_to_dict(stakes)) == stakes


def test_any_integer_is_a_seed() -> None:
    for seed in (-1, 0, 2**63, 10**30):
        assert bargaining.generate(seed) == bargaining.generate(seed)


def test_a_bargain_has_room_and_states_its_private_prices_to_their_owner_only() -> None:
    for seed in SEEDS:
        setting = bargaining.generate(seed)
        stakes = setting.scenario.stakes
        assert isinstance(stakes, BargainStakes)
        seller = stakes.seller_seat
        assert stakes.reserves[seller] < stakes.reserves[1 - seller] <= stakes.list_price
        assert stakes.reserves[seller] < stakes.targets[seller] <= stakes.list_price
        assert stakes.targets[1 - seller] < stakes.reserves[1 - seller]
        for seat in (0, 1):
            goal = setting.scenario.goals[seat][0].text
            assert f"{stakes.targets[seat]:.0f} dollars" in goal
            assert f"{stakes.reserves[seat]:.0f} dollars" in goal
            assert ("Sell" in goal or "seller" in goal) == (seat == seller)
        assert f"{stakes.list_price:.0f} dollars" in setting.scenario.context[0].text
        assert setting.scenario.relationship is Relationship.STRANGER
    assert {bargaining.generate(seed).scenario.stakes.seller_seat for seed in SEEDS} == {0, 1}  # type: ignore[union-attr]


def test_a_division_is_worth_ten_to_both_and_can_be_fair() -> None:
    for seed in SEEDS:
        setting = division.generate(seed)
        stakes = setting.scenario.stakes
        assert isinstance(stakes, DivisionStakes)
        counts = [count for _, count in stakes.items]
        assert len(counts) == 3
        assert all(1 <= count <= 3 for count in counts)
        for values in stakes.values:
            assert sum(c * v for c, v in zip(counts, values, strict=True)) == 10
            assert sum(v > 0 for v in values) >= 2
        assert all(max(pair) > 0 for pair in zip(*stakes.values, strict=True))
        shares = product(*(range(count + 1) for count in counts))
        assert any(
            worth(stakes, 0, s, 0) >= 0.6 and worth(stakes, 1, rest(stakes, s), 1) >= 0.6 for s in shares
        )
        context = setting.scenario.context[0].text
        assert all(f"{c} {n if c == 1 else plural(n)}" in context for n, c in stakes.items)
        for seat in (0, 1):
            goal = setting.scenario.goals[seat][0].text
            for (name, _), value in zip(stakes.items, stakes.values[seat], strict=True):
                assert f"{name} {value}" in goal or f"{name} is worth {value}" in goal


def test_friends_share_exactly_one_person_and_no_other_pair_of_job_and_hobby() -> None:
    for seed in SEEDS:
        setting = friends.generate(seed)
        stakes = setting.scenario.stakes
        assert isinstance(stakes, FriendsStakes)
        first, second = ({friend.name for friend in row} for row in stakes.friends)
        assert first & second == {stakes.answer}
        assert len(first) == len(second) == 5
        pairs = Counter(friend.attributes for row in stakes.friends for friend in row)
        assert sorted(pairs.values()) == [1] * 8 + [2]
        assert not {person.first_name for person in setting.agents} & (first | second)
        hidden = [piece.text for piece in setting.scenario.context if piece.viewer == ENVIRONMENT]
        assert stakes.answer in hidden[0]
        assert stakes.answer not in setting.scenario.context[0].text
        assert all(name in setting.scenario.goals[0][0].text for name in first)


def test_half_a_description_rarely_decides() -> None:
    shared = 0
    for seed in SEEDS:
        stakes = friends.generate(seed).scenario.stakes
        assert isinstance(stakes, FriendsStakes)
        jobs = Counter(
            dict(f.attributes)["job"] for row in stakes.friends for f in row if f.name != stakes.answer
        )
        answer = next(f for f in stakes.friends[0] if f.name == stakes.answer)
        shared += jobs[dict(answer.attributes)["job"]] > 0
    assert shared / len(SEEDS) > 0.8


def test_a_meeting_is_possible_at_a_time_worth_half_to_both() -> None:
    for seed in SEEDS:
        setting = scheduling.generate(seed)
        stakes = setting.scenario.stakes
        assert isinstance(stakes, SchedulingStakes)
        assert len(set(stakes.slots)) == 6
        best = []
        for seat in (0, 1):
            assert len(stakes.busy[seat]) == 2
            assert max(stakes.values[seat]) == 10
            goal = setting.scenario.goals[seat][0].text
            for slot, value in zip(stakes.slots, stakes.values[seat], strict=True):
                assert (slot in stakes.busy[seat]) == (value == 0)
                assert (slot in goal) == (value > 0)
            best.append(stakes.values[seat].index(10))
        assert best[0] != best[1]
        assert any(min(pair) >= 5 for pair in zip(*stakes.values, strict=True))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_own_goal_can_be_put_into_a_move(family: str) -> None:
    for seed in range(50):
        stakes = FAMILIES[family](seed).scenario.stakes
        match stakes:
            case BargainStakes():
                terms: list[float | tuple[int, ...] | str] = [*stakes.targets, *stakes.reserves]
            case DivisionStakes():
                terms = [*product(*(range(count + 1) for _, count in stakes.items))]
            case FriendsStakes():
                terms = [friend.name.casefold() for row in stakes.friends for friend in row]
            case SchedulingStakes():
                terms = [slot.casefold() for slot in stakes.slots]
            case None:
                raise AssertionError("own settings have stakes")
        for each in terms:
            move = Move("propose", each)
            assert parse_move(write_move(move, stakes), stakes) == move


def digest() -> str:
    """Digest of the first settings of every family."""
    made = [FAMILIES[family](seed) for family in sorted(FAMILIES) for seed in range(20)]
    said = [(told(s, 0), told(s, 1), [a.name for a in s.agents], repr(s.scenario.stakes)) for s in made]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def test_a_seed_gives_the_same_setting_in_any_process_and_version() -> None:
    assert digest() == FIRST_SETTINGS
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_sotopia_families as t; print(t.digest())"
    folder = os.path.dirname(__file__)
    other = subprocess.run(
        [sys.executable, "-c", code, folder],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert other.stdout.strip() == FIRST_SETTINGS
