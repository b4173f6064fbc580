"""The price a product counts with, and the price cap of a goal: drawn, but alike in every process.

Each draw comes from a hash of the seed and the product's id, never from a generator that other draws
move on, so all copies of a goal have the same cap and text.
"""

import math

from istar_envs.seeding import CounterRng, derive_seed
from istar_envs.webshop.products import UNPRICED, Product

_HIGHEST_CAP = 990
_CAP_STEP = 10


def compat_price(product: Product, seed: int) -> float:
    """Return the hidden price of the published reward, in dollars.

    The price if there is one, a uniform draw inside a range, and 100.0 for an unpriced product.
    """
    if not product.is_priced:
        return UNPRICED
    if len(product.prices) == 1:
        return product.prices[0]
    low, high = product.prices
    return low + (high - low) * CounterRng(derive_seed(seed, "price", product.asin)).random()


def strict_price(product: Product) -> float:
    """Return the lowest price shown, in dollars; ∞ for an unpriced product, which is within no cap."""
    return min(product.prices) if product.is_priced else math.inf


def draw_cap(price: float, stream: int) -> float | None:
    """Draw the price cap of a goal.

    Candidates are the first four multiples of ten up to 990 above the price. Two different ones are
    drawn and the larger is taken: the 2nd, 3rd or 4th with probability 1/6, 1/3 and 1/2.

    Args:
        price: Price of the goal's product in dollars, or ∞.
        stream: Seed of this draw.

    Returns:
        The cap in dollars, or None if there are fewer than two candidates.

    Example:
        >>> draw_cap(980.0, stream=0) is None
        True
    """
    caps = [cap for cap in range(_CAP_STEP, _HIGHEST_CAP + 1, _CAP_STEP) if cap > price][:4]
    if len(caps) < 2:
        return None
    rng = CounterRng(stream)
    first = rng.below(len(caps))
    second = rng.below(len(caps) - 1)
    second += second >= first
    return float(caps[max(first, second)])


def cap_text(cap: float | None) -> str:
    """Return the end of the instruction that names the cap, "" without one.

    Example:
        >>> cap_text(40.0)
        ', and price lower than 40.00 dollars'
    """
    return "" if cap is None else f", and price lower than {cap:.2f} dollars"
