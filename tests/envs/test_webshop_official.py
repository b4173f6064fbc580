import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.errors import ConfigError, MissingAsset
from istar_envs.webshop import json_stream
from istar_envs.webshop.json_stream import read_list, read_mapping
from istar_envs.webshop.official import find_official, read_official
from istar_envs.webshop.products import Annotation, OptionGroup, Product
from official_data import WEBSHOP, needs_webshop


def record(asin: str = "B0000000A1", **fields: Any) -> dict[str, Any]:
    """A product record with every field that is read, and one that is not."""
    return {
        "asin": asin,
        "name": "Oak Stool",
        "full_description": "A stool.",
        "small_description": ["Strong", "Light"],
        "pricing": "$13.80",
        "images": ["https://example.org/1.jpg", "https://example.org/2.jpg"],
        "category": "garden",
        "query": " Bar Stools ",
        "product_category": "Home › Stools",
        "customization_options": "",
        "average_rating": 4.5,
        "seller_name": "somebody",
        **fields,
    }


def write(folder: Path, records: Any, mined: Any = None, human: Any = None) -> Path:
    """The files of a catalogue; attributes and human instructions only if given."""
    (folder / "items_shuffle.json").write_text(json.dumps(records), encoding="utf-8")
    (folder / "items_ins_v2.json").write_text(json.dumps(mined or {}), encoding="utf-8")
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(human), encoding="utf-8")
    return folder


def one(folder: Path, **fields: Any) -> Product:
    """The only product of a catalogue whose record has these fields."""
    (product,) = read_official(write(folder, [record(**fields)]))
    return product


def test_a_record_becomes_a_product(tmp_path: Path) -> None:
    assert one(tmp_path) == Product(
        asin="B0000000A1",
        title="Oak Stool",
        description="A stool.",
        bullets=("Strong", "Light"),
        category="garden",
        query="bar stools",
        breadcrumb="Home › Stools",
        prices=(13.8,),
        is_priced=True,
        image="https://example.org/1.jpg",
        rating=4.5,
        options=(),
        attributes=("DUMMY_ATTR",),
    )


def test_records_named_nan_or_with_long_asins_are_skipped(tmp_path: Path) -> None:
    records = [record("nan"), record("B0000000A12"), record("B0000000A2")]
    assert [product.asin for product in read_official(write(tmp_path, records))] == ["B0000000A2"]


def test_the_first_of_equal_asins_is_kept(tmp_path: Path) -> None:
    records = [record("A"), record("B"), record("a", name="Second")]
    products = list(read_official(write(tmp_path, records, {"A": {"attributes": ["oak"]}})))
    assert [(p.asin, p.title, p.attributes) for p in products] == [
        ("A", "Oak Stool", ("oak",)),
        ("B", "Oak Stool", ("DUMMY_ATTR",)),
    ]


@pytest.mark.parametrize(
    ("pricing", "prices", "tag"),
    [
        ("$877.80", (877.8,), "$877.8"),
        ("$9.98 - $12.98", (9.98, 12.98), "$9.98 to $12.98"),
        ("$1,299.00", (1299.0,), "$1299.0"),
        ("from $5 to $7 or $9", (5.0, 7.0), "$5.0 to $7.0"),
        ("$100.0", (100.0,), "$100.0"),
    ],
)
def test_prices_are_the_first_two_numbers_after_dollar_signs(
    tmp_path: Path, pricing: str, prices: tuple[float, ...], tag: str
) -> None:
    product = one(tmp_path, pricing=pricing)
    assert (product.prices, product.price_tag, product.is_priced) == (prices, tag, True)


@pytest.mark.parametrize("pricing", ["", " ", None])
def test_an_empty_price_counts_as_a_hundred_dollars(tmp_path: Path, pricing: str | None) -> None:
    product = one(tmp_path, pricing=pricing)
    assert (product.prices, product.is_priced) == ((100.0,), False)


def test_options_are_cleaned_and_keep_order_and_repeats(tmp_path: Path) -> None:
    choices = {
        "Size": [{"value": " 9/10 "}, {"value": "XL", "image": None}, {"value": "xl"}],
        "Fit Type": None,
        "Color": [{"value": "Red", "image": "https://example.org/red.jpg", "price": 3}],
    }
    assert one(tmp_path, customization_options=choices).options == (
        OptionGroup("size", ("9 | 10", "xl", "xl"), ("", "", "")),
        OptionGroup("color", ("red",), ("https://example.org/red.jpg",)),
    )


def test_of_option_names_that_differ_in_case_the_later_counts(tmp_path: Path) -> None:
    choices = {"Color": [{"value": "red"}], "size": [{"value": "s"}], "color": [{"value": "blue"}]}
    groups = one(tmp_path, customization_options=choices).options
    assert [(group.name, group.values) for group in groups] == [("color", ("blue",)), ("size", ("s",))]


def test_a_bare_bullet_becomes_a_list_of_one(tmp_path: Path) -> None:
    assert one(tmp_path, small_description="Strong").bullets == ("Strong",)


@pytest.mark.parametrize(
    ("rating", "stars"), [("", None), ("4.1", 4.1), (5, 5.0), ("N.A.", None), (None, None), (9, None)]
)
def test_a_rating_that_is_no_number_of_stars_is_none(
    tmp_path: Path, rating: Any, stars: float | None
) -> None:
    assert one(tmp_path, average_rating=rating).rating == stars


@pytest.mark.parametrize("images", [None, [], [None]])
def test_a_product_may_have_no_picture(tmp_path: Path, images: Any) -> None:
    assert one(tmp_path, images=images).image == ""


def test_attributes_and_instruction_come_from_the_attribute_file(tmp_path: Path) -> None:
    mined = {
        "A": {"attributes": ["oak"], "instruction": "Find oak", "instruction_attributes": ["oak"]},
        "B": {"attributes": []},
    }
    products = read_official(write(tmp_path, [record("A"), record("B"), record("C")], mined))
    assert [(p.attributes, p.instruction, p.instruction_attributes) for p in products] == [
        (("oak",), "Find oak", ("oak",)),
        ((), "", ()),
        (("DUMMY_ATTR",), "", ()),
    ]


def test_human_instructions_come_without_their_writers(tmp_path: Path) -> None:
    note = {
        "asin": "A",
        "instruction": "i want a stool.",
        "attributes": ["oak", "strong"],
        "options": ["color: red"],
        "instruction_attributes": ["oak"],
        "instruction_options": ["red"],
        "assignment_id": "SECRET1",
        "worker_id": "SECRET2",
    }
    human = {"A": [note], "ABSENT": [note]}
    (product,) = read_official(write(tmp_path, [record("A")], human=human))
    assert product.annotations == (Annotation("i want a stool.", ("oak",), ("red",), ("color: red",)),)
    assert "SECRET" not in repr(product)


def test_half_a_character_becomes_a_question_mark(tmp_path: Path) -> None:
    assert one(tmp_path, name="a\ud83db").title == "a?b"
    assert one(tmp_path, name="a\U0001f600b").title == "a\U0001f600b"


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"name": None}, ('"name"', "missing")),
        ({"name": 7}, ('"name"', "expected a text, not int '7'")),
        ({"asin": "B 1"}, ('"asin"', "visible ASCII")),
        ({"pricing": "$cheap"}, ('"pricing"', "'$cheap' is no price")),
        ({"pricing": "12.00"}, ('"pricing"', "is no price")),
        ({"pricing": "$" + "9" * 400}, ('"pricing"', "is no price")),
        ({"small_description": {"a": 1}}, ('"small_description"', "list of texts, not dict")),
        ({"small_description": ["a", 1]}, ('"small_description"', "one item is int '1'")),
        ({"images": "x"}, ('"images"', "list of addresses")),
        ({"customization_options": [1]}, ('"customization_options"', "expected an object")),
        ({"customization_options": {"Color": "red"}}, ('"customization_options.Color"', "expected a list")),
        ({"customization_options": {"Color": [{}]}}, ('"customization_options.Color"', 'no text "value"')),
        (
            {"customization_options": {"Color": [{"value": "red", "image": 3}]}},
            ('"customization_options.Color"', '"image"'),
        ),
    ],
)
def test_a_broken_product_is_named_by_file_record_and_field(
    tmp_path: Path, fields: dict[str, Any], parts: tuple[str, ...]
) -> None:
    products = read_official(write(tmp_path, [record("A"), record(**fields)]))
    with pytest.raises(ConfigError) as caught:
        list(products)
    for part in ("items_shuffle.json: record 2, field", *parts, "istar-envs fetch webshop"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("mined", "human", "message"),
    [
        ({"A": []}, None, "items_ins_v2.json: record A, .* expected an object"),
        ({"A": {"attributes": [1]}}, None, 'items_ins_v2.json: record A, field "attributes"'),
        ({"A": {"instruction": 1}}, None, 'items_ins_v2.json: record A, field "instruction"'),
        (None, {"A": {}}, "items_human_ins.json: record A, .* expected a list of instructions"),
        (None, {"A": [{}]}, 'items_human_ins.json: record A, field "instruction": it is missing'),
    ],
)
def test_a_broken_instruction_is_named_by_file_record_and_field(
    tmp_path: Path, mined: Any, human: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        list(read_official(write(tmp_path, [record("A")], mined, human)))


def test_a_record_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record 1, .* expected an object, not str 'x'"):
        list(read_official(write(tmp_path, ["x"])))


def test_files_of_one_ending_belong_together(tmp_path: Path) -> None:
    for name in ("items_shuffle_1000", "items_ins_v2_1000", "items_ins_v2", "items_human_ins"):
        (tmp_path / f"{name}.json").touch()
    files = find_official(tmp_path)
    assert files.attributes.name == "items_ins_v2_1000.json"
    assert files.human is not None
    assert files.human.name == "items_human_ins.json"


def test_of_several_sizes_one_must_be_named(tmp_path: Path) -> None:
    for name in ("items_shuffle", "items_shuffle_1000", "items_ins_v2"):
        (tmp_path / f"{name}.json").touch()
    with pytest.raises(ConfigError, match=r"items_shuffle.json, items_shuffle_1000.json\. Name the file"):
        find_official(tmp_path)
    assert find_official(tmp_path / "items_shuffle_1000.json").human is None


@pytest.mark.parametrize("chosen", ["", "items_shuffle.json", "absent"])
def test_missing_files_are_named_at_the_call(tmp_path: Path, chosen: str) -> None:
    with pytest.raises(MissingAsset, match="istar-envs fetch webshop"):
        read_official(tmp_path / chosen)


def test_a_missing_attribute_file_is_named_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "items_shuffle_7.json").touch()
    with pytest.raises(MissingAsset, match=r"no attribute file items_ins_v2_7\.json"):
        read_official(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not begin with"),
        ('{"a": 1}', "does not begin with"),
        ('[{"a": 1}, {"a"', r"record 2, character 11: no valid JSON \(Expecting ':' delimiter\)"),
        ('[{"a": 1}', 'record 1, .*there is no "," or "]" after it'),
        ("[1 2]", 'record 1, .*there is no "," or "]" after it'),
        ("[1,]", "record 2, .*Expecting value"),
        ("[1] 2", "something follows the closing"),
        ("[" * 100_000, "record 1, .*nested too deeply"),
    ],
)
def test_broken_lists_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        list(read_list(path))


@pytest.mark.parametrize(("text", "message"), [('{"a" 1}', 'no ":"'), ("{1: 2}", "a key is not a text")])
def test_broken_objects_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        list(read_mapping(path))


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'["\xff"]')
    with pytest.raises(ConfigError, match=r"x.json: the text is not UTF-8"):
        list(read_list(path))


def test_a_value_without_end_is_given_up_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 4)
    monkeypatch.setattr(json_stream, "LONGEST", 64)
    path = tmp_path / "x.json"
    path.write_text('["' + "a" * 1000 + '"]', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"record 1, character 1: .*Unterminated string"):
        list(read_list(path))


@pytest.mark.parametrize("chunk", range(1, 12))
def test_a_number_may_be_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    path = tmp_path / "x.json"
    path.write_text("[12.5,-3e+2 , 7]", encoding="utf-8")
    assert [value for _, value in read_list(path)] == [12.5, -300.0, 7]


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(values=st.lists(_values, max_size=6), chunk=st.integers(1, 9), indent=st.sampled_from([None, 1]))
def test_any_chunk_size_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], chunk: int, indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("stream") / "x.json"
    keys = [str(number) for number in range(len(values))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK", chunk)
        path.write_text(json.dumps(values, indent=indent), encoding="utf-8-sig")
        assert list(read_list(path)) == list(enumerate(json.loads(json.dumps(values)), start=1))
        path.write_text(
            json.dumps(dict(zip(keys, values, strict=True)), ensure_ascii=False), encoding="utf-8"
        )
        assert list(read_mapping(path)) == list(zip(keys, values, strict=True))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(copies: int) -> int:
        path = tmp_path / f"{copies}.json"
        with path.open("w", encoding="utf-8") as file:
            file.write("[" + ",".join([json.dumps(["x" * 1000])] * copies) + "]")
        tracemalloc.start()
        count = sum(1 for _ in read_list(path))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == copies
        return size

    assert peak(30_000) < 1.1 * peak(6_000)


@pytest.fixture(scope="module")
def official() -> list[Product]:
    return list(read_official(WEBSHOP))


@needs_webshop
def test_the_official_catalogue_has_its_published_counts(official: list[Product]) -> None:
    departments = [product.category for product in official]
    groups = [[group.name for group in product.options] for product in official]
    assert len(official) == 1000
    assert Counter(departments) == {
        "beauty": 238,
        "electronics": 229,
        "fashion": 200,
        "garden": 216,
        "grocery": 117,
    }
    assert len({product.query for product in official}) == 246
    assert sum(not product.description for product in official) == 301
    assert sum(not product.breadcrumb for product in official) == 22
    assert sum(len(product.prices) == 2 for product in official) == 93
    assert sum(product.prices == (100.0,) for product in official) == 89
    assert [sum(len(names) == n for names in groups) for n in (1, 2, 3)] == [245, 165, 13]
    assert sum(len(group.values) for product in official for group in product.options) == 3499
    assert [sum(name in names for names in groups) for name in ("color", "size")] == [286, 268]


@needs_webshop
def test_the_official_instructions_have_their_published_counts(official: list[Product]) -> None:
    assert sum(bool(product.instruction) for product in official) == 415
    assert len({phrase for product in official for phrase in product.attributes}) == 598
    assert sum(not product.attributes for product in official) == 185
    assert sum(len(product.attributes) for product in official) / 1000 == pytest.approx(2.83, abs=0.005)
    assert sum(len(product.annotations) for product in official) == 13
