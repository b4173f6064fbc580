"""Colour names and colour arithmetic for pictures: ``"dark navy / white"`` is a dark blue, then a white.

Only drawings use it; how option values count when a purchase is judged is decided elsewhere.
"""

import re
from typing import Final

Color = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

_NAMES: Final = """
    white fafafa; ivory f8f1dc; cream f5e9c8; off white f5f0e4; pearl eee9e0; beige dfcdab; nude e3c2a4;
    natural ddc7a0; sand d8bf92; champagne ecd6b0; khaki b5a472; tan c9a06c; camel bb8a51; caramel b9763a;
    brown 7b4f32; chocolate 5a3522; coffee 66452f; espresso 43302a; walnut 6d4a33; oak c39a63; mocha 85624b;
    chestnut 844430; wood a87a4d; taupe 9b8b7d; bronze a87238; copper bd6f43; gold d9ad45; rose gold dca596;
    silver c4c9d0; platinum d9dcdd; chrome bcc4cc; steel 8d98a5; gray 8f949c; grey 8f949c; slate 64707d;
    charcoal 44484f; graphite 55585d; black 2a2a30; onyx 2b2b33; red d03a3a; crimson b3203c; scarlet d5342b;
    burgundy 742338; wine 762a42; maroon 7b2532; cherry c22745; coral f37d69; salmon f29886; peach f7bd97;
    apricot f2b073; orange ee8133; rust b1522b; terracotta c8694a; amber eaa22f; mustard d2a02d;
    yellow f4cf3f; lemon f6e15b; pink f09cb7; hot pink ea4c90; blush eebdbb; rose e08295; fuchsia d33a8c;
    magenta c9388f; purple 7f4fa6; plum 733f6a; violet 8858bd; lavender b9a4df; lilac c5a6d8; mauve b490aa;
    eggplant 553653; blue 3f74c9; navy 26355f; royal 3454b8; sky 86c1ea; baby blue a9d0ef; azure 56a1dc;
    indigo 40418c; denim 4c6a92; cobalt 2c55ae; sapphire 2452a4; midnight 242a4c; aqua 67cccd; cyan 35b7cf;
    turquoise 3bbdb5; teal 24807f; green 4f9a54; mint a8dcbf; sage a3b393; olive 7c7d3f; army 5d643f;
    lime a3cf45; forest 2d5d3b; emerald 268a62; hunter 32593f; moss 78854a; jade 4ba47d; clear dfe9ee;
    transparent dfe9ee; porcelain f3dccb; vanilla f3e3b0; blonde dcbb78; honey d99f3f; cinnamon a65a2e;
    cognac 9c5329; cocoa 5c3b2a; natural black 2e2a28; berry 8f2d56; strawberry e4485c;
    linen ece3d2; nickel b9b5ae; brass c6a250; pine d3ab75; pine green 2f6650; clear pink f3b9cb;
    midnight green 1f4a4c; sand pink e8bfb2; sunflower f2b632
    """
_COLORS: Final[dict[str, Color]] = {
    name: (int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16))
    for name, code in (entry.strip().rsplit(maxsplit=1) for entry in _NAMES.split(";"))
}
_MODIFIERS: Final[dict[str, tuple[Color, float]]] = {
    "light": ((255, 255, 255), 0.45),
    "pale": ((255, 255, 255), 0.55),
    "pastel": ((255, 255, 255), 0.5),
    "soft": ((255, 255, 255), 0.35),
    "dark": ((18, 16, 30), 0.42),
    "dusty": ((150, 145, 148), 0.4),
    "deep": ((18, 16, 30), 0.32),
}
"""What a word before a colour mixes into it, and how much of it."""

_SEPARATOR: Final = re.compile(r"[/&+|,;()]|\band\b|\bwith\b|\bon\b")
_WORD: Final = re.compile(r"[a-z]+")


def find_colors(text: str) -> tuple[Color, ...]:
    """Read the colours that a text names, in its order; one per part between ``/``, ``,``, "and" and such.

    Of several names in one part the first counts, two words before one. Only whole words count.

    Example:
        >>> find_colors("rose gold / black")
        ((220, 165, 150), (42, 42, 48))
        >>> find_colors("standard")
        ()
    """
    found = (_find_color(_WORD.findall(part)) for part in _SEPARATOR.split(text.lower()))
    return tuple(color for color in found if color is not None)


def blend(color: Color, other: Color, share: float) -> Color:
    """Mix ``share`` of another colour into a colour, in [0, 1]."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(color, other, strict=True))
    return red, green, blue


def luminance(color: Color) -> float:
    """Brightness in [0, 1], by the Rec. 709 weights on the coded values."""
    return (0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2]) / 255


def from_hex(code: str) -> Color:
    """Read six hexadecimal digits."""
    return int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)


def to_hex(color: Color) -> str:
    """Write a colour for SVG and CSS.

    Example:
        >>> to_hex((42, 42, 48))
        '#2a2a30'
    """
    return "#{:02x}{:02x}{:02x}".format(*color)


def _find_color(words: list[str]) -> Color | None:
    for i, word in enumerate(words):
        color = _COLORS.get(" ".join(words[i : i + 2])) or _COLORS.get(word)
        if color is not None:
            other, share = _MODIFIERS.get(words[i - 1] if i else "", (color, 0.0))
            return blend(color, other, share)
    return None
