"""Full-text search over a catalogue: BM25 as Lucene computes it, from a read-only memory-mapped index.

Scores follow Lucene's 32-bit arithmetic term by term and are summed in 64 bits, so ranks and ties are
Lucene's. Rare terms are read whole; a common term is read only for documents that can still come
among the best, which changes nothing in the result. Building has its own module.
"""

import json
import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import MissingAsset
from istar_envs.webshop.analysis import analyze
from istar_envs.webshop.catalog import INDEX

_K1, _B = np.float32(0.9), np.float32(0.4)
_EXACT_LENGTHS: Final = 24
_SAFETY: Final = 1 - 1e-6
"""Scores that rows must reach are lowered by this much, so that no rounding can drop a row."""


class SearchEngine(Protocol):
    """What ranks the products of a catalogue for a query."""

    def search(self, query: str, k: int = 50) -> tuple[int, ...]:
        """Return the rows of at most ``k`` products, best first."""
        ...


def _length_of(code: int) -> int:
    """Decode Lucene's one-byte length: small ones exactly, else 4 significant bits."""
    rest = code - _EXACT_LENGTHS
    if rest < 8:
        return code
    return _EXACT_LENGTHS + ((rest & 7 | 8) << (rest >> 3) - 1)


_LENGTHS: Final = np.array([_length_of(code) for code in range(256)], np.int64)


def length_codes(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encode document lengths as Lucene does, rounding down: int64[n] tokens to uint8[n].

    Example:
        >>> [int(_LENGTHS[code]) for code in length_codes(np.array([40, 41, 159, 207]))]
        [40, 40, 152, 200]
    """
    return (np.searchsorted(_LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def frequency_scales(num_tokens: int, num_documents: int) -> NDArray[np.float32]:
    """Compute what a term frequency is multiplied with, for each length code: float32[256].

    ``1 / (k1 · (1 − b + b · length / mean length))`` with k1 = 0.9 and b = 0.4.

    Args:
        num_tokens: Exact length of all documents together.
        num_documents: How many of them are not empty.
    """
    average = np.float32(num_tokens / num_documents if num_documents else 1.0)
    relative = _B * _LENGTHS.astype(np.float32) / average
    return (np.float32(1) / (_K1 * ((np.float32(1) - _B) + relative))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Terms:
    """The known terms of a query, rarest first.

    Attributes:
        spans: Start and end of each term's postings, int64[terms, 2].
        weights: Inverse document frequency times count in the query, float32[terms].
        rest: Most that the terms from each one on add to any row together, then 0.0: float64[terms + 1].
    """

    spans: NDArray[np.int64]
    weights: NDArray[np.float32]
    rest: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.weights)


class Bm25:
    """BM25 search in the index that ``IndexWriter`` made in a catalogue's store.

    Threads may share it: between searches it keeps nothing but the places of some words in the
    vocabulary. Pickles as its folder's path.

    Args:
        folder: The store; its folder ``index`` is read.
        batch: Postings to read before any pruning. Like ``leaders``, changes the speed, never a result.
        leaders: Rows scored in full to find out which score the best ones reach.

    Raises:
        MissingAsset: The store has no index.
    """

    def __init__(self, folder: Path, *, batch: int = 2**17, leaders: int = 256) -> None:
        self._folder = folder
        self._batch, self._leaders = batch, leaders
        index = folder / INDEX
        meta = _read_meta(index)
        self._num_rows, self._num_documents = meta["rows"], meta["documents"]
        self._scales = frequency_scales(meta["tokens"], self._num_documents)
        self._docs: NDArray[np.int32] = _mapped(index, "docs")
        self._freqs: NDArray[np.uint16] = _mapped(index, "freqs")
        self._codes: NDArray[np.uint8] = _mapped(index, "codes")
        self._ranks: NDArray[np.int32] = _mapped(index, "ranks")
        self._starts: NDArray[np.int64] = _mapped(index, "starts")
        self._peaks: NDArray[np.float32] = _mapped(index, "peaks")
        self._find = lru_cache(maxsize=2**14)(self._looked_up)
        self._letters = _mapped(index, "letters").data
        self._letter_starts = _mapped(index, "letter_starts").data

    def __reduce__(self) -> tuple[type["Bm25"], tuple[Path]]:
        return Bm25, (self._folder,)

    def search(self, query: str, k: int = 50) -> tuple[int, ...]:
        """Return the rows of at most ``k`` products, best first; () if no word of the query is known."""
        return tuple(row for row, _ in self.scored(query, k))

    def scored(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        """Rank the rows that hold any term of a query.

        Args:
            query: A bag of words; a repeated word counts as often as it occurs.
            k: Most rows to return.

        Returns:
            Rows with their scores, highest first, equal ones by ascending asin.
        """
        terms = self._terms(query)
        if not terms or k < 1:
            return []
        rows, sums = self._contenders(terms, k)
        scores = sums.astype(np.float32)
        if len(rows) > k:
            kept = np.flatnonzero(scores >= _kth_largest(scores, k))
            rows, scores = rows[kept], scores[kept]
        order = np.lexsort((self._ranks[rows], -scores))[:k]
        return list(zip(rows[order].tolist(), scores[order].tolist(), strict=True))

    def _terms(self, query: str) -> _Terms:
        counts = Counter(analyze(query))
        found = [(number, counts[term]) for term in counts if (number := self._find(term)) is not None]
        numbers = np.array([number for number, _ in found], np.int64)
        spans = np.stack((self._starts[numbers], self._starts[numbers + 1]), axis=1)
        sizes = spans[:, 1] - spans[:, 0]
        rarities = [
            math.log(1 + (self._num_documents - size + 0.5) / (size + 0.5)) for size in sizes.tolist()
        ]
        weights = np.array(rarities, np.float32) * np.array([count for _, count in found], np.float32)
        ceilings = (weights - weights / (1 + self._peaks[numbers])).astype(np.float64)
        order = np.argsort(sizes, kind="stable")
        rest = np.append(np.cumsum(ceilings[order][::-1])[::-1], 0.0)
        return _Terms(spans[order], weights[order], rest)

    def _looked_up(self, term: str) -> int | None:
        """Look a term up in the sorted vocabulary."""
        letters, size = term.encode(), len(self._letter_starts) - 1
        number = bisect_left(range(size), letters, key=self._letters_of)
        return number if number < size and self._letters_of(number) == letters else None

    def _letters_of(self, number: int) -> bytes:
        return bytes(self._letters[self._letter_starts[number] : self._letter_starts[number + 1]])

    def _contenders(self, terms: _Terms, k: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Score every row that may be among the best ``k``, ties included.

        Terms are added to all their rows, rarest first, until the terms left cannot lift a row that
        has none of the terms so far to the ``k``-th best; from then on only promising rows count.
        """
        sums = np.zeros(self._num_rows)
        sizes = terms.spans[:, 1] - terms.spans[:, 0]
        done = max(1, int(np.searchsorted(np.cumsum(sizes), self._batch, side="right")))
        docs, values = self._contributions(terms, 0, done)
        np.add.at(sums, docs, values)
        rows, floor = np.flatnonzero(sums > 0).astype(np.int32), 0.0
        while done < len(terms):
            floor = max(floor, self._floor(terms, done, rows, sums[rows], k=k))
            if terms.rest[done] < floor:
                break
            rows, values = self._contributions(terms, done, done + 1)
            sums[rows] += values
            done += 1
        rows = np.flatnonzero(sums > max(0.0, floor - terms.rest[done])).astype(np.int32)
        return self._finished(terms, done, rows, sums[rows], floor=floor)

    def _floor(
        self, terms: _Terms, done: int, rows: NDArray[np.int32], sums: NDArray[np.float64], *, k: int
    ) -> float:
        """Find a score that ``k`` rows surely exceed: finish those that lead after ``done`` terms."""
        if len(rows) < k:
            return 0.0
        size = min(len(rows), max(k, self._leaders))
        leaders = np.sort(np.argpartition(sums, -size)[-size:])
        _, totals = self._finished(terms, done, rows[leaders], sums[leaders], floor=0.0)
        return _kth_largest(totals, k) * _SAFETY

    def _finished(
        self, terms: _Terms, done: int, rows: NDArray[np.int32], sums: NDArray[np.float64], *, floor: float
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Add the terms after the first ``done`` to ascending rows; drop rows that cannot reach ``floor``."""
        for number in range(done, len(terms)):
            start, stop = terms.spans[number].tolist()
            docs = self._docs[start:stop]
            places = np.searchsorted(docs, rows)
            places[places == len(docs)] = 0
            having = np.flatnonzero(docs[places] == rows)
            freqs = self._freqs[start:stop][places[having]]
            sums[having] += self._values(terms.weights[number], rows[having], freqs)
            promising = sums > floor - terms.rest[number + 1]
            rows, sums = rows[promising], sums[promising]
        return rows, sums

    def _contributions(
        self, terms: _Terms, first: int, stop: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Compute what terms ``first`` to ``stop`` add to each of their rows, term after term."""
        spans = terms.spans[first:stop].tolist()
        docs = np.concatenate([self._docs[start:end] for start, end in spans])
        freqs = np.concatenate([self._freqs[start:end] for start, end in spans])
        weights = np.repeat(terms.weights[first:stop], [end - start for start, end in spans])
        return docs, self._values(weights, docs, freqs)

    def _values(
        self, weights: NDArray[np.float32] | np.float32, docs: NDArray[np.int32], freqs: NDArray[np.uint16]
    ) -> NDArray[np.float64]:
        denominators = 1 + freqs * self._scales[self._codes[docs]]
        return (weights - weights / denominators).astype(np.float64)


def _kth_largest(values: NDArray[np.floating[Any]], k: int) -> float:
    return float(np.partition(values, -k)[-k])


def _mapped(index: Path, name: str) -> NDArray[Any]:
    """Map a file into memory, as a plain array: slices of a memmap object cost several times as much."""
    return np.asarray(np.load(index / f"{name}.npy", mmap_mode="r")).view(np.ndarray)


def _read_meta(index: Path) -> dict[str, int]:
    try:
        meta: dict[str, int] = json.loads((index / "meta.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingAsset(f"no search index at {index}. Build the store of this catalogue again.") from error
    return meta
