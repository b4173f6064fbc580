"""Opening books of settings: own families in disjoint splits, and folders of published files."""

import pickle

import pytest
from sotopia_world import write_world

from istar_envs.errors import ConfigError
from istar_envs.sotopia.book import FAMILIES, NUM_TASKS, open_book
from official_data import SOTOPIA, needs_sotopia


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A made-up folder of published files."""
    return write_world(tmp_path_factory.mktemp("published"))


def _stakes(book, split, count):
    return {repr(book.setting(pk).scenario.stakes) for pk in book.pks(split)[:count]}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_splits_of_a_family_share_an_instance(family):
    book = open_book(family)
    train, dev, test = (
        _stakes(book, split, count) for split, count in [("train", 200), ("dev", 40), ("test", 40)]
    )
    assert train
    assert not train & dev
    assert not train & test
    assert not dev & test


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_is_the_same_setting_every_time(family):
    book = open_book(family)
    pk = book.pks("test")[7]
    assert pk == f"{family}/test/7"
    assert book.setting(pk) == book.setting(pk)
    assert book.setting(pk).pk == pk
    assert book.setting(pk).scenario.stakes is not None


def test_the_mix_takes_the_families_in_turn():
    book = open_book("families")
    assert book.splits == ("train", "dev", "test")
    assert [len(book.pks(split)) for split in book.splits] == [4 * NUM_TASKS[split] for split in book.splits]
    assert [pk.split("/")[0] for pk in book.pks("dev")[:5]] == [*FAMILIES, "bargaining"]
    one = open_book("division")
    assert book.setting("division/train/3") == one.setting("division/train/3")


def test_some_families_are_joined_by_a_plus():
    pks = open_book("division+bargaining").pks("dev")
    assert pks[:3] == ("division/dev/0", "bargaining/dev/0", "division/dev/1")
    assert len(pks) == 2 * NUM_TASKS["dev"]


def test_equal_arguments_open_the_same_book(folder):
    assert open_book("families") is open_book("families")
    assert open_book(folder) is open_book(str(folder))


@pytest.mark.parametrize(
    ("subset", "split", "num_tasks"), [("all", "test", 450), ("hard", "test", 70), ("drafts", "train", 2510)]
)
def test_a_folder_gives_one_split_by_subset(folder, subset, split, num_tasks):
    book = open_book(folder, subset=subset)
    assert book.splits == (split,)
    assert len(book.pks(split)) == num_tasks
    assert [book.setting(pk).pk for pk in book.pks(split)] == list(book.pks(split))


def test_books_can_be_pickled(folder):
    for book in (open_book("friends"), open_book(folder, subset="hard")):
        copy = pickle.loads(pickle.dumps(book))
        pk = book.pks("test")[0]
        assert copy.setting(pk) == book.setting(pk)


@pytest.mark.parametrize(
    ("name", "subset", "message"),
    [
        ("bargainin", "all", 'neither an own family nor a folder. Did you mean "bargaining"'),
        ("families", "hard", "'families' have no subset 'hard'"),
        ("families", "hrd", "unknown subset 'hrd' of SOTOPIA. Did you mean \"hard\""),
    ],
)
def test_a_wrong_name_says_what_there_is(name, subset, message):
    with pytest.raises(ConfigError, match=message):
        open_book(name, subset=subset)


def test_unknown_splits_and_tasks_are_named(folder):
    book = open_book(folder)
    with pytest.raises(ConfigError, match=r"have no split 'train'\. Known: test"):
        book.pks("train")
    with pytest.raises(ConfigError, match="have no task 'X'; an id looks like 'CT000-0'"):
        book.setting("X")
    with pytest.raises(ConfigError, match="an id looks like 'division/train/0'"):
        open_book("division").setting("division/train/-1")
    assert repr(book).endswith("(all)', test: 450)")


@needs_sotopia
def test_the_published_folder_opens():
    book = open_book(SOTOPIA)
    assert len(book.pks("test")) == 450
