"""Price bargaining: a seller and a buyer, each with a price they hope for and one that is worth nothing."""

from istar_envs.seeding import CounterRng
from istar_envs.sotopia.families.drawing import between, pick, word_lists
from istar_envs.sotopia.families.setting import make_setting, stream
from istar_envs.sotopia.records import Relationship, Setting
from istar_envs.sotopia.stakes import BargainStakes


def generate(seed: int) -> Setting:
    """Make the bargain of a seed.

    There is always room for a deal: the buyer's worthless price is well above the seller's. Either seat may
    be the seller. All prices are whole dollars.

    Args:
        seed: Any integer; equal seeds give equal settings everywhere.
    """
    rng = stream(seed, "bargaining")
    stakes = _draw_stakes(rng)
    words = word_lists("bargaining")
    roles = ("seller", "buyer") if stakes.seller_seat == 0 else ("buyer", "seller")
    first, second = (
        pick(rng, words[role]).format(
            item=stakes.item, target=f"{stakes.targets[seat]:.0f}", reserve=f"{stakes.reserves[seat]:.0f}"
        )
        for seat, role in enumerate(roles)
    )
    context = pick(rng, words["contexts"]).format(item=stakes.item, price=f"{stakes.list_price:.0f}")
    return make_setting(
        rng,
        f"bargaining#{seed}",
        Relationship.STRANGER,
        context=context,
        goals=(first, second),
        stakes=stakes,
    )


def _draw_stakes(rng: CounterRng) -> BargainStakes:
    """Draw an asking price, then the room for a deal below it, then hopes that reach across that room."""
    items = word_lists("bargaining")["items"]
    item = pick(rng, sorted(items))
    asking = between(rng, *items[item])
    low = asking * between(rng, 40, 60) // 100
    high = asking * between(rng, 80, 95) // 100
    room = high - low
    seller_hope = min(asking, low + room * between(rng, 75, 115) // 100)
    buyer_hope = max(1, high - room * between(rng, 75, 115) // 100)
    seller = rng.below(2)
    targets = (float(seller_hope), float(buyer_hope))
    reserves = (float(low), float(high))
    if seller == 1:
        targets, reserves = targets[::-1], reserves[::-1]
    return BargainStakes(item, float(asking), seller, targets, reserves)
