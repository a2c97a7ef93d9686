"""Datasets as token ids, read from the memory-mapped files that `tokenize` writes.

A row is an anchor and a sequence of passages, the positive first. Equal texts are stored once and identified by a key,
so that batches can be kept free of texts that would be false negatives. Rows selected from tokenised datasets are
looked up by number: nothing is tokenised or copied again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Places = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TokenLayout:
    """How one side of a model takes its token ids.

    Attributes:
        padded: A padded matrix with an attention mask, as for transformers; otherwise one flat sequence with the
            offset of each text, as for static embeddings.
        pad_id: The padding token.
        pad_left: Whether padding comes before the text.
        zeros: Further inputs of the matrix's shape that are zero for a single text (token types).
        constants: Features that are the same for every batch (task, modality, length of the prompt).
    """

    padded: bool
    pad_id: int
    pad_left: bool
    zeros: list[str]
    constants: dict[str, Any]

    def features(self, texts: list[NDArray[np.int32]]) -> dict[str, Any]:
        """Return the model's input for these texts."""
        lengths = np.array([len(ids) for ids in texts], np.int64)
        if not self.padded:
            flat = np.concatenate(texts) if texts else np.empty(0, np.int32)
            offsets = np.cumsum(lengths) - lengths
            ids = torch.from_numpy(flat.astype(np.int64))
            return {"input_ids": ids, "offsets": torch.from_numpy(offsets), **self.constants}
        width = int(lengths.max(initial=0))
        matrix = np.full((len(texts), width), self.pad_id, np.int64)
        mask = np.zeros((len(texts), width), np.int64)
        for row, text in enumerate(texts):
            place = slice(width - len(text), width) if self.pad_left else slice(0, len(text))
            matrix[row, place] = text
            mask[row, place] = 1
        tensors = {"input_ids": torch.from_numpy(matrix), "attention_mask": torch.from_numpy(mask)}
        tensors |= {name: torch.zeros_like(tensors["input_ids"]) for name in self.zeros}
        return {**tensors, **self.constants}


class TokenTable:
    """Token ids of the distinct texts of one side.

    Args:
        layout: How the model takes them.
        starts: Where each text starts in `ids`, and where the last one ends.
        ids: The ids of all texts.
    """

    def __init__(self, layout: TokenLayout, starts: NDArray[np.int64], ids: NDArray[np.int32]) -> None:
        self.layout = layout
        self._starts = starts
        self._ids = ids

    @classmethod
    def open(cls, folder: Path, side: str, layout: TokenLayout) -> TokenTable:
        """Map the files that a `TokenWriter` has written."""
        starts: NDArray[np.int64] = _open(folder / f"{side}_starts.npy")
        # numpy cannot map an empty file, and empty texts have no tokens on a static model.
        path, count = folder / f"{side}_ids.bin", int(starts[-1])
        ids = np.memmap(path, np.int32, "r", shape=(count,)).view(np.ndarray) if count else np.empty(0, np.int32)
        return cls(layout, starts, ids)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self._starts)

    def token_ids(self, positions: Places) -> list[NDArray[np.int32]]:
        """Return the token ids of the texts at these positions."""
        starts, ends = self._starts[positions], self._starts[positions + 1]
        return [self._ids[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


class TokenWriter:
    """Writes the files of a `TokenTable`."""

    def __init__(self, folder: Path, side: str) -> None:
        self._ids = (folder / f"{side}_ids.bin").open("wb")
        self._starts = folder / f"{side}_starts.npy"
        self._lengths = [np.zeros(1, np.int64)]

    def add(self, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> None:
        """Append texts: the ids of all of them, and the length of each."""
        ids.tofile(self._ids)
        self._lengths.append(lengths)

    def close(self) -> None:
        """Write the rest."""
        self._ids.close()
        np.save(self._starts, np.cumsum(np.concatenate(self._lengths), dtype=np.int64))


class ArrayLike(Sized, Protocol):
    """Numbers that are looked up by their places."""

    def __getitem__(self, places: Any, /) -> NDArray[Any]:
        """Return the numbers at these places."""


class TokenisedRows:
    """A dataset as token ids, which training reads instead of text.

    Attributes:
        queries: Token ids of the anchors.
        documents: Token ids of positives and negatives.
        distinct_positives: How many different positives there are; a batch cannot have more rows.
        least_negatives: Negatives of the row that has fewest.
        most_negatives: Negatives of the row that has most.
        has_scores: Whether there are teacher scores.
        anchors: Each row's anchor, by its number in `queries`.
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
        self._passages: ArrayLike = _open(folder / "passages.npy")
        self._starts: ArrayLike = _open(folder / "passage_starts.npy")
        # By row, not by distinct text: one lookup per text of a batch instead of two, each a cache miss.
        self._anchor_keys: ArrayLike = _open(folder / "anchor_keys.npy")
        self._passage_keys: ArrayLike = _open(folder / "passage_keys.npy")
        self._scores: ArrayLike | None = _open(folder / "scores.npy") if self.has_scores else None

    def __len__(self) -> int:
        return len(self.anchors)

    def __reduce__(self) -> tuple[type[TokenisedRows], tuple[Any, ...]]:
        # Loader workers open the files themselves instead of receiving a copy.
        return TokenisedRows, (self._folder,)

    def candidates(self, rows: Positions, negatives: int) -> tuple[Places, NDArray[np.float32]]:
        """Return each row's positive and its first `negatives` negatives, with the teacher's scores.

        A short list of negatives is repeated. A row without any borrows the positives of the next rows of the batch,
        which are its in-batch negatives anyway. Missing scores are NaN.
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
    """Some rows of one or several datasets, used like a dataset of their own.

    Args:
        subsets: Datasets tokenised alike, each with the numbers of its rows, in row order.
    """

    def __init__(self, subsets: Sequence[tuple[TokenisedRows, Positions]]) -> None:
        self._subsets = subsets
        wholes = [whole for whole, _ in subsets]
        offsets = _offsets(wholes)
        self._rows = np.concatenate([start + places for start, (_, places) in zip(offsets, subsets, strict=True)])
        self.queries = _join_tables([whole.queries for whole in wholes])
        self.documents = _join_tables([whole.documents for whole in wholes])
        queries, documents = _offsets([whole.queries for whole in wholes]), _offsets([w.documents for w in wholes])
        self.anchors = _join([whole.anchors for whole in wholes], queries)[self._rows]
        self._passages = _join([whole._passages for whole in wholes], documents)
        self._anchor_keys = _join([whole._anchor_keys for whole in wholes])
        self._passage_keys = _join([whole._passage_keys for whole in wholes])
        # The passages of a dataset end where those of the next begin.
        starts = [*(whole._starts[:-1] for whole in wholes[:-1]), wholes[-1]._starts]
        self._starts = _join(starts, _offsets([whole._passages for whole in wholes]))
        begins, ends = self._starts[self._rows], self._starts[self._rows + 1]
        self.distinct_positives = len(np.unique(self._passage_keys[begins]))
        self.least_negatives = int((ends - begins).min()) - 1
        self.most_negatives = int((ends - begins).max()) - 1
        scores = _join([_no_scores(whole) if whole._scores is None else whole._scores for whole in wholes])
        columns = range(int((ends - begins).max()) if any(whole.has_scores for whole in wholes) else 0)
        self.has_scores = any(np.isfinite(scores[np.minimum(begins + i, ends - 1)]).any() for i in columns)
        self._scores = scores if self.has_scores else None

    def __reduce__(self) -> tuple[type[TokenisedRows], tuple[Any, ...]]:
        return SelectedRows, (self._subsets,)

    def candidates(self, rows: Positions, negatives: int) -> tuple[Places, NDArray[np.float32]]:
        """Return each row's positive and negatives with their scores."""
        return super().candidates(self._rows[rows], negatives)

    def text_keys(self, rows: Positions, negatives: int) -> NDArray[np.uint64]:
        """Return one key per text of each row."""
        return super().text_keys(self._rows[rows], negatives)


class JoinedTable(TokenTable):
    """Several tables read as one."""

    def __init__(self, tables: Sequence[TokenTable]) -> None:
        self.layout = tables[0].layout
        self._tables = tables
        self._offsets = _offsets(tables)

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.concatenate([table.lengths for table in self._tables])

    def token_ids(self, positions: Places) -> list[NDArray[np.int32]]:
        """Return the token ids of the texts at these positions."""
        found = [np.empty(0, np.int32)] * len(positions)
        for number, chosen, own in _by_owner(positions, self._offsets):
            for place, ids in zip(np.flatnonzero(chosen).tolist(), self._tables[number].token_ids(own), strict=True):
                found[place] = ids
        return found


class JoinedArray:
    """Several arrays read as one; a shift is added to the values of each."""

    def __init__(self, arrays: Sequence[ArrayLike], shifts: Positions | None) -> None:
        self._arrays = arrays
        self._offsets = _offsets(arrays)
        self._shifts = shifts

    def __len__(self) -> int:
        return sum(map(len, self._arrays))

    def __getitem__(self, places: Places) -> NDArray[Any]:
        dtype = self._arrays[0][:0].dtype if self._shifts is None else self._shifts.dtype
        found = np.empty(places.shape, dtype)
        for number, chosen, own in _by_owner(places, self._offsets):
            found[chosen] = self._arrays[number][own]
            if self._shifts is not None:
                found[chosen] += self._shifts[number]
        return found


def _join_tables(tables: Sequence[TokenTable]) -> TokenTable:
    return tables[0] if len(tables) == 1 else JoinedTable(tables)


def _join(arrays: Sequence[ArrayLike], shifts: Positions | None = None) -> ArrayLike:
    return arrays[0] if len(arrays) == 1 else JoinedArray(arrays, shifts)


def _offsets(arrays: Sequence[Sized]) -> Positions:
    """Return the place of each array's first element when they are read as one."""
    return np.cumsum([0, *map(len, arrays)])[:-1]


def _by_owner(places: Places, offsets: Positions) -> Iterator[tuple[int, NDArray[np.bool_], Places]]:
    """Yield each array that places fall into: its number, a mask of these places, and the places in it."""
    owners = np.searchsorted(offsets, places, side="right") - 1
    for number in np.unique(owners).tolist():
        chosen = owners == number
        yield number, chosen, places[chosen] - offsets[number]


def _no_scores(rows: TokenisedRows) -> NDArray[np.float32]:
    """Return NaN for every passage, in the memory of one number."""
    return np.broadcast_to(np.float32(np.nan), len(rows._passages))


def _open(path: Path) -> Any:
    # As a plain array: slicing numpy's memmap class is several times slower.
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
