"""Training rows: an anchor, a positive, any number of negatives and perhaps teacher scores.

Every format is converted to this shape once, into a memory-mapped Arrow file. Recipes import this module, so Arrow is
imported inside functions.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from mixfluence.data.cache import cached, checksum
from mixfluence.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset
    from numpy.typing import NDArray

# Small enough that long documents with many negatives stay below Arrow's 2 GiB of text per array.
ROWS_PER_BATCH = 1_000
# Part of every key: raise it when a reader starts to produce other rows from the same file.
READER_VERSION = 2


class Row(NamedTuple):
    """One training row. `scores` is empty or has one teacher score per passage, the positive's first."""

    anchor: str
    positive: str
    negatives: Sequence[str] = ()
    scores: Sequence[float] = ()


@dataclass(frozen=True)
class RowSet:
    """The rows of one dataset, a fingerprint of their content, and the reader's notes and columns by role.

    `parts` has the sizes of groups of rows that share a source and length, by name and in row order. `subset` is where
    a cluster's rows were selected from: it takes token ids from there instead of being tokenised itself.
    """

    rows: Dataset
    fingerprint: str
    notes: tuple[str, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    subset: Subset | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def whole(self) -> RowSet:
        """The dataset that is tokenised for it."""
        return self.subset.whole if self.subset else self

    def take(self, places: Sequence[int], fingerprint: str) -> RowSet:
        """Return the rows at these ascending places, under a fingerprint of their own."""
        ends = [bisect_left(places, end) for end in accumulate(self.parts.values())]
        sizes = (end - start for start, end in zip([0, *ends], ends, strict=False))
        parts = {name: size for name, size in zip(self.parts, sizes, strict=True) if size}
        return RowSet(self.rows.select(places), fingerprint, self.notes, parts, self.columns)

    def sample(self, count: int) -> RowSet:
        """Return at most `count` rows, evenly spaced."""
        step = -(-len(self) // count)
        return self if step == 1 else self.take(range(0, len(self), step), f"{self.fingerprint}-every-{step}")


class Subset(NamedTuple):
    """Some rows of a dataset, by their numbers in it."""

    whole: RowSet
    places: NDArray[np.int64]


def text_key(text: str) -> int:
    """Return a 64-bit hash by which equal texts are recognised."""
    return xxhash.xxh3_64_intdigest(text.encode())


def hash_order(texts: Iterable[str]) -> list[int]:
    """Return the positions of texts in an order that depends on nothing but the texts, for splits."""
    hashes = [xxhash.xxh3_128_hexdigest(text.encode()) for text in texts]
    return sorted(range(len(hashes)), key=hashes.__getitem__)


def cut_at_space(text: str, most: int) -> str:
    """Return at most `most` characters of a text, cut at a space if it has any."""
    if len(text) <= most:
        return text
    return text[: most + 1].rpartition(" ")[0] or text[:most]


def count_difference(name: str, what: str, found: int, published: int | None) -> Iterator[str]:
    """Yield a note if a count is known and differs from what was read."""
    if published is not None and found != published:
        yield f"{name}: {found:,} {what}, but {published:,} were published"


@cache
def arrow_schema() -> pa.Schema:
    """Return the columns of a row in Arrow."""
    import pyarrow as pa

    text, number = pa.string(), pa.float32()
    types = (text, text, pa.list_(text), pa.list_(number))
    return pa.schema(list(zip(Row._fields, types, strict=True)))


@dataclass
class Facts:
    """What a reader reports besides rows: notes for the user, and the columns of each role."""

    notes: list[str] = field(default_factory=list)
    columns: dict[str, list[str]] = field(default_factory=dict)

    def add_columns(self, roles: Mapping[str, str | Sequence[str]]) -> None:
        """Add columns to their roles."""
        for role, given in roles.items():
            own = self.columns.setdefault(role, [])
            own += [name for name in ([given] if isinstance(given, str) else given) if name not in own]


def convert_once(files: Sequence[Path], options: Mapping[str, Any], read: Callable[[Facts], Iterable[Row]]) -> RowSet:
    """Return the rows that `read` yields, from the cache if neither files nor options have changed.

    `read` opens no other files. The facts that it adds are stored with the rows, so that later runs report them too.
    """
    from datasets import Dataset

    content = [(str(file.resolve()), checksum(file)) for file in files]
    key = json.dumps([READER_VERSION, content, options], sort_keys=True)

    def build(folder: Path) -> None:
        facts = Facts()
        write_rows(read(facts), folder / "rows.arrow")
        dataset = Dataset.from_file(str(folder / "rows.arrow"))
        if len(dataset) == 0:
            raise DataError(f"{', '.join(map(str, files))}: contains no training rows")
        stored = asdict(facts) | {"fingerprint": fingerprint(dataset)}
        (folder / "facts.json").write_text(json.dumps(stored), encoding="utf-8")

    def open_folder(folder: Path) -> RowSet:
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        dataset = Dataset.from_file(str(folder / "rows.arrow"))
        return RowSet(dataset, facts["fingerprint"], tuple(facts["notes"]), columns=facts["columns"])

    return cached("rows", key, open_folder, build)


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Stream rows into an Arrow file."""
    import pyarrow as pa

    iterator = iter(rows)
    with path.open("wb") as sink, pa.ipc.new_stream(sink, arrow_schema()) as writer:
        while batch := list(islice(iterator, ROWS_PER_BATCH)):
            writer.write_batch(pa.RecordBatch.from_pylist([row._asdict() for row in batch], arrow_schema()))


def join(parts: Mapping[str, RowSet]) -> RowSet:
    """Return several sets as one with named parts."""
    from datasets import concatenate_datasets

    digest = xxhash.xxh3_128_hexdigest(" ".join(part.fingerprint for part in parts.values()).encode())
    notes = tuple(note for part in parts.values() for note in part.notes)
    rows = concatenate_datasets([part.rows for part in parts.values()])
    columns = next(iter(parts.values())).columns
    return RowSet(rows, digest, notes, {name: len(part) for name, part in parts.items()}, columns)


def fingerprint(dataset: Dataset) -> str:
    """Hash the content of a dataset; equal rows have equal hashes however they are stored."""
    digest = xxhash.xxh3_128(",".join(dataset.column_names).encode())
    for table in dataset.with_format("arrow").iter(ROWS_PER_BATCH):
        # Through Python values, because equal rows may differ in their Arrow buffers (slices, null maps).
        digest.update(json.dumps([column.to_pylist() for column in table.columns]).encode())
    return digest.hexdigest()
