"""Players with one habit each, to see how the scripted people take it."""

from collections.abc import Callable
from dataclasses import dataclass

from istar_envs.seeding import CounterRng, derive_seed
from istar_envs.sotopia.dialogue import PASS, Action
from istar_envs.sotopia.families.moves import Move, Terms, write_move
from istar_envs.sotopia.families.outcome import read_table
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.interests import best_terms
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes, Stakes

WORDS = "hello well the price offer maybe friend time please think good day because want".split()


@dataclass(frozen=True)
class Habit:
    """A player that does what a function says."""

    name: str
    choose: Callable[[PartnerView], Action]

    def act(self, view: PartnerView) -> Action:
        return self.choose(view)


def stakes_in(view: PartnerView) -> Stakes:
    stakes = view.setting.scenario.stakes
    assert stakes is not None
    return stakes


def do(move: Move, view: PartnerView) -> Action:
    return Action("action", write_move(move, stakes_in(view)))


def favourite(view: PartnerView) -> Terms:
    """What the own seat likes best."""
    stakes = stakes_in(view)
    if isinstance(stakes, FriendsStakes):
        return stakes.friends[view.seat][0].name.casefold()
    terms = best_terms(stakes, view.seat, 0.999, {})
    assert terms is not None
    return terms


def num_acts(view: PartnerView) -> int:
    return sum(event.seat == view.seat for event in view.events)


def babble(view: PartnerView) -> Action:
    """Say random words, wave, pass, and now and then propose or accept something at random."""
    rng = CounterRng(derive_seed(view.turn, "babble", view.setting.pk))
    words = " ".join(WORDS[rng.below(len(WORDS))] for _ in range(5))
    kind = rng.below(6)
    if kind == 0:
        return PASS
    if kind == 1:
        return Action("nonverbal", words)
    if kind == 2:
        return Action("action", f"propose {words}")
    return Action("speak", words)


def gamble(view: PartnerView) -> Action:
    """Propose random terms; accept or reject by the toss of a coin."""
    stakes, rng = stakes_in(view), CounterRng(derive_seed(view.turn, "gamble", view.setting.pk))
    if read_table(stakes, view.events).proposals[1 - view.seat] and rng.below(3) == 0:
        return do(Move("accept"), view)
    match stakes:
        case BargainStakes():
            terms: Terms = float(rng.below(2 * int(stakes.list_price)))
        case DivisionStakes():
            terms = tuple(rng.below(count + 1) for _, count in stakes.items)
        case FriendsStakes():
            terms = stakes.friends[view.seat][rng.below(len(stakes.friends[view.seat]))].name.casefold()
        case SchedulingStakes():
            terms = stakes.slots[rng.below(len(stakes.slots))].casefold()
    return do(Move("propose", terms), view)


def guess(view: PartnerView) -> Action:
    """Propose the own friends one after the other."""
    stakes = stakes_in(view)
    assert isinstance(stakes, FriendsStakes)
    if read_table(stakes, view.events).proposals[1 - view.seat]:
        return do(Move("accept"), view)
    names = [friend.name.casefold() for friend in stakes.friends[view.seat]]
    return do(Move("propose", names[num_acts(view) % len(names)]), view)


def insult_then_accept(view: PartnerView) -> Action:
    if view.turn + 2 > view.max_turns and read_table(stakes_in(view), view.events).proposals[1 - view.seat]:
        return do(Move("accept"), view)
    return Action("speak", "You stupid liar.")


PASSER = Habit("passer", lambda view: PASS)
BABBLER = Habit("babbler", babble)
GAMBLER = Habit("gambler", gamble)
INSISTER = Habit("insister", lambda view: do(Move("propose", favourite(view)), view))
INSULTER = Habit("insulter", insult_then_accept)
GUESSER = Habit("guesser", guess)
