"""The in-process search: words, stems, BM25 by hand, building in blocks, pruning without loss."""

import math
import pickle
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.errors import MissingAsset
from istar_envs.webshop.analysis import STOP_WORDS, analyze, words
from istar_envs.webshop.index_writer import IndexWriter
from istar_envs.webshop.lucene import LuceneEngine
from istar_envs.webshop.porter import stem
from istar_envs.webshop.search import Bm25, length_codes

STEMS = """
caresses caress, ponies poni, ties ti, caress caress, cats cat, feed feed, agreed agre, plastered plaster,
bled bled, motoring motor, sing sing, conflated conflat, troubled troubl, sized size, hopping hop, tanned
tan, falling fall, hissing hiss, fizzed fizz, failing fail, filing file, happy happi, sky sky, relational
relat, conditional condit, rational ration, valenci valenc, digitizer digit, conformabli conform, radicalli
radic, differentli differ, vileli vile, analogousli analog, vietnamization vietnam, predication predic,
operator oper, feudalism feudal, decisiveness decis, hopefulness hope, callousness callous, formaliti
formal, sensitiviti sensit, sensibiliti sensibl, triplicate triplic, formative form, formalize formal,
electriciti electr, electrical electr, hopeful hope, goodness good, revival reviv, allowance allow,
inference infer, airliner airlin, gyroscopic gyroscop, adjustable adjust, defensible defens, irritant irrit,
replacement replac, adjustment adjust, dependent depend, adoption adopt, homologou homolog, communism
commun, activate activ, angulariti angular, homologous homolog, effective effect, bowdlerize bowdler,
probate probat, rate rate, cease ceas, controll control, roll roll, possibly possibl, archaeology
archaeolog, yes ye, eye ey, saying sai, dying dy, is is, women women
"""


def build(folder: Path, texts: list[str], *, ranks: list[int] | None = None, **options: int) -> Path:
    writer = IndexWriter(folder / "index", **options)
    for text in texts:
        writer.add(text)
    writer.finish(np.array(range(len(texts)) if ranks is None else ranks, np.int32))
    return folder


def plain_ranking(texts: list[str], ranks: list[int], query: str, k: int) -> list[tuple[int, float]]:
    """BM25 straight from its definition: every document, every term, 32-bit values summed in 64 bits."""
    one, k1, b = np.float32(1), np.float32(0.9), np.float32(0.4)
    documents = [Counter(analyze(text)) for text in texts]
    lengths = np.array([document.total() for document in documents])
    num_documents = np.count_nonzero(lengths)
    average = np.float32(lengths.sum() / max(num_documents, 1))
    rounded = [rounded_length(int(length)) for length in lengths]
    sums = dict.fromkeys(range(len(texts)), 0.0)
    for term, count in Counter(analyze(query)).items():
        rows = [row for row, document in enumerate(documents) if term in document]
        rarity = np.float32(math.log(1 + (num_documents - len(rows) + 0.5) / (len(rows) + 0.5)))
        weight = np.float32(count) * rarity
        for row in rows:
            scale = one / (k1 * ((one - b) + b * np.float32(rounded[row]) / average))
            sums[row] += float(weight - weight / (one + np.float32(documents[row][term]) * scale))
    scored = [(row, float(np.float32(total))) for row, total in sums.items() if total]
    return sorted(scored, key=lambda pair: (-pair[1], ranks[pair[0]]))[:k]


def rounded_length(length: int) -> int:
    """Keep the four leading bits of what exceeds 24."""
    above = length - 24
    if above < 16:
        return length
    shift = above.bit_length() - 4
    return 24 + (above >> shift << shift)


def test_words_are_stemmed_by_porters_revised_rules():
    pairs = [pair.split() for pair in STEMS.replace("\n", " ").split(",")]
    assert {word: stem(word) for word, _ in pairs} == dict(pairs)


def test_stop_words_possessives_and_case_go():
    assert len(STOP_WORDS) == 33
    assert analyze("The WOMAN'S dresses are not for John\u2019s cat") == ["woman", "dress", "john", "cat"]


@pytest.mark.parametrize(
    "text",
    [
        "size 2.5 x 60.00cm",
        "1,000;5 a.b o'clock x:y 7 30 a b 1'2",
        "e mail snake_case _a_ 1a_b2",
        "10 café naïve 5é",
        "★ ✔ ™ ❤\ufe0f é",
        "東 京 ひ ら タワー",
        '한국 צה"ל ไทย م٢',
        "l：r 5．6 a·b",
        "👨\u200d👩 🇩🇪 👍🏽",
        "e\u0301t x\u00ady",
    ],
)
def test_these_texts_have_one_word_between_spaces(text):
    assert words(text) == text.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e-mail c++ a/b (x) 7:30 a,b a.1 'x'", "e mail c a b x 7 30 a b a 1 x".split()),
        ("10² ½ ①② 5£", ["10", "5"]),
        ("東京ひらタワー한국ไทย", ["東", "京", "ひ", "ら", "タワー", "한국", "ไทย"]),
        ("★★✔a™", ["★", "★", "✔", "a", "™"]),
        ("🇩🇪🇫🇷", ["🇩🇪", "🇫🇷"]),
        ("é_é __ é", ["é_é", "é"]),
        ("", []),
    ],
)
def test_words_end_where_unicode_says(text, expected):
    assert words(text) == expected


def test_case_folds_character_by_character():
    assert analyze("İΣ ÀΣ") == ["iσ", "àσ"]


def test_a_word_longer_than_255_characters_is_cut():
    assert [len(word) for word in words("x" * 600)] == [255, 255, 90]
    assert [len(word) for word in words("\u00e9" * 300)] == [255, 45]


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="aZ1s_.:,;'\" -()", max_size=30))
def test_plain_ascii_is_cut_as_within_other_text(text):
    assert words(text + " \u00e9")[:-1] == [word for word in words(text) if word.strip("_")]


@pytest.mark.parametrize(
    "text",
    [
        "_" * 10**6,
        "a'" * 10**6,
        "\u0301" * 10**6,
        "\ud800\x00\n",
        "\u200d_" * 10**5,
        "\U0001f469\u200d" * 10**5,
    ],
)
def test_hostile_text_takes_linear_time_and_never_raises(text):
    analyze(text)


def test_lengths_lose_all_but_four_bits_beyond_forty():
    lengths = np.array([0, 1, 40, 41, 42, 159, 207])
    assert length_codes(lengths).tolist()[:3] == [0, 1, 40]
    assert [rounded_length(int(length)) for length in lengths] == [0, 1, 40, 40, 42, 152, 200]


def test_scores_match_a_hand_computed_example(tmp_path):
    engine = Bm25(build(tmp_path, ["red shoe", "red red hat wool", "blue hat"]))
    # 3 documents of 2, 4 and 2 words: mean 8/3. "red" is in two of them: ln(1 + 1.5 / 2.5) = 0.4700.
    # Row 0: 0.4700 · 1 / (1 + 0.9 · (0.6 + 0.4 · 0.75)) = 0.25967.
    # Row 1: 0.4700 · 2 / (2 + 0.9 · (0.6 + 0.4 · 1.5)) = 0.30520.
    assert engine.scored("red") == [
        (1, pytest.approx(0.30520, abs=1e-5)),
        (0, pytest.approx(0.25967, abs=1e-5)),
    ]
    assert engine.scored("red red") == [
        (1, pytest.approx(0.61040, abs=1e-5)),
        (0, pytest.approx(0.51934, abs=1e-5)),
    ]


def test_equal_scores_come_by_ascending_asin(tmp_path):
    engine = Bm25(build(tmp_path, ["red hat"] * 4, ranks=[2, 0, 3, 1]))
    assert engine.search("hat") == (1, 3, 0, 2)
    assert engine.search("hat", k=2) == (1, 3)


def test_no_known_word_finds_nothing(tmp_path):
    engine = Bm25(build(tmp_path, ["red hat", ""]))
    assert [engine.search(query) for query in ("", "the", "zebra", "\u2605", "re", "zz")] == [()] * 6
    assert engine.search("hat", k=0) == ()


def test_a_catalogue_of_empty_documents_finds_nothing(tmp_path):
    assert Bm25(build(tmp_path, ["", "the"])).search("the hat") == ()


def test_more_than_fifty_hits_are_cut_to_fifty(tmp_path):
    engine = Bm25(build(tmp_path, ["hat"] * 60))
    assert engine.search("hat") == tuple(range(50))


def made_up_texts(seed: int, count: int) -> list[str]:
    generator = np.random.default_rng(seed)
    vocabulary = [f"w{number}" for number in range(40)]
    chances = 1 / np.arange(1, 41)
    chances /= chances.sum()
    return [
        " ".join(generator.choice(vocabulary, generator.integers(0, 90), p=chances)) for _ in range(count)
    ]


def test_many_small_blocks_make_the_same_files_as_one(tmp_path):
    texts = made_up_texts(0, 60)
    one = build(tmp_path / "one", texts) / "index"
    many = build(tmp_path / "many", texts, block_tokens=7) / "index"
    assert {file.name for file in one.iterdir()} == {file.name for file in many.iterdir()}
    for file in one.iterdir():
        assert file.read_bytes() == (many / file.name).read_bytes(), file.name


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 80), k=st.sampled_from([1, 3, 10, 50]))
def test_pruning_changes_nothing(tmp_path_factory, seed, count, k):
    generator = np.random.default_rng(seed)
    texts, ranks = made_up_texts(seed, count), generator.permutation(count).tolist()
    folder = build(tmp_path_factory.mktemp("index"), texts, ranks=ranks, block_tokens=500)
    for _ in range(5):
        query = " ".join(f"w{number}" for number in generator.integers(0, 45, generator.integers(1, 20)))
        expected = plain_ranking(texts, ranks, query, k)
        assert Bm25(folder).scored(query, k) == expected
        for leaders in (1, 8):
            assert Bm25(folder, batch=1, leaders=leaders).scored(query, k) == expected


def test_a_pickled_engine_reopens_its_folder(tmp_path):
    engine = Bm25(build(tmp_path, ["red hat", "blue hat"]))
    assert len(pickle.dumps(engine)) < 1000
    assert pickle.loads(pickle.dumps(engine)).scored("red hat") == engine.scored("red hat")


def test_threads_share_an_engine(tmp_path):
    engine = Bm25(build(tmp_path, made_up_texts(1, 200)))
    queries = [f"w{number} w{number % 7} w{number % 3}" for number in range(40)] * 5
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(engine.search, queries)) == [engine.search(query) for query in queries]


def test_ranks_of_another_length_are_refused(tmp_path):
    writer = IndexWriter(tmp_path / "index")
    writer.add("hat")
    with pytest.raises(ValueError, match="2 rows, but 1 documents"):
        writer.finish(np.arange(2, dtype=np.int32))


def test_a_missing_index_says_what_to_do(tmp_path):
    with pytest.raises(MissingAsset, match=r"no search index at .*index\. Build the store"):
        Bm25(tmp_path)


def test_lucene_without_its_packages_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "segments_1").touch()
    monkeypatch.setitem(sys.modules, "jnius_config", None)
    with pytest.raises(MissingAsset, match=r"package pyjnius.*istar-envs\[lucene\].*scripts/lucene_env\.sh"):
        LuceneEngine(tmp_path, SimpleNamespace(folder=tmp_path))


def test_lucene_without_an_index_says_how_to_build_it(tmp_path):
    with pytest.raises(MissingAsset, match=r"no Lucene index at .*istar-envs index .* --engine pyserini"):
        LuceneEngine(tmp_path, SimpleNamespace(folder=tmp_path))
