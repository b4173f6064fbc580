"""Reasons that the scripted people give, one after the other."""

from collections.abc import Iterable

from istar_envs.sotopia.dialogue import Event
from istar_envs.sotopia.partners.interests import NEVER, Wishes
from istar_envs.sotopia.partners.wording import lists
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes, Stakes


def role_of(stakes: Stakes, seat: int) -> str:
    """Return the section of the word lists for a seat."""
    match stakes:
        case BargainStakes():
            return "seller" if seat == stakes.seller_seat else "buyer"
        case DivisionStakes():
            return "division"
        case SchedulingStakes():
            return "scheduling"
        case FriendsStakes():
            return "friends"


def next_reason(stakes: Stakes, seat: int, events: Iterable[Event], wishes: Wishes) -> str | None:
    """Return a reason that the seat has not given yet, or None.

    Args:
        stakes: What is negotiated.
        seat: Whose reason.
        events: What happened.
        wishes: What the other seat seems to want.
    """
    said = {event.action.argument for event in events if event.seat == seat}
    topic = _topic(stakes, seat, wishes)
    reasons = (line.format(item=topic) for line in lists(role_of(stakes, seat))["reasons"])
    fresh = (reason[0].upper() + reason[1:] for reason in reasons)
    return next((reason for reason in fresh if reason not in said), None)


def _topic(stakes: Stakes, seat: int, wishes: Wishes) -> str:
    """Return what to give reasons for: the thing for sale, or the possible thing or time worth most."""
    match stakes:
        case BargainStakes():
            return stakes.item
        case DivisionStakes():
            names = tuple(name for name, _ in stakes.items)
        case SchedulingStakes():
            names = stakes.slots
        case FriendsStakes():
            raise ValueError("friends are not negotiated")
    possible = [wishes.get(name.casefold(), 0.0) > NEVER for name in names]
    ranked = zip(possible, stakes.values[seat], names, strict=True)
    return max(ranked, key=lambda entry: entry[:2])[2]
