"""A dataset as token ids, read from the memory-mapped files that `tokenising` makes.

A row is an anchor and a run of passages, the positive first and its negatives after it. Equal texts are
stored once and known by a key, so that a batch can be kept free of texts that would be false negatives.
"""

from __future__ import annotations

import json
from collections.abc import Sized
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mixfluence.data.layout import TokenLayout

Positions = NDArray[np.int64]


class Column(Sized, Protocol):
    """Numbers that are read by their places."""

    def __getitem__(self, places: Any, /) -> NDArray[Any]:
        """Return the numbers at these places."""


class TokenTable:
    """Token ids of the distinct texts of one side.

    Args:
        layout: The features around the ids.
        starts: Where each text begins in the run of ids, and where the last one ends.
        ids: The ids of all texts.
    """

    def __init__(self, layout: TokenLayout, starts: NDArray[np.int64], ids: NDArray[np.int32]) -> None:
        self.layout = layout
        self._starts = starts
        self._ids = ids

    @classmethod
    def open(cls, folder: Path, side: str, layout: TokenLayout) -> TokenTable:
        """Map the files of one side."""
        starts: NDArray[np.int64] = _open(folder / f"{side}_starts.npy")
        # numpy cannot map an empty file, and a dataset of empty texts has no token on a static model.
        path, count = folder / f"{side}_ids.bin", int(starts[-1])
        ids = np.memmap(path, np.int32, "r", shape=(count,)).view(np.ndarray) if count else np.empty(0, np.int32)
        return cls(layout, starts, ids)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self._starts)

    def token_ids(self, positions: NDArray[np.integer[Any]]) -> list[NDArray[np.int32]]:
        """Return the token ids of the texts at these positions."""
        starts, ends = self._starts[positions], self._starts[positions + 1]
        return [self._ids[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


class TokenisedRows:
    """A dataset as token ids: what training reads instead of text.

    Attributes:
        queries: Token ids of the anchors.
        documents: Token ids of positives and negatives.
        distinct_positives: How many different positives there are; a batch cannot hold more rows.
        least_negatives: Negatives of the row that has fewest.
        most_negatives: Negatives of the row that has most.
        has_scores: Whether a teacher scored the passages.
        anchors: The text of each row's anchor, by its number among the queries.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        facts = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.queries = TokenTable.open(folder, "query", TokenLayout(**facts["query"]))
        self.documents = TokenTable.open(folder, "document", TokenLayout(**facts["document"]))
        self.distinct_positives: int = facts["distinct_positives"]
        self.least_negatives: int = facts["least_negatives"]
        self.most_negatives: int = facts["most_negatives"]
        self.has_scores: bool = facts["has_scores"]
        self.anchors: NDArray[np.int32] = _open(folder / "anchors.npy")
        self._passages: Column = _open(folder / "passages.npy")
        self._starts: Column = _open(folder / "passage_starts.npy")
        # By place, not by text: a batch looks up as many as it has texts, each in memory that is in no cache.
        self._anchor_keys: Column = _open(folder / "anchor_keys.npy")
        self._passage_keys: Column = _open(folder / "passage_keys.npy")
        self._scores: Column | None = _open(folder / "scores.npy") if self.has_scores else None

    def __len__(self) -> int:
        return len(self.anchors)

    def __reduce__(self) -> tuple[type[TokenisedRows], tuple[Any, ...]]:
        # Loader workers open the files themselves instead of being sent a copy of them.
        return TokenisedRows, (self._folder,)

    def candidates(self, rows: Positions, negatives: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.float32]]:
        """Return each row's positive and its first `negatives` negatives, with the teacher's scores.

        A short list of negatives is repeated; a row without any borrows the positives of the rows after
        it in the batch, which are its in-batch negatives anyway. Missing scores are not-a-number.
        """
        starts = self._starts[rows]
        counts = self._starts[rows + 1] - starts - 1
        if len(rows) == 1 and counts[0] == 0:
            negatives = 0
        columns = np.arange(negatives)
        places = np.empty((len(rows), 1 + negatives), np.int64)
        places[:, 0] = starts
        places[:, 1:] = starts[:, None] + 1 + columns % np.maximum(counts, 1)[:, None]
        poor = np.flatnonzero(counts == 0)[:, None]
        lenders = (poor + 1 + columns % max(len(rows) - 1, 1)) % len(rows)
        places[poor, 1 + columns] = starts[lenders]
        if self._scores is None:
            return self._passages[places], np.full(places.shape, np.nan, np.float32)
        scores = self._scores[places]
        scores[poor, 1 + columns] = np.nan
        return self._passages[places], scores

    def text_keys(self, rows: Positions, negatives: int) -> NDArray[np.uint64]:
        """Return one key per text of each row: anchor, positive, then negatives. Equal texts share a key."""
        if len(self._passage_keys) == len(self._starts) - 1:
            places = np.broadcast_to(rows[:, None], (len(rows), 1 + negatives))
        else:
            starts, ends = self._starts[rows], self._starts[rows + 1]
            places = np.minimum(starts[:, None] + np.arange(1 + negatives), ends[:, None] - 1)
        return np.concatenate([self._anchor_keys[rows][:, None], self._passage_keys[places]], axis=1)


def _open(path: Path) -> Any:
    # As a plain array: slices of numpy's memmap class cost several times as much.
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
