"""Pictures of goods: right kind, right colour, visible, safe, small and the same everywhere."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.resources import files
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.webshop.pictures import FALLBACK, MAX_TITLE, _drawings, kind_of, picture_svg
from istar_envs.webshop.products import OptionGroup, Product
from istar_envs.webshop.tints import blend, find_colors, from_hex, luminance, to_hex

WHITE, BLACK, NAVY = "#fafafa", "#2a2a30", "#26355f"
DEPARTMENTS = ("beauty", "electronics", "fashion", "garden", "grocery")

PRODUCT = Product(
    asin="B000000001",
    title="Cotton Crewneck T-Shirt",
    description="",
    bullets=(),
    category="fashion",
    query="men's t-shirts",
    breadcrumb="Clothing › Men › Shirts",
    prices=(9.5,),
    is_priced=True,
    image="",
    rating=None,
    options=(),
    attributes=(),
)
NAMELESS = replace(PRODUCT, title="Wonder 3000", query="", breadcrumb="")
BLUE_OR_RED = replace(
    PRODUCT,
    options=(OptionGroup("size", ("s", "m"), ("", "")), OptionGroup("color", ("navy", "red"), ("", ""))),
)


def colors_of(svg: str) -> set[str]:
    return set(re.findall(r"#[0-9a-f]{6}", svg))


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("Argan Oil Shampoo, 16 oz", "bottle"),
        ("Night Cream with Retinol", "jar"),
        ("Whitening Toothpaste", "tube"),
        ("Soft Bristle Toothbrushes (Pack of 4)", "toothbrush"),
        ("Women's Summer Tops", "shirt"),
        ("Stretch Chino Pants", "trousers"),
        ("Floral Midi Dress", "dress"),
        ("Men's Slim Dress Shirt", "dress_shirt"),
        ("Trail Running Shoes", "shoe"),
        ("Canvas Tote Bag", "bag"),
        ("Over Ear Headphones", "headphones"),
        ("Slim Phone Case for Headphone Lovers", "phone"),
        ("Braided USB C Charging Cable", "cable"),
        ("Smart Watch with Heart Rate Sensor", "watch"),
        ("Desk Lamp with Pen Holder", "lamp"),
        ("Lamp Desk", "table"),
        ("Velvet Accent Chair", "chair"),
        ("Set of 2 Throw Pillow Covers", "cushion"),
        ("Blackout Curtains, 2 Panels", "curtain"),
        ("Ceramic Plant Pots", "plant"),
        ("Washable Area Rug", "rug"),
        ("Sparkling Lemon Soda", "can"),
        ("Breakfast Tea", "mug"),
        ("Kettle Cooked Potato Chips", "snack"),
        ("Oat Milk", "carton"),
        ("Dried Berries", "snack"),
    ],
)
def test_the_title_chooses_what_is_drawn(title, kind):
    assert kind_of(replace(NAMELESS, title=title)) == kind


def test_a_title_without_such_a_word_leaves_the_choice_to_query_then_category_then_box():
    assert kind_of(replace(NAMELESS, query="women's boots", breadcrumb="Clothing › Hats")) == "boot"
    assert kind_of(replace(NAMELESS, breadcrumb="Home › Lamps › Fairy")) == "lamp"
    assert kind_of(replace(NAMELESS, title="Wonder, for your sofa")) == "sofa"
    assert kind_of(NAMELESS) == FALLBACK == "box"


def test_a_word_inside_another_word_names_nothing():
    assert kind_of(replace(NAMELESS, title="Scarcity Capital Tablespoon")) == FALLBACK


@pytest.mark.parametrize(
    ("text", "colors"),
    [
        ("black", ["#2a2a30"]),
        ("Navy Blue", ["#26355f"]),
        ("dark green", ["#35603d"]),
        ("rose gold / black", ["#dca596", "#2a2a30"]),
        ("off-white", ["#f5f0e4"]),
        ("black and white stripes", ["#2a2a30", "#fafafa"]),
        ("standard", []),
        ("x-large", []),
        ("light", []),
        ("", []),
    ],
)
def test_colour_names_are_read_as_whole_words(text, colors):
    assert [to_hex(color) for color in find_colors(text)] == colors


def test_a_modifier_mixes_white_or_night_into_the_colour_after_it():
    assert find_colors("dark green")[0] == blend(from_hex("4f9a54"), (18, 16, 30), 0.42) == (53, 96, 61)
    assert find_colors("light pink")[0] == blend(from_hex("f09cb7"), (255, 255, 255), 0.45) == (247, 201, 215)


def test_blending_goes_from_one_colour_to_the_other():
    assert blend((0, 100, 200), (100, 0, 200), 0.0) == (0, 100, 200)
    assert blend((0, 100, 200), (100, 0, 200), 0.25) == (25, 75, 200)
    assert blend((0, 100, 200), (100, 0, 200), 1.0) == (100, 0, 200)
    assert luminance((255, 255, 255)) == pytest.approx(1.0)
    assert luminance((255, 0, 0)) == pytest.approx(0.2126)


def test_a_chosen_colour_tints_the_picture_and_a_second_one_its_details():
    svg = picture_svg(PRODUCT, "black / white")
    assert {BLACK, WHITE} <= colors_of(svg)
    assert WHITE not in colors_of(picture_svg(PRODUCT, "black"))
    assert picture_svg(PRODUCT, "red") != picture_svg(PRODUCT, "blue")


def test_a_value_without_colour_leaves_the_first_colour_on_offer():
    assert NAVY in colors_of(picture_svg(BLUE_OR_RED))
    assert picture_svg(BLUE_OR_RED, "m") == picture_svg(BLUE_OR_RED)
    assert NAVY not in colors_of(picture_svg(BLUE_OR_RED, "red"))


def test_titles_name_the_colour_of_clothes_but_not_of_creams_and_juices():
    assert WHITE in colors_of(picture_svg(replace(PRODUCT, title="White Shirt")))
    assert WHITE not in colors_of(picture_svg(replace(PRODUCT, title="White Shirt", category="beauty")))


def test_goods_without_colour_get_one_from_their_id():
    svgs = {picture_svg(replace(PRODUCT, asin=f"B{number:09}")) for number in range(40)}
    assert len(svgs) > 20


def test_each_department_has_its_own_background():
    walls = {
        re.search(r"<rect[^>]+>", picture_svg(replace(PRODUCT, category=name)))[0]
        for name in (*DEPARTMENTS, "toys")
    }
    assert len(walls) == 6


@pytest.mark.parametrize("department", [*DEPARTMENTS, "toys"])
@pytest.mark.parametrize("value", ["white", "black", "ivory", "clear", "silver", "navy", "yellow"])
def test_outlines_part_every_colour_from_itself_and_from_the_background(department, value):
    svg = picture_svg(replace(PRODUCT, category=department), value)
    spot = re.search(r'r="172" fill="#([0-9a-f]{6})"', svg)[1]
    tint, edge = re.search(r'fill="#([0-9a-f]{6})" stroke="#([0-9a-f]{6})"', svg).groups()
    assert abs(luminance(from_hex(edge)) - luminance(from_hex(tint))) > 0.15
    assert luminance(from_hex(spot)) - luminance(from_hex(edge)) > 0.25


def test_the_title_is_the_only_text_and_is_escaped():
    svg = picture_svg(replace(PRODUCT, title="<script>alert(1)</script> & 'tea' \x00\x1f\ud800\ufffe mug"))
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter() if element.text]
    assert texts == ["<script>alert(1)</script> & 'tea' mug"]
    assert root[0].tag.endswith("title")
    assert "<script" not in svg


def every_picture() -> list[str]:
    """One picture of each kind that there is."""
    drawings = _drawings()
    goods = {kind: replace(NAMELESS, title=word) for word, kind in drawings.kind_of.items()}
    assert goods.keys() == drawings.art.keys()
    return [picture_svg(product, "black / white") for product in goods.values()]


def test_every_word_of_the_file_of_drawings_names_one_kind_and_chooses_it():
    text = files("istar_envs.webshop").joinpath("data/pictures.toml").read_text(encoding="utf-8")
    kinds = tomllib.loads(text)["kinds"]
    pairs = [(word, kind) for kind, entry in kinds.items() for word in entry["words"]]
    assert len(kinds) >= 20
    assert len({word for word, _ in pairs}) == len(pairs)
    assert [kind_of(replace(NAMELESS, title=word)) for word, _ in pairs] == [kind for _, kind in pairs]


def test_every_drawing_is_well_formed_safe_and_small():
    for svg in every_picture():
        root = ElementTree.fromstring(svg)
        assert root.attrib["viewBox"] == "0 0 400 400"
        tags = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in root.iter()}
        assert tags <= {"svg", "title", "g", "path", "rect", "circle", "ellipse"}
        names = {name for element in root.iter() for name in element.attrib}
        assert not {name for name in names if name.startswith("on") or "href" in name or name == "style"}
        assert "url(" not in svg
        assert "{" not in svg
        assert len(svg.encode()) <= 3072 - 6 * MAX_TITLE


def test_even_the_longest_title_keeps_a_picture_below_3_kilobytes():
    for letter in "a&<\N{GRINNING FACE}":
        assert len(picture_svg(replace(PRODUCT, title=letter * 5000)).encode()) <= 3072


def test_a_picture_is_the_same_in_every_process():
    code = (
        "from istar_envs.webshop.pictures import picture_svg\n"
        "from istar_envs.webshop.products import OptionGroup, Product\n"
        f"print(picture_svg({PRODUCT!r}), end='')"
    )
    for salt in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONIOENCODING": "utf-8"},
        )
        assert run.stdout == picture_svg(PRODUCT)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(title=st.text(), asin=st.text(max_size=10), value=st.none() | st.text(), query=st.text())
def test_any_texts_give_a_well_formed_picture(title, asin, value, query):
    product = replace(PRODUCT, title=title, asin=asin, query=query)
    ElementTree.fromstring(picture_svg(product, value))
