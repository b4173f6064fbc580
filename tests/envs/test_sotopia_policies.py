"""Who does well against the scripted people, and that these never go below their floor."""

import pytest
from sotopia_play import EXPERT, NAIVE, PATIENT, SCRIPTED, play, played, stakes_of
from sotopia_players import BABBLER, GAMBLER, GUESSER, INSISTER, INSULTER, PASSER

from istar_envs.sotopia.book import FAMILIES
from istar_envs.sotopia.dialogue import Order, Rules
from istar_envs.sotopia.families.moves import Move, parse_move
from istar_envs.sotopia.families.outcome import read_table, settle, worth
from istar_envs.sotopia.official import load_official
from istar_envs.sotopia.partners.base import Partner
from istar_envs.sotopia.partners.character import STYLES, Style, character_of
from istar_envs.sotopia.partners.scripted import ScriptedPartner
from istar_envs.sotopia.stakes import FriendsStakes
from official_data import SOTOPIA, needs_sotopia

FEW, MANY = 60, 200
PLAYERS: tuple[Partner, ...] = (
    EXPERT,
    NAIVE,
    PATIENT,
    SCRIPTED,
    BABBLER,
    GAMBLER,
    INSISTER,
    INSULTER,
    PASSER,
)


def goals(family: str, player: Partner, *, seat: int | None = None, count: int = FEW) -> list[float]:
    """Goals of a player against the scripted person, in both seats or one."""
    dialogues = [played(family, player, seed) for seed in range(count)]
    return [
        settle(stakes_of(setting), state.events)[own].goal
        for setting, own, state in dialogues
        if seat in (None, own)
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(
    ("family", "margin"), [("bargaining", 4.0), ("division", 3.0), ("friends", 8.0), ("scheduling", 2.5)]
)
def test_a_good_policy_beats_a_naive_one_in_either_seat(family: str, margin: float, seat: int) -> None:
    expert, naive = (mean(goals(family, player, seat=seat, count=MANY)) for player in (EXPERT, NAIVE))
    assert expert > naive + margin
    assert expert > 6.0


@pytest.mark.parametrize(
    ("family", "margin"), [("bargaining", 2.0), ("division", 1.5), ("friends", 8.0), ("scheduling", 0.3)]
)
def test_reasons_pay_even_for_who_takes_any_offer_after_them(family: str, margin: float) -> None:
    naive, patient, expert = (mean(goals(family, player, count=MANY)) for player in (NAIVE, PATIENT, EXPERT))
    assert naive + margin < patient <= expert


@pytest.mark.parametrize("player", [PASSER, BABBLER, INSULTER], ids=lambda player: player.name)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_passing_babbling_and_insulting_get_nothing(family: str, player: Partner) -> None:
    assert mean(goals(family, player)) < 0.2


@pytest.mark.parametrize("family", ["bargaining", "division", "scheduling"])
def test_insisting_gets_nothing(family: str) -> None:
    assert mean(goals(family, INSISTER)) < 0.5


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_random_moves_do_far_worse_than_the_expert(family: str) -> None:
    assert mean(goals(family, GAMBLER)) < mean(goals(family, EXPERT)) - 2.5


def test_guessing_names_succeeds_no_more_often_than_chance() -> None:
    assert mean(goals("friends", GUESSER)) < 3.5  # one guess among five


@pytest.mark.parametrize("player", PLAYERS, ids=lambda player: player.name)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_scripted_person_never_goes_below_its_floor(family: str, player: Partner) -> None:
    for seed in range(FEW):
        setting, other, state = played(family, player, seed)
        stakes, own = stakes_of(setting), 1 - other
        floor = character_of(setting.pk, own, stakes).floor
        own_names = (
            {f.name.casefold() for f in stakes.friends[own]} if isinstance(stakes, FriendsStakes) else ()
        )
        for event in state.events:
            move = parse_move(event.action.argument, stakes) if event.action.kind == "action" else None
            if event.seat == own and isinstance(move, Move) and move.terms is not None:
                fits = move.terms in own_names if own_names else worth(stakes, own, move.terms, own) >= floor
                assert fits, (setting.pk, event)
        agreed = read_table(stakes, state.events).agreement
        if agreed:
            terms = agreed.terms
            assert terms in own_names if own_names else worth(stakes, own, terms, agreed.seat) >= floor


def test_styles_differ_in_what_they_leave_to_the_other() -> None:
    left: dict[Style, float] = {}
    for style in STYLES:
        partner, results = ScriptedPartner(style), []
        for seed in range(60):
            setting = FAMILIES["bargaining"](seed)
            results.append(settle(stakes_of(setting), play(setting, (EXPERT, partner)).events)[0].goal)
        left[style] = mean(results)
    assert left["boulware"] < left["linear"] < left["conceder"]


@pytest.mark.parametrize("order", ["simultaneous", "random"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_other_orders_of_turns_lead_to_agreements_too(family: str, order: Order) -> None:
    agreed = 0
    for seed in range(20):
        setting = FAMILIES[family](seed)
        state = play(setting, (EXPERT, SCRIPTED), Rules(order=order))
        agreed += read_table(stakes_of(setting), state.events).agreement is not None
    assert agreed >= 5


@needs_sotopia
def test_published_settings_with_stakes_can_be_played_too() -> None:
    settings = [each for each in load_official(SOTOPIA, subset="all") if each.scenario.stakes]
    assert len(settings) == 150
    goals_reached = []
    for setting in settings[::5]:
        for seats in ((EXPERT, SCRIPTED), (SCRIPTED, EXPERT)):
            results = settle(stakes_of(setting), play(setting, seats).events)
            assert all(0.0 <= result.goal <= 10.0 for result in results)
            goals_reached += [result.goal for result in results]
    assert mean(goals_reached) > 3.0
