"""Goal lists: written once per catalogue as flat arrays, read back as one ``Goal`` at a time.

A goal is two integers, its product's row and the number of its option combination or annotation; text,
cap and options follow from them. The order is the published one: the list in catalogue order, shuffled by
Python's generator seeded with 233.
"""

import logging
import math
import operator
import random
from array import array
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import EnvError, require_known
from istar_envs.seeding import derive_seed
from istar_envs.webshop import splits
from istar_envs.webshop.catalog import Catalog
from istar_envs.webshop.cleaning import same_value
from istar_envs.webshop.prices import cap_text, compat_price, draw_cap, strict_price
from istar_envs.webshop.products import Annotation, Goal, GoalKind, Product, ScoringName
from istar_envs.webshop.scoring import has_attribute

logger = logging.getLogger(__name__)

SHUFFLE_SEED: Final = 233
"""Seed of the published goal order."""

MOST_COMBINATIONS: Final = 100_000
"""Goals that one product can have; the combinations after them are left out, which the log says."""

_CACHED_GOALS: Final = 1024
_CACHED_SPLITS: Final = 8


class GoalWriter:
    """Collects the goals of a catalogue while its products stream by, a few bytes per goal."""

    def __init__(self) -> None:
        self._rows, self._sizes, self._codes = array("i"), array("i"), array("B")
        self._attribute_ids: dict[str, int] = {}
        self._attributes, self._num_attributes = array("i"), array("i")
        self._human, self._human_codes, self._human_texts = array("i"), array("B"), array("q")

    def add(self, row: int, product: Product) -> None:
        """Take the goals of one product.

        Args:
            row: Its row in the catalogue; rows come in ascending order.
            product: The product. Without wanted attributes, instruction and annotations make no goal.
        """
        if product.instruction and product.instruction_attributes:
            self._add_synthetic(row, product)
        for number, annotation in enumerate(product.annotations):
            if annotation.attributes:
                self._human.extend((row, number))
                self._human_codes.append(splits.strict_code(product.asin))
                self._human_texts.append(derive_seed(0, same_value(annotation.instruction.strip("."))))

    def finish(self, folder: Path) -> None:
        """Write both goal lists.

        Args:
            folder: Store folder. Written for each kind: ``goals-<kind>.npy`` int32[goals, 2] (row, number),
                ``goals-<kind>-weights.npy`` float32[goals], ``goals-<kind>-strict.npy`` uint8[goals].
        """
        sizes = np.array(self._sizes, dtype=np.int64)
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        numbers = np.arange(len(starts)) - starts
        pairs = np.stack(
            [np.repeat(np.array(self._rows, dtype=np.int32), sizes), numbers.astype(np.int32)], 1
        )
        weights = np.repeat(self._weights(sizes), sizes)
        _save(folder, "synthetic", pairs, weights, np.repeat(np.array(self._codes, dtype=np.uint8), sizes))

        human = np.array(self._human, dtype=np.int32).reshape(-1, 2)
        texts = np.array(self._human_texts, dtype=np.int64)
        codes = splits.without_repeats(np.array(self._human_codes, dtype=np.uint8), texts)
        _save(folder, "human", human, np.ones(len(human), dtype=np.float32), codes)

    def _add_synthetic(self, row: int, product: Product) -> None:
        size = math.prod(len(values) for _, values in _sorted_options(product))
        if size > MOST_COMBINATIONS:
            logger.warning(
                "Product %s has %d option combinations; only the first %d become goals.",
                product.asin,
                size,
                MOST_COMBINATIONS,
            )
        self._rows.append(row)
        self._sizes.append(min(size, MOST_COMBINATIONS))
        self._codes.append(splits.strict_code(same_value(product.instruction)))
        self._num_attributes.append(len(product.instruction_attributes))
        ids = self._attribute_ids
        self._attributes.extend(ids.setdefault(name, len(ids)) for name in product.instruction_attributes)

    def _weights(self, sizes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the weight of each product's goals: mean of 1 / goals that have the attribute."""
        owners = np.repeat(np.arange(len(sizes)), np.array(self._num_attributes, dtype=np.int64))
        ids = np.array(self._attributes, dtype=np.int64)
        goals_with = np.bincount(ids, weights=sizes[owners])
        rarity = 1.0 / np.maximum(goals_with[ids], 1.0)
        totals = np.bincount(owners, weights=rarity, minlength=len(sizes))
        return (totals / np.array(self._num_attributes, dtype=np.int64)).astype(np.float32)


class GoalBook:
    """The goals of a catalogue, built when asked for; equal in every process for equal arguments.

    Args:
        catalog: What is sold.
        kind: ``synthetic`` or ``human``.
        scoring: ``compat``: as published. ``strict``: a goal keeps only what its target satisfies, human
            option values carry the option's name, and caps rest on the shown price.
        seed: Seed of price caps and hidden prices.

    Raises:
        EnvError: If kind or scoring is unknown.
    """

    def __init__(self, catalog: Catalog, kind: GoalKind, *, scoring: ScoringName, seed: int = 0) -> None:
        require_known("goals", kind, get_args(GoalKind), "WebShop")
        require_known("scoring", scoring, get_args(ScoringName), "WebShop")
        self.catalog, self.kind, self.scoring, self.seed = catalog, kind, scoring, seed
        files = [catalog.folder / f"goals-{kind}{part}.npy" for part in ("", "-weights", "-strict")]
        self._pairs, self._weights, self._strict = (
            np.load(file, mmap_mode="r").view(np.ndarray) for file in files
        )
        self._cached = lru_cache(maxsize=_CACHED_GOALS)(self._build)
        self._split = lru_cache(maxsize=_CACHED_SPLITS)(self._choose_split)
        self._summed = lru_cache(maxsize=_CACHED_SPLITS)(self._sum_weights)

    def __len__(self) -> int:
        return len(self._pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(GoalBook, scoring=self.scoring, seed=self.seed), (self.catalog, self.kind)

    @property
    def weights(self) -> NDArray[np.float32]:
        """float32[goals], how often each goal is drawn, relative to the others; read-only."""
        weights: NDArray[np.float32] = self._weights
        return weights

    def goal(self, index: int) -> Goal:
        """Return one goal.

        Args:
            index: Position in the published order, from 0.

        Raises:
            EnvError: If there is no such goal.
        """
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise EnvError(
                f'no goal {number}: catalogue "{self.catalog.name}" has {len(self)} {self.kind} goals,'
                f" numbered from 0 (reset option goal)."
            )
        return self._cached(number)

    def split(self, scheme: str, name: str) -> NDArray[np.int32]:
        """Return the goal indices of a split in ascending order.

        Args:
            scheme: ``webshop-original``, ``istar`` or ``strict``.
            name: ``train``, ``dev`` or ``test``.

        Returns:
            int32[goals of the split], at least one; read-only, and the same array every time.

        Raises:
            EnvError: If the scheme is unknown, has no such split, or the split has no goal here.
        """
        return self._split((scheme, name))

    def cumulative_weights(self, scheme: str, name: str) -> NDArray[np.float64]:
        """Return float64[goals of the split]: running sums of their weights; the same array every time.

        Raises:
            EnvError: As ``split`` does.
        """
        return self._summed((scheme, name))

    def _sum_weights(self, wanted: tuple[str, str]) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = np.cumsum(self.weights[self.split(*wanted)], dtype=np.float64)
        sums.setflags(write=False)
        return sums

    def _choose_split(self, wanted: tuple[str, str]) -> NDArray[np.int32]:
        scheme, name = wanted
        indices = splits.choose(scheme, name, self._strict)
        if len(indices) == 0:
            raise EnvError(
                f'split "{name}" of scheme "{scheme}" is empty: catalogue "{self.catalog.name}" has only'
                f" {len(self)} {self.kind} goals. Choose another split, split_scheme or catalogue."
            )
        indices.setflags(write=False)
        return indices

    def price(self, product: Product) -> float:
        """Return the price that a product is scored with, in dollars; ∞ if strict and unpriced."""
        return strict_price(product) if self.scoring == "strict" else compat_price(product, self.seed)

    def _build(self, index: int) -> Goal:
        row, number = self._pairs[index].tolist()
        product = self.catalog.product(row)
        if self.kind == "human":
            return self._human(index, product, number)
        return self._synthetic(index, product, number)

    def _synthetic(self, index: int, product: Product, number: int) -> Goal:
        options = _combination(product, number)
        chosen = ", and ".join(f"{name}: {value}" for name, value in options)
        cap = draw_cap(self.price(product), derive_seed(self.seed, "cap", product.asin))
        return Goal(
            index=index,
            kind=self.kind,
            target=product,
            text=product.instruction + (f" with {chosen}" if chosen else "") + cap_text(cap),
            attributes=self._kept(product, product.instruction_attributes),
            options=options,
            price_upper=cap,
        )

    def _human(self, index: int, product: Product, number: int) -> Goal:
        annotation = product.annotations[number]
        cap = draw_cap(self.price(product), derive_seed(self.seed, "cap", product.asin, number))
        named = self.scoring == "strict"
        return Goal(
            index=index,
            kind=self.kind,
            target=product,
            text=annotation.instruction.strip(".") + cap_text(cap),
            attributes=self._kept(product, annotation.attributes),
            options=_named(product, annotation) if named else tuple(("", v) for v in annotation.values),
            price_upper=cap,
        )

    def _kept(self, target: Product, attributes: tuple[str, ...]) -> tuple[str, ...]:
        if self.scoring == "compat":
            return attributes
        return tuple(attribute for attribute in attributes if has_attribute(target, attribute))


def _sorted_options(product: Product) -> list[tuple[str, tuple[str, ...]]]:
    """Return the option groups by name; the last of several groups with one name counts."""
    return sorted({group.name: group.values for group in product.options}.items())


def _combination(product: Product, number: int) -> tuple[tuple[str, str], ...]:
    """Return a combination of the Cartesian product by its number; the last option varies fastest."""
    chosen = []
    for name, values in reversed(_sorted_options(product)):
        number, position = divmod(number, len(values))
        chosen.append((name, values[position]))
    return tuple(reversed(chosen))


def _named(product: Product, annotation: Annotation) -> tuple[tuple[str, str], ...]:
    """Find the target's option of each wanted value, at most one value per option; others are left out.

    Where several options offer the value, the one that the writer saw comes first.
    """
    shown = {same_value(text) for text in annotation.shown}
    found: dict[str, str] = {}
    for wanted in annotation.values:
        offers = [
            (name, value)
            for name, values in _sorted_options(product)
            for value in values
            if same_value(value) == same_value(wanted) and name not in found
        ]
        offers.sort(key=lambda offer: same_value(f"{offer[0]}: {offer[1]}") not in shown)
        found.update(offers[:1])
    return tuple(found.items())


def _save(
    folder: Path,
    kind: GoalKind,
    pairs: NDArray[np.int32],
    weights: NDArray[np.float32],
    codes: NDArray[np.uint8],
) -> None:
    """Write a goal list, given in catalogue order, in the published order."""
    positions = array("i", range(len(pairs)))
    random.Random(SHUFFLE_SEED).shuffle(positions)
    order = np.array(positions, dtype=np.int32)
    np.save(folder / f"goals-{kind}.npy", pairs[order])
    np.save(folder / f"goals-{kind}-weights.npy", weights[order])
    np.save(folder / f"goals-{kind}-strict.npy", codes[order])
