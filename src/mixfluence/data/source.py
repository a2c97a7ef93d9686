"""The base of all data formats: recipe keys that they share, and file readers whose errors name file and line."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, SerializeAsAny, ValidationInfo

from mixfluence.data.columns import Dialect, read_table
from mixfluence.data.mining import MiningSection
from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import ROWS_PER_BATCH, RowSet
from mixfluence.errors import DataError
from mixfluence.losses import LOSSES, LossSection
from mixfluence.schema import Count, PathLike, Section, WholeNumber, registered, short

LOCATION_KEYS = {"path", "id", "config", "library", "task", "language", "kind", "split"}
# Keys of training sets only; their defaults are keys of `training`.
TRAINING_KEYS = ("loss", "batch_size", "hard_negatives")
# Published datasets have a few unknown ids and empty texts; more of them means the wrong file or column.
MAX_DROPPED_SHARE = 0.05
EXAMPLES_SHOWN = 5
ANY_DIALECT = Dialect()
UNPACK: dict[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
# A record's place in its file, for messages, and its value.
Record = tuple[str, Any]


class PublishedSection(Section):
    """Published counts of a dataset: compared with what is read, and used by `plan` where the data is missing."""

    rows: Count | None = None
    queries: Count | None = None
    judgements: Count | None = None
    passages: Count | None = None


class SourceSection(Section):
    """A data source. A format is a subclass with a literal `format` and a line in `formats.FORMATS`.

    Prompts are prepended to every text, in training and in testing; without one the model's own is used.
    Counts that differ from `published` are reported as warnings. `negatives` are mined for rows without any.
    A training set may have a `loss`, `batch_size` and `hard_negatives` of its own instead of those of `training`.
    """

    query_prompt: str | None = None
    passage_prompt: str | None = None
    published: PublishedSection | None = None
    negatives: MiningSection | None = None
    loss: Annotated[SerializeAsAny[LossSection] | None, registered(LOSSES, default="info-nce")] = None
    batch_size: Count | None = None
    hard_negatives: WholeNumber | None = None

    @property
    def location(self) -> str:
        """The source as messages name it: its path or id, language and split."""
        return " ".join(map(str, self.model_dump(include=LOCATION_KEYS, exclude_none=True).values()))

    @property
    def on_disk(self) -> bool:
        """Whether the data should be readable on this machine."""
        return True

    @abstractmethod
    def read_rows(self) -> RowSet:
        """Return the training rows. `formats.read_rows` also compares them with the published counts."""

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        """Return a retrieval task; unless the format has a corpus, all passages of the (given) rows are the corpus."""
        return retrieval_from_rows(name, self.read_rows() if rows is None else rows)

    def read_both(self, name: str) -> tuple[RowSet, RetrievalSet]:
        """Return the rows and the task of a dev set, whose files are read once."""
        rows = self.read_rows()
        return rows, self.read_task(name, rows)


def _exists(path: Path, info: ValidationInfo) -> Path:
    may_be_missing = (info.context or {}).get("files_may_be_missing")
    if not may_be_missing and not os.path.exists(path):
        raise ValueError(f"no such file or folder: {path.absolute()}")
    return path


ExistingPath = Annotated[PathLike, AfterValidator(_exists)]


class FileSource(SourceSection):
    """A source on this machine."""

    path: ExistingPath

    @property
    def on_disk(self) -> bool:
        return os.path.exists(self.path)  # pathlib's raises for names that are too long


def note_dropped(
    notes: list[str], source: object, what: str, dropped: Sequence[str], total: int, limit: float = 1.0
) -> None:
    """Append a note if anything was left out of a total; raise a `DataError` if its share exceeds `limit`."""
    if not dropped:
        return
    found = f"{len(dropped)} of {total} {what}, such as {', '.join(dropped[:EXAMPLES_SHOWN])}"
    if len(dropped) / total > limit:
        raise DataError(f"{source}: found {found}; expected at most {limit:.0%}")
    notes.append(f"{source}: left out {found}")


def find_file(folder: Path, name: str) -> Path:
    """Return the file `name` of a folder, or its `.gz` form if only that exists."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder}: expected {name} or {name}.gz in it, found neither")


def read_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the place and text of every line that is not blank; `.gz`, `.bz2` and `.xz` files are unpacked."""
    for number, text in enumerate(_lines(path, encoding), 1):
        if text and not text.isspace():
            yield f"{path}:{number}", text


def read_text(path: Path) -> str:
    """Return a text file as it is, without a byte order mark."""
    return "\n".join(_lines(path))


def read_records(path: Path, dialect: Dialect = ANY_DIALECT, notes: list[str] | None = None) -> Iterator[Record]:
    """Yield every record with its place: of Parquet, csv, tsv and json by the file's name, else of JSON lines.

    What was detected of a table's dialect is added to the notes.
    """
    match path.name.removesuffix(".gz").rpartition(".")[2]:
        case "parquet":
            return _read_parquet(path)
        case "csv" | "tsv" as ending:
            lines = _lines(path, dialect.encoding)
            return read_table(path, lines, "," if ending == "csv" else "\t", dialect, [] if notes is None else notes)
        case "json":
            return _read_json(path, dialect.encoding)
        case _:
            return _read_jsonl(path, dialect.encoding)


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every record with its place; all must be objects."""
    for where, record in read_records(path):
        if not isinstance(record, dict):
            raise DataError(f"{where}: found {short(record)}, expected an object")
        yield where, record


def text_field(record: dict[str, Any], name: str, where: str) -> str:
    """Return a field that must be text."""
    if name not in record:
        raise DataError(f"{where}: expected '{name}' among its keys, found {', '.join(map(short, record)) or 'none'}")
    value = record[name]
    if not isinstance(value, str):
        raise DataError(f"{where}: found {short(value)} as '{name}', expected text")
    return value


def _lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Yield every line without its end; a byte order mark is removed."""
    number = 0
    try:
        with UNPACK[path.suffix](path) if path.suffix in UNPACK else path.open("rb") as stream:
            # UTF-8 by line, so that errors name the line.
            lines: Iterable[Any] = io.TextIOWrapper(stream, encoding, newline="\n") if encoding else stream
            for number, line in enumerate(lines, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8") if isinstance(line, bytes) else line
                yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        # Any bytes are valid Latin-1, so it is not suggested for a file that begins with the mark of UTF-16.
        likely = "utf-16" if error.object[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE} else "latin-1"
        hint = "" if encoding else f"; save it as UTF-8, or write its encoding, such as encoding: {likely}"
        raise DataError(f"{path}:{number}: not valid {encoding or 'UTF-8'} ({error}){hint}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: damaged or truncated after line {number} ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable file ({error.strerror or error})") from error


def _read_json(path: Path, encoding: str | None) -> Iterator[Record]:
    """Yield the elements of an array of records, or of JSON lines."""
    with suppress(ValueError, RecursionError):
        array = json.loads("\n".join(_lines(path, encoding)))
        if isinstance(array, list) and all(isinstance(record, list | dict) for record in array):
            for number, record in enumerate(array, 1):
                yield f"{path}: record {number}", _without_surrogates(record, f"{path}: record {number}")
            return
    yield from _read_jsonl(path, encoding)


def _read_jsonl(path: Path, encoding: str | None) -> Iterator[Record]:
    for where, text in read_lines(path, encoding):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON ({error})") from error
        yield where, _without_surrogates(value, where) if "\\u" in text else value


def _without_surrogates(value: Any, where: str) -> Any:
    try:  # half a surrogate pair is rejected by Arrow later
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    return value


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa  # here, because recipes import the formats without data
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH):
                for record in batch.to_pylist():
                    row += 1
                    yield f"{path}: row {row}", record
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not a valid Parquet file after row {row} ({reason})") from error
