"""Text is tokenised once, into memory-mapped files that later runs open instead.

Every distinct text of a dataset is tokenised once per side (queries, documents) by the model's own
`preprocess`, so that a batch read from here equals the batch the host would have made. A folder is
keyed by the rows' content and by what the tokenizer does: its definition, prompt and maximum length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import xxhash
from datasets import Dataset as Rows
from numpy.typing import NDArray

from mixfluence.data.layout import Side, Tokeniser
from mixfluence.data.rows import RowSet
from mixfluence.data.selected import SelectedRows
from mixfluence.data.token_cache import cached, in_parallel
from mixfluence.data.tokens import TokenisedRows
from mixfluence.errors import DataError

CACHE_VERSION = 3
ROWS_PER_CHUNK = 500
Advance = Callable[[int], object]
Chunk = dict[str, tuple[NDArray[np.int32], NDArray[np.int64]]]
Sides = dict[str, Side]
# A process may map some ten thousand files, which is fewer than thousands of clusters of many datasets would open.
_shared: WeakValueDictionary[str, TokenisedRows] = WeakValueDictionary()


@dataclass(frozen=True)
class Prompts:
    """Instructions put before a dataset's queries and passages; part of the token cache's key."""

    query: str = ""
    document: str = ""


def text_key(text: str) -> int:
    """Return the 64-bit number by which equal texts are recognised."""
    return xxhash.xxh3_64_intdigest(text.encode())


def tokenise(rows: RowSet, tokeniser: Tokeniser, prompts: Prompts, advance: Advance = lambda _: None) -> TokenisedRows:
    """Return a dataset's token ids, from the cache when text, tokenizer, prompts and lengths are known.

    Rows that were cut from other datasets take theirs from those, which are tokenised as a whole.

    Args:
        rows: The dataset.
        tokeniser: The model's, asked with task "query" for anchors and "document" for passages.
        prompts: Put before every query and passage.
        advance: Called with a number of rows as they are done, for a progress bar.
    """
    sides = {
        "query": tokeniser.side("query", prompts.query),
        "document": tokeniser.side("document", prompts.document),
    }
    if rows.pieces:
        return SelectedRows([(_tokenise_shared(whole, sides, advance), places) for whole, places in rows.pieces])
    return _tokenise(rows, sides, advance)


def _tokenise(rows: RowSet, sides: Sides, advance: Advance) -> TokenisedRows:
    tokenised, built = cached(
        _key(rows, sides), TokenisedRows, lambda folder: _Builder(rows, folder).build(sides, advance)
    )
    if not built:
        advance(len(rows))
    return tokenised


def _tokenise_shared(rows: RowSet, sides: Sides, advance: Advance) -> TokenisedRows:
    """Return a dataset's token ids, the same object as long as anyone holds it."""
    key = _key(rows, sides)
    tokenised = _shared.get(key)
    if tokenised is None:
        _shared[key] = tokenised = _tokenise(rows, sides, advance)
    return tokenised


def _key(rows: RowSet, sides: Sides) -> str:
    return "-".join([str(CACHE_VERSION), rows.fingerprint, *(side.fingerprint for side in sides.values())])


class _Builder:
    """Two passes over the text: the first numbers distinct texts, the second tokenises each once."""

    def __init__(self, rows: RowSet, folder: Path) -> None:
        self.rows = rows
        self.folder = folder

    def build(self, sides: Sides, advance: Advance) -> None:
        counts = self._number_texts()
        chunks = _Chunks(self.rows.rows, sides, self.first, self.starts)
        files = {name: (self.folder / f"{name}_ids.bin").open("wb") for name in sides}
        lengths: dict[str, list[NDArray[np.int64]]] = {name: [] for name in sides}
        for number, chunk in enumerate(in_parallel(chunks)):
            for name, (ids, sizes) in chunk.items():
                ids.tofile(files[name])
                lengths[name].append(sizes)
            advance(min(ROWS_PER_CHUNK, len(self.rows) - number * ROWS_PER_CHUNK))
        for name, file in files.items():
            file.close()
            ends = np.cumsum(np.concatenate([[0], *lengths[name]]), dtype=np.int64)
            np.save(self.folder / f"{name}_starts.npy", ends)
        facts = {name: asdict(side.layout) for name, side in sides.items()} | counts
        (self.folder / "manifest.json").write_text(json.dumps(facts), encoding="utf-8")

    def _batches(self) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        for number, batch in enumerate(self.rows.rows.iter(ROWS_PER_CHUNK)):
            yield number * ROWS_PER_CHUNK, batch

    def _number_texts(self) -> dict[str, Any]:
        """Save which distinct texts each row holds; remember where each is met first."""
        keys: dict[str, list[NDArray[np.uint64]]] = {"query": [], "document": []}
        sizes: list[NDArray[np.int64]] = []
        scores: list[NDArray[np.float32]] = []
        for start, batch in self._batches():
            keys["query"].append(_text_keys(batch["anchor"]))
            keys["document"].append(_text_keys(_passages(batch)))
            sizes.append(np.array([1 + len(negatives) for negatives in batch["negatives"]], np.int64))
            scores.append(_flat_scores(batch["scores"], sizes[-1], start))
        self.starts = np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64)
        numbers, self.first = {}, {}
        for side, stem in ("query", "anchor"), ("document", "passage"):
            found = np.concatenate(keys[side])
            numbers[side], self.first[side] = _number(found)
            np.save(self.folder / f"{stem}_keys.npy", found)
            np.save(self.folder / f"{stem}s.npy", numbers[side])
        np.save(self.folder / "passage_starts.npy", self.starts)
        has_scores = any(np.isfinite(part).any() for part in scores)
        if has_scores:
            np.save(self.folder / "scores.npy", np.concatenate(scores))
        return {
            "distinct_positives": len(np.unique(numbers["document"][self.starts[:-1]])),
            "least_negatives": min(int(part.min()) for part in sizes) - 1,
            "most_negatives": max(int(part.max()) for part in sizes) - 1,
            "has_scores": has_scores,
        }


class _Chunks:
    """The second pass in pieces: token ids of the texts that a run of rows is the first to use."""

    def __init__(
        self, rows: Rows, sides: Sides, first: dict[str, NDArray[np.bool_]], starts: NDArray[np.int64]
    ) -> None:
        self._rows = rows
        self._sides = sides
        self._first = first
        self._starts = starts

    def __len__(self) -> int:
        return math.ceil(len(self._rows) / ROWS_PER_CHUNK)

    def __getitem__(self, number: int) -> Chunk:
        start, stop = number * ROWS_PER_CHUNK, min((number + 1) * ROWS_PER_CHUNK, len(self._rows))
        batch = self._rows[start:stop]
        texts = {"query": batch["anchor"], "document": _passages(batch)}
        spans = {"query": slice(start, stop), "document": slice(*self._starts[[start, stop]])}
        new = {name: list(compress(texts[name], self._first[name][spans[name]])) for name in texts}
        return {name: side.tokenise(new[name]) for name, side in self._sides.items()}


def _passages(batch: dict[str, list[Any]]) -> list[str]:
    columns = zip(batch["positive"], batch["negatives"], strict=True)
    return [text for positive, negatives in columns for text in (positive, *negatives)]


def _text_keys(texts: list[str]) -> NDArray[np.uint64]:
    return np.fromiter(map(text_key, texts), np.uint64, len(texts))


def _flat_scores(scores: list[list[float]], sizes: NDArray[np.int64], start: int) -> NDArray[np.float32]:
    flat: list[float] = []
    for row, (given, size) in enumerate(zip(scores, sizes.tolist(), strict=True), start):
        if given and len(given) != size:
            raise DataError(f"row {row}: {len(given)} teacher scores for {size} passages")
        flat.extend(given or [np.nan] * size)
    return np.array(flat, np.float32)


def _number(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Number distinct keys by first use; also return which entries are first uses."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    is_first = np.zeros(len(keys), bool)
    is_first[first] = True
    return rank[inverse], is_first
