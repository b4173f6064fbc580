"""The published colour rule: any option value that contains a colour name is replaced by that name.

Only ``compat`` scoring uses it. It also turns "standard" into "tan" and "dark red" into "dark", so
``strict`` scoring compares values as they are.
"""

from functools import lru_cache
from typing import Final

COLORS: Final = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy
    camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral
    cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass
    gray green grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon
    mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter
    pink plum purple rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone
    stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
    """.split()
)
"""The 102 colour names, tried in alphabetical order."""


@lru_cache(maxsize=16384)
def color_of_text(text: str) -> str:
    """Return the first colour name that occurs anywhere inside ``text``, else ``text`` itself.

    Example:
        >>> color_of_text("rectangular")
        'tan'
    """
    return next((color for color in COLORS if color in text), text)


@lru_cache(maxsize=16384)
def color_of_pair(name: str, value: str) -> str:
    """Return the colour name that equals ``name`` or ``value``, else the pair as Python writes a tuple.

    Example:
        >>> color_of_pair("color", "navy"), color_of_pair("size", "x-large")
        ('navy', "('size', 'x-large')")
    """
    pair = (name, value)
    return next((color for color in COLORS if color in pair), str(pair))
