"""Where the settings of a world come from: the own checkable families, or a folder of published files.

A book gives settings by task id, in splits that share no task. It holds no state beyond that; who draws
which task is for the environment.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Final, get_args

from istar_envs.errors import ConfigError, suggest
from istar_envs.seeding import derive_seed
from istar_envs.sotopia.families import bargaining, division, friends, scheduling
from istar_envs.sotopia.official import Subset, load_official
from istar_envs.sotopia.records import Setting

FAMILIES: Final[Mapping[str, Callable[[int], Setting]]] = {
    "bargaining": bargaining.generate,
    "division": division.generate,
    "friends": friends.generate,
    "scheduling": scheduling.generate,
}
"""Generator of each family: a seed into a setting with stakes."""

MIX: Final = "families"
"""Name of the book with all families in turn."""

NUM_TASKS: Final[Mapping[str, int]] = {"train": 10_000, "dev": 500, "test": 500}
"""Tasks of one family by split."""

_SPLIT_OF_TENTH: Final = (*["train"] * 8, "dev", "test")


class ScenarioBook:
    """Settings by task id, in splits.

    Args:
        name: For messages.
        splits: Task ids of each split.
        make: Makes the setting of a task id of this book; gives an equal one every time.
    """

    def __init__(
        self, name: str, splits: Mapping[str, Sequence[str]], make: Callable[[str], Setting]
    ) -> None:
        self.name = name
        self._splits = dict(splits)
        self._make = make
        self._known = frozenset(pk for pks in splits.values() for pk in pks)

    def __repr__(self) -> str:
        counts = ", ".join(f"{split}: {len(pks):,}" for split, pks in self._splits.items())
        return f"ScenarioBook({self.name!r}, {counts})"

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._splits)

    def pks(self, split: str) -> Sequence[str]:
        """Return the task ids of a split, always in the same order.

        Raises:
            ConfigError: If the book has no such split.
        """
        if split not in self._splits:
            raise ConfigError(
                f"scenarios {self.name!r} have no split {split!r}.{suggest(split, self.splits)}"
            )
        return self._splits[split]

    def setting(self, pk: str) -> Setting:
        """Return the setting of a task id, of any split.

        Raises:
            ConfigError: If the book has no such task.
        """
        if pk not in self._known:
            example = next(iter(next(iter(self._splits.values()))))
            raise ConfigError(f"scenarios {self.name!r} have no task {pk!r}; an id looks like {example!r}.")
        return self._make(pk)


def open_book(name: str | Path, *, subset: Subset = "all") -> ScenarioBook:
    """Open a book of settings; the same one for equal arguments.

    Args:
        name: ``"families"`` for all own families in turn, the name of one of them, several joined by ``+``
            (``"bargaining+division"``), or a folder with the published files.
        subset: Part of the published files: ``"all"`` and ``"hard"`` are the split ``test``, ``"drafts"``
            is the split ``train``. Own families have no subsets.

    Raises:
        ConfigError: If there is no such family, folder or subset, or a published file is damaged.
        MissingAsset: If a published file is missing.
    """
    if subset not in get_args(Subset):
        raise ConfigError(f"unknown subset {subset!r} of SOTOPIA.{suggest(subset, get_args(Subset))}")
    families = tuple(FAMILIES) if name == MIX else tuple(dict.fromkeys(str(name).split("+")))
    if set(families) <= set(FAMILIES):
        if subset != "all":
            raise ConfigError(
                f"scenarios {name!r} have no subset {subset!r}; give a folder of published files."
            )
        return _family_book(str(name), families)
    folder = Path(name)
    if not folder.is_dir():
        known = suggest(str(name), [MIX, *FAMILIES])
        raise ConfigError(f"scenarios {str(name)!r} are neither an own family nor a folder.{known}")
    return _official_book(folder.resolve(), subset)


def family_setting(pk: str) -> Setting:
    """Return the setting of a task id of the own families, such as ``"division/test/7"``.

    A setting is in a split by what is at stake in it, so no two splits share an instance: seeds are tried
    in a fixed order until one belongs to the split.
    """
    family, split, number = pk.split("/")
    tries = (FAMILIES[family](derive_seed(int(number), family, split, attempt)) for attempt in count())
    return next(replace(setting, pk=pk) for setting in tries if _split_of(setting) == split)


def _split_of(setting: Setting) -> str:
    return _SPLIT_OF_TENTH[derive_seed(0, "split", repr(setting.scenario.stakes)) % len(_SPLIT_OF_TENTH)]


@lru_cache(maxsize=8)
def _family_book(name: str, families: tuple[str, ...]) -> ScenarioBook:
    splits = {
        split: tuple(f"{family}/{split}/{number}" for number in range(num_tasks) for family in families)
        for split, num_tasks in NUM_TASKS.items()
    }
    return ScenarioBook(name, splits, family_setting)


@lru_cache(maxsize=4)
def _official_book(folder: Path, subset: Subset) -> ScenarioBook:
    settings = {setting.pk: setting for setting in load_official(folder, subset=subset)}
    split = "train" if subset == "drafts" else "test"
    return ScenarioBook(f"{folder} ({subset})", {split: tuple(settings)}, settings.__getitem__)
