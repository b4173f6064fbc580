"""Builds the index that ``Bm25`` searches, in one pass over any number of documents.

Words are counted block by block and every full block goes to disk sorted by term, so memory depends
on the vocabulary, not on the number of documents; ``finish`` lays the blocks end to end, term by term.
"""

import json
import shutil
from array import array
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from istar_envs.webshop.analysis import term_of, words
from istar_envs.webshop.search import frequency_scales, length_codes

_NOT_INDEXED: Final = -1
_MOST_FREQUENT: Final = 2**16 - 1
_CHUNK: Final = 2**22
"""Postings handled at once after the merge."""


class _TermIds(dict[str, int]):
    """Number of each word's term, by first appearance; words that are not indexed have −1."""

    def __init__(self) -> None:
        super().__init__()
        self.by_term: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = term_of(word)
        number = self.by_term.setdefault(term, len(self.by_term)) if term else _NOT_INDEXED
        self[word] = number
        return number


class IndexWriter:
    """Takes the documents of a catalogue in row order and leaves an index.

    Files: ``letters`` and ``letter_starts`` hold the sorted vocabulary; ``starts`` says where the
    postings of each term begin in ``docs`` (rows, ascending) and ``freqs`` (how often the term is in
    the row, at most 65,535); ``peaks`` bounds what a term can add to a row; ``codes`` are the one-byte
    lengths and ``ranks`` the order of equal scores, by row; ``meta.json`` says the rest.

    Args:
        folder: The index, made if missing: folder ``index`` of the catalogue's store.
        block_tokens: Words kept in memory before a block goes to disk.
    """

    def __init__(self, folder: Path, *, block_tokens: int = 2**23) -> None:
        self._folder, self._blocks = folder, folder / "blocks"
        self._blocks.mkdir(parents=True)
        self._block_tokens = block_tokens
        self._num_blocks = 0
        self._ids = _TermIds()
        self._tokens = array("i")
        self._ends = array("q")
        self._lengths: list[NDArray[np.int64]] = []

    def add(self, text: str) -> None:
        """Add the document of the next row."""
        self._tokens.extend(map(self._ids.__getitem__, words(text)))
        self._ends.append(len(self._tokens))
        if len(self._tokens) >= self._block_tokens:
            self._spill()

    def finish(self, asin_rank: NDArray[np.int32]) -> None:
        """Merge the blocks and write the index.

        Args:
            asin_rank: Rank of each row's asin in ascending order, int32[rows]; decides ties.

        Raises:
            ValueError: ``asin_rank`` has another length than the number of documents added.
        """
        self._spill()
        lengths = np.concatenate(self._lengths)
        if len(asin_rank) != len(lengths):
            raise ValueError(f"asin_rank has {len(asin_rank)} rows, but {len(lengths)} documents were added")
        num_tokens, num_documents = int(lengths.sum()), int(np.count_nonzero(lengths))
        codes = length_codes(lengths)
        places = self._write_vocabulary()
        starts = self._merge(places)
        scales = frequency_scales(num_tokens, num_documents)
        self._save("codes", codes)
        self._save("ranks", asin_rank.astype(np.int32))
        self._save("starts", starts)
        self._save("peaks", self._peaks(starts, scales[codes]))
        shutil.rmtree(self._blocks)
        meta = {"rows": len(lengths), "documents": num_documents, "tokens": num_tokens}
        (self._folder / "meta.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")

    def _spill(self) -> None:
        """Write the block in memory: the postings of each of its terms, in order of term number."""
        tokens, ends = np.array(self._tokens, np.int32), np.array(self._ends, np.int64)
        self._tokens, self._ends = array("i"), array("q")
        block_rows = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        is_indexed = tokens != _NOT_INDEXED
        tokens, block_rows = tokens[is_indexed], block_rows[is_indexed]
        first_row = sum(map(len, self._lengths))
        self._lengths.append(np.bincount(block_rows, minlength=len(ends)))
        keys = np.sort(tokens.astype(np.int64) << 32 | block_rows + first_row)
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        freqs = np.diff(begins, append=len(keys))
        keys = keys[begins]
        self._save_block("docs", (keys & 0xFFFFFFFF).astype(np.int32))
        self._save_block("freqs", np.minimum(freqs, _MOST_FREQUENT).astype(np.uint16))
        self._save_block("sizes", np.bincount(keys >> 32, minlength=len(self._ids.by_term)))
        self._num_blocks += 1

    def _write_vocabulary(self) -> NDArray[np.int64]:
        """Write the terms in order and return the place of each term number: int64[terms]."""
        terms = list(self._ids.by_term)
        self._ids = _TermIds()
        order = sorted(range(len(terms)), key=terms.__getitem__)
        letters = [terms[number].encode() for number in order]
        self._save("letters", np.frombuffer(b"".join(letters), np.uint8))
        self._save("letter_starts", np.cumsum([0, *map(len, letters)], dtype=np.int64))
        places = np.empty(len(terms), np.int64)
        places[order] = np.arange(len(terms))
        return places

    def _merge(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy the blocks' postings to their places; return where each term's begin: int64[terms + 1]."""
        sizes = np.zeros(len(places), np.int64)
        for block in range(self._num_blocks):
            part = self._load_block("sizes", block)
            sizes[places[: len(part)]] += part
        starts = np.cumsum(np.append(0, sizes))
        docs = open_memmap(self._folder / "docs.npy", "w+", np.dtype(np.int32), (int(starts[-1]),))
        freqs = open_memmap(self._folder / "freqs.npy", "w+", np.dtype(np.uint16), (int(starts[-1]),))
        cursors = starts[places]
        for block in range(self._num_blocks):
            part = self._load_block("sizes", block)
            shifts = cursors[: len(part)] - (np.cumsum(part) - part)
            targets = np.repeat(shifts, part) + np.arange(int(part.sum()))
            docs[targets] = self._load_block("docs", block)
            freqs[targets] = self._load_block("freqs", block)
            cursors[: len(part)] += part
        return starts

    def _peaks(self, starts: NDArray[np.int64], scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """Find each term's largest scaled frequency in any row: float32[terms]."""
        docs = np.load(self._folder / "docs.npy", mmap_mode="r")
        freqs = np.load(self._folder / "freqs.npy", mmap_mode="r")
        peaks = np.zeros(len(starts) - 1, np.float32)
        first = 0
        while first < len(peaks):
            stop = max(first + 1, int(np.searchsorted(starts, starts[first] + _CHUNK, side="right")) - 1)
            span = slice(starts[first], starts[stop])
            scaled = freqs[span] * scales[docs[span]]
            peaks[first:stop] = np.maximum.reduceat(scaled, starts[first:stop] - starts[first])
            first = stop
        return peaks

    def _save(self, name: str, values: NDArray[Any]) -> None:
        np.save(self._folder / f"{name}.npy", values)

    def _save_block(self, name: str, values: NDArray[Any]) -> None:
        np.save(self._blocks / f"{self._num_blocks}-{name}.npy", values)

    def _load_block(self, name: str, block: int) -> NDArray[Any]:
        loaded: NDArray[Any] = np.load(self._blocks / f"{block}-{name}.npy")
        return loaded
