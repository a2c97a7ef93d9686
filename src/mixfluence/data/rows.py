"""The one row shape every format ends as, kept in a memory-mapped Arrow file.

A row is an anchor (usually a query), one positive, any number of negatives and, where a teacher
scored them, one score per passage with the positive first. Files are converted once: the Arrow file
is found again by the path, size and time of its sources and by the reader's options.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset, concatenate_datasets
from numpy.typing import NDArray

from mixfluence.errors import DataError
from mixfluence.files import replacing, write_text

logger = logging.getLogger(__name__)

SCHEMA = pa.schema(
    {
        "anchor": pa.string(),
        "positive": pa.string(),
        "negatives": pa.list_(pa.string()),
        "scores": pa.list_(pa.float32()),
    }
)
# Small enough that long documents with many negatives stay below Arrow's 2 GiB of text per array.
ROWS_PER_BATCH = 1_000
# Part of every key: raise it when a reader starts to produce other rows from the same file.
READER_VERSION = 1


class Row(NamedTuple):
    """One training item. `scores` is empty or holds one teacher score per passage, positive first."""

    anchor: str
    positive: str
    negatives: Sequence[str] = ()
    scores: Sequence[float] = ()


@dataclass(frozen=True)
class RowSet:
    """The rows of one dataset with a fingerprint of their content and what its reader wants said.

    Attributes:
        parts: Rows that belong together, such as those of one source and length, by name and number, in the order
            of the rows. Empty if the dataset is all of one kind.
        pieces: The datasets that the rows were cut from, if they are tokenised as a whole: rows that are cut in ever
            new ways, such as clusters, take their token ids from there.
    """

    rows: Dataset
    fingerprint: str
    notes: tuple[str, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = field(default=(), compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def wholes(self) -> tuple[RowSet, ...]:
        """What is tokenised for it."""
        return tuple(piece.whole for piece in self.pieces) or (self,)

    def take(self, places: Sequence[int], fingerprint: str) -> RowSet:
        """Return the rows at these places, which must rise, under a fingerprint that tells them apart."""
        ends = np.searchsorted(np.asarray(places), np.cumsum(list(self.parts.values())))
        sizes = np.diff(ends, prepend=0).tolist()
        parts = {name: size for name, size in zip(self.parts, sizes, strict=True) if size}
        return RowSet(self.rows.select(places), fingerprint, self.notes, parts)


class Piece(NamedTuple):
    """Some rows of a dataset, by their numbers in it."""

    whole: RowSet
    places: NDArray[np.int64]


def cache_root() -> Path:
    """Return the folder of converted rows and token caches: `$MIXFLUENCE_CACHE` or the user's cache."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mixfluence"
    return Path(os.environ.get("MIXFLUENCE_CACHE", default))


def convert_once(
    files: Sequence[Path], options: Mapping[str, Any], read: Callable[[list[str]], Iterable[Row]]
) -> RowSet:
    """Return the rows that `read` yields, from an earlier conversion when nothing has changed.

    Args:
        files: Every file `read` opens; a change of size or time makes a new conversion.
        options: What else decides the rows (format, split, column names); must be JSON-serialisable.
        read: Yields the rows. It is given a list to which it appends remarks for the user, which are
            kept with the rows and shown again by later runs.

    Raises:
        DataError: If the files hold no row at all.
    """
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = json.dumps([READER_VERSION, stats, options], sort_keys=True)
    return _convert(key, ", ".join(map(str, files)), read)


def convert_content(content: str, read: Callable[[list[str]], Iterable[Row]]) -> RowSet:
    """Return the rows that `read` makes of a dataset which has no file but a fingerprint of its content."""
    return _convert(json.dumps([READER_VERSION, content]), "the dataset", read)


def _convert(key: str, source: str, read: Callable[[list[str]], Iterable[Row]]) -> RowSet:
    path = cache_root() / "rows" / f"{xxhash.xxh3_128_hexdigest(key.encode())}.arrow"
    if converted := _open(path):
        return converted
    notes: list[str] = []
    write_rows(read(notes), path)
    dataset = Dataset.from_file(str(path))
    if len(dataset) == 0:
        path.unlink()
        raise DataError(f"{source}: no training row in it")
    content = fingerprint(dataset)
    write_text(path.with_suffix(".json"), json.dumps({"fingerprint": content, "notes": notes}))
    return RowSet(dataset, content, tuple(notes))


def _open(path: Path) -> RowSet | None:
    """Return rows that were converted before; None if they were not, or are damaged and have to be converted again."""
    facts = path.with_suffix(".json")
    try:
        known = json.loads(facts.read_text(encoding="utf-8"))
        return RowSet(Dataset.from_file(str(path)), known["fingerprint"], tuple(known["notes"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: damaged, reading the data again (%s)", path, error)
        return None


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Stream rows into an Arrow file that appears under its name only when it is complete."""
    try:
        with (
            replacing(path) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_stream(sink, SCHEMA) as writer,
        ):
            for batch in _batches(rows):
                writer.write_batch(pa.record_batch(_columns(batch), schema=SCHEMA))
    except OSError as error:
        # Arrow does not say which file it could not write.
        raise OSError(error.errno, os.strerror(error.errno or 0), error.filename or str(path)) from error


def join(parts: Mapping[str, RowSet]) -> RowSet:
    """Return several sets as one, which remembers what its parts were."""
    digest = xxhash.xxh3_128_hexdigest(" ".join(part.fingerprint for part in parts.values()).encode())
    notes = tuple(note for part in parts.values() for note in part.notes)
    rows = concatenate_datasets([part.rows for part in parts.values()])
    return RowSet(rows, digest, notes, {name: len(part) for name, part in parts.items()})


def rows_in_memory(rows: Iterable[Row]) -> Dataset:
    """Return rows as a dataset that lives in memory: for small sets made on the fly."""
    return Dataset(pa.table(_columns(list(rows)), SCHEMA))


def fingerprint(dataset: Dataset) -> str:
    """Hash the content of a dataset, the same for equal rows wherever they are stored."""
    digest = xxhash.xxh3_128(",".join(dataset.column_names).encode())
    for table in dataset.with_format("arrow").iter(ROWS_PER_BATCH):
        # Through Python values, because equal rows may differ in their Arrow buffers (slices, null maps).
        digest.update(json.dumps([column.to_pylist() for column in table.columns]).encode())
    return digest.hexdigest()


def _columns(rows: Sequence[Row]) -> list[pa.Array]:
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    return [pa.array(column, type) for column, type in zip(columns, SCHEMA.types, strict=True)]


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, ROWS_PER_BATCH)):
        yield batch
