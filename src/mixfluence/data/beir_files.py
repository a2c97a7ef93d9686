"""Where the three tables of a BEIR set are, in each of the layouts it is published in.

- BEIR's archives: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, each perhaps with `.gz`;
- the hub's `BeIR/<name>`, whose judgements are in a repository of their own, `BeIR/<name>-qrels`: put the two folders
  side by side;
- mteb's twins: folders `corpus`, `queries` and `qrels` (or `default`, or `data`) of Parquet files or JSON lines, named
  by split and perhaps in pieces. Several languages in one repository have a prefix, such as `ar-corpus`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mixfluence.errors import DataError

TABLES = (".parquet", ".jsonl", ".jsonl.gz")
JUDGEMENTS = (".tsv", ".tsv.gz", *TABLES)
# train-00000-of-00003 is the first of three pieces of train; the hub's own conversion has train/0000.
PIECE = re.compile(r"-\d+-of-\d+$")


class BeirFiles(NamedTuple):
    """The files one split is made of: each table is one file, or several in order."""

    corpus: list[Path]
    queries: list[Path]
    qrels: list[Path]


def find_beir_files(folder: Path, split: str, prefix: str = "") -> BeirFiles:
    """Return the files of one split.

    Args:
        folder: Holds the tables.
        split: Which judgements. Queries and corpus may have splits too: then this one, or the only one there is.
        prefix: Stands before the names of mteb's folders where a repository has several sets.

    Raises:
        DataError: If a table or the split is missing.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    corpus, queries = (_find_texts(folder, f"{prefix}{table}", split) for table in ("corpus", "queries"))
    return BeirFiles(corpus, queries, _find_judgements(folder, split, prefix))


def _find_texts(folder: Path, table: str, split: str) -> list[Path]:
    for file in (folder / f"{table}.jsonl", folder / f"{table}.jsonl.gz"):
        if file.is_file():
            return [file]
    splits = _splits(folder / table, TABLES)
    if split in splits:
        return splits[split]
    if len(splits) != 1:
        found = f"found the splits {', '.join(sorted(splits))} there" if splits else "found neither"
        raise DataError(f"{folder}: expected {table}.jsonl or {table}.jsonl.gz, or a folder {table} in it, {found}")
    return next(iter(splits.values()))


def _find_judgements(folder: Path, split: str, prefix: str) -> list[Path]:
    places = [folder / f"{prefix}qrels", folder / "default", folder / "data", folder.with_name(f"{folder.name}-qrels")]
    found: set[str] = set()
    for place in places:
        splits = _splits(place, JUDGEMENTS)
        if split in splits:
            return splits[split]
        found |= splits.keys()
    names = ", ".join(sorted(found)) or "none"
    raise DataError(f"{places[0]}: no split '{split}' ({split}.tsv), found: {names}")


def _splits(folder: Path, endings: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the files of a folder by split, pieces in order."""
    splits: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        ending = next((ending for ending in endings if file.name.endswith(ending)), None)
        if ending and file.is_file():
            name = PIECE.sub("", file.name.removesuffix(ending))
            splits.setdefault(file.parent.name if name.isdecimal() else name, []).append(file)
    return {name: _either(files) for name, files in splits.items()}


def _either(files: list[Path]) -> list[Path]:
    """Return Parquet files as they are, and of a file and its gzipped form the file."""
    pieces = [file for file in files if file.suffix == ".parquet"]
    return pieces or [min(files, key=lambda file: len(file.name))]
