"""Token ids in memory-mapped files: tables of texts, and datasets of rows.

A row is an anchor and a sequence of passages, the positive first. Equal texts are stored once and identified by a key,
so that batches can be kept free of texts that would be false negatives.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Positions = NDArray[np.int64]
# The ids of some texts in one array, and each text's length.
Ids = tuple[NDArray[np.int32], NDArray[np.int64]]
Places = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TokenLayout:
    """How one side of a model takes its token ids: as a padded matrix with a mask, or as a flat sequence with offsets.

    `zeros` are further inputs of the matrix's shape that are zero for a single text (token types), `constants` are
    the same for every batch (task, modality, length of the prompt). `expansion` is how short queries are filled up for
    ColBERT. With `text`, for a cross-encoder, which tokenises pairs, the ids are the code points of the text itself.
    """

    padded: bool
    pad_id: int
    pad_left: bool
    zeros: list[str]
    constants: dict[str, Any]
    expansion: dict[str, int] | None = None
    text: bool = False

    def decode(self, texts: list[NDArray[np.int32]]) -> list[str]:
        """Return the texts themselves, of a layout that keeps them."""
        return [codes.astype("<i4").tobytes().decode("utf-32-le", "surrogatepass") for codes in texts]

    def features(self, texts: list[NDArray[np.int32]]) -> dict[str, Any]:
        """Return the model's input for these texts."""
        lengths = np.array([len(ids) for ids in texts], np.int64)
        if not self.padded:
            flat = np.concatenate(texts) if texts else np.empty(0, np.int32)
            offsets = np.cumsum(lengths) - lengths
            ids = torch.from_numpy(flat.astype(np.int64))
            return {"input_ids": ids, "offsets": torch.from_numpy(offsets), **self.constants}
        width = int(lengths.max(initial=self.expansion["length"] if self.expansion else 0))
        places = np.arange(width)[::-1] if self.pad_left else np.arange(width)
        real = places < lengths[:, None]
        matrix, mask = np.full(real.shape, self.pad_id, np.int64), real.astype(np.int64)
        # Rows are filled one after another, as the texts are concatenated.
        matrix[real] = np.concatenate([np.empty(0, np.int32), *texts])
        added = {}
        if self.expansion:
            filled = (mask == 0) & (np.arange(width) < self.expansion["length"])
            matrix[filled], mask[filled] = self.expansion["token"], self.expansion["attended"]
            added["query_expansion_positions"] = torch.from_numpy(filled)
        tensors = {"input_ids": torch.from_numpy(matrix), "attention_mask": torch.from_numpy(mask), **added}
        tensors |= {name: torch.zeros_like(tensors["input_ids"]) for name in self.zeros}
        return {**tensors, **self.constants}


class TokenTable:
    """Token ids of the distinct texts of one side; `starts` has where each text starts in `ids`, and the end."""

    def __init__(self, layout: TokenLayout, starts: NDArray[np.int64], ids: NDArray[np.int32]) -> None:
        self.layout = layout
        self._starts = starts
        self._ids = ids

    @classmethod
    def open(cls, folder: Path, side: str, layout: TokenLayout) -> TokenTable:
        """Map the files that `write_tables` has written."""
        starts: NDArray[np.int64] = open_array(folder / f"{side}_starts.npy")
        # numpy cannot map an empty file, and empty texts have no tokens on a static model.
        path, count = folder / f"{side}_ids.bin", int(starts[-1])
        ids = np.memmap(path, np.int32, "r", shape=(count,)).view(np.ndarray) if count else np.empty(0, np.int32)
        return cls(layout, starts, ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self._starts)

    def token_ids(self, positions: Places) -> list[NDArray[np.int32]]:
        """Return the token ids of the texts at these positions."""
        starts, ends = self._starts[positions], self._starts[positions + 1]
        return [self._ids[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def write_tables(folder: Path, chunks: Iterable[Mapping[str, Ids]]) -> None:
    """Write the files of a `TokenTable` for each side; a chunk has some texts of every side."""
    lengths: dict[str, list[NDArray[np.int64]]] = {}
    for chunk in chunks:
        for side, (ids, own) in chunk.items():
            lengths.setdefault(side, [np.zeros(1, np.int64)]).append(own)
            with (folder / f"{side}_ids.bin").open("ab") as file:
                ids.tofile(file)
    for side, found in lengths.items():
        np.save(folder / f"{side}_starts.npy", np.cumsum(np.concatenate(found), dtype=np.int64))


class TokenisedRows:
    """A dataset as token ids, which training reads instead of text.

    `queries` and `documents` have the distinct texts, `anchors` the position of each row's anchor in `queries`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        facts = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.queries = TokenTable.open(folder, "query", TokenLayout(**facts["query"]))
        self.documents = TokenTable.open(folder, "document", TokenLayout(**facts["document"]))
        self.anchors: Places = open_array(folder / "anchors.npy")
        self._passages: Places = open_array(folder / "passages.npy")
        self._starts: Positions = open_array(folder / "passage_starts.npy")
        # By row, not by distinct text: one lookup per text of a batch instead of two, each a cache miss.
        self._anchor_keys: NDArray[np.uint64] = open_array(folder / "anchor_keys.npy")
        self._passage_keys: NDArray[np.uint64] = open_array(folder / "passage_keys.npy")
        scores = folder / "scores.npy"
        self._scores: NDArray[np.float32] | None = open_array(scores) if scores.exists() else None

    def __len__(self) -> int:
        return len(self.anchors)

    def __reduce__(self) -> tuple[type[TokenisedRows], tuple[Any, ...]]:
        # Loader workers open the files themselves instead of receiving a copy.
        return TokenisedRows, (self._folder,)

    @property
    def has_scores(self) -> bool:
        return self._scores is not None

    @cached_property
    def fully_scored(self) -> bool:
        """Whether a teacher has scored every passage, and every row has a negative."""
        return self._scores is not None and self.least_negatives > 0 and bool(np.isfinite(self._scores).all())

    @cached_property
    def distinct_positives(self) -> int:
        """How many different positives there are; a batch cannot have more rows."""
        return _count_distinct(self._passages[self._starts[:-1]])

    @cached_property
    def largest_batch(self) -> int:
        """How many rows there are of which no two share a query or a positive, at most."""
        return min(self.distinct_positives, _count_distinct(self.anchors))

    @cached_property
    def least_negatives(self) -> int:
        return int(np.diff(self._starts).min()) - 1

    @cached_property
    def most_negatives(self) -> int:
        return int(np.diff(self._starts).max()) - 1

    def candidates(self, rows: Positions, negatives: int) -> tuple[Places, NDArray[np.float32]]:
        """Return each row's positive and its first `negatives` negatives, with the teacher's scores or NaN.

        A short list of negatives is repeated. A row without any borrows the positives of the next rows of the batch.
        """
        starts = self._starts[rows]
        counts = self._starts[rows + 1] - starts - 1
        if len(rows) == 1 and counts[0] == 0:
            negatives = 0
        columns = np.arange(negatives)
        places = np.empty((len(rows), 1 + negatives), np.int64)
        places[:, 0] = starts
        places[:, 1:] = starts[:, None] + 1 + columns % np.maximum(counts, 1)[:, None]
        borrowers = np.flatnonzero(counts == 0)[:, None]
        lenders = (borrowers + 1 + columns % max(len(rows) - 1, 1)) % len(rows)
        places[borrowers, 1 + columns] = starts[lenders]
        if self._scores is None:
            return self._passages[places], np.full(places.shape, np.nan, np.float32)
        scores = self._scores[places]
        scores[borrowers, 1 + columns] = np.nan
        return self._passages[places], scores

    def text_keys(self, rows: Positions, negatives: int) -> NDArray[np.uint64]:
        """Return one key per text of each row: anchor, positive, then negatives. Equal texts have equal keys."""
        if len(self._passage_keys) == len(self._starts) - 1:
            places = np.broadcast_to(rows[:, None], (len(rows), 1 + negatives))
        else:
            starts, ends = self._starts[rows], self._starts[rows + 1]
            places = np.minimum(starts[:, None] + np.arange(1 + negatives), ends[:, None] - 1)
        return np.concatenate([self._anchor_keys[rows][:, None], self._passage_keys[places]], axis=1)


class SelectedRows(TokenisedRows):
    """Some rows of a tokenised dataset, used like a dataset; their token ids are not copied."""

    def __init__(self, whole: TokenisedRows, rows: Positions) -> None:
        self._selection = whole, rows
        self.queries, self.documents = whole.queries, whole.documents
        sizes = whole._starts[rows + 1] - whole._starts[rows]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.repeat(whole._starts[rows] - self._starts[:-1], sizes) + np.arange(self._starts[-1])
        self.anchors, self._anchor_keys = whole.anchors[rows], whole._anchor_keys[rows]
        self._passages, self._passage_keys = whole._passages[places], whole._passage_keys[places]
        self._scores = None if whole._scores is None else whole._scores[places]
        if self._scores is not None and not np.isfinite(self._scores).any():
            self._scores = None

    def __reduce__(self) -> tuple[type[TokenisedRows], tuple[Any, ...]]:
        return SelectedRows, self._selection


def _count_distinct(places: Places) -> int:
    # `np.unique` takes thirty times as long: 14 s for 20 million.
    return 1 + int(np.count_nonzero(np.diff(np.sort(places))))


def open_array(path: Path) -> Any:
    """Map an array, as a plain one: slicing numpy's memmap class is several times slower."""
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
