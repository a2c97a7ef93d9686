"""The format `debdocs`: descriptions of Debian's packages in many languages, real text without a hub.

The short description of a package is the query and the long one the passage; one language is one dataset. Languages
are translations of each other, so a package is in the same split in all of them. Files are apt's, `Translation-XX`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple

import xxhash
from pydantic import StringConstraints

from mixfluence.data.cache import cached
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once, cut_at_space
from mixfluence.data.source import ExistingPath, SourceSection, read_lines
from mixfluence.errors import DataError

Split = Literal["train", "dev", "test"]
# By the last digit of the hash of a package's name.
SPLITS: dict[int, Split] = {0: "test", 1: "dev"}
MIN_PASSAGE_CHARS, MAX_PASSAGE_CHARS = 40, 1_000
# As apt stores the file of a language: with its address in front, and `_` escaped.
FILE = re.compile(
    r"(?:.*_)?Translation-(?P<language>[a-z]{2,3}(?:(?:_|%5f)[A-Z]{2})?)(?P<packed>\.gz|\.bz2|\.xz|\.lz4)?"
)
SUFFIX_OF_APT = ".lz4"


class DebdocsSource(SourceSection):
    """Descriptions of Debian's packages in one language.

    A tenth of the packages is `dev` and a tenth `test`, by a hash of their names. All passages are the corpus.

    Attributes:
        path: Folder with files `Translation-XX`, plain or packed as gz, bz2 or xz; null fetches those of this
            machine's release by apt-get, once, without root.
        language: As in the name of the file, such as `de` or `pt_BR`.
    """

    format: Literal["debdocs"] = "debdocs"
    path: ExistingPath | None = None
    language: Annotated[str, StringConstraints(pattern=r"^[a-z]{2,3}(_[A-Z]{2})?$")]
    split: Split

    @property
    def on_disk(self) -> bool:
        return self.path.exists() if self.path else shutil.which("apt-get") is not None

    def read_rows(self) -> RowSet:
        return self._read(self.split)

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        splits = {split: self._read(split).rows for split in ("train", "dev", "test")}
        docs = {f"{split}-{i}": text for split, own in splits.items() for i, text in enumerate(own["positive"])}
        queries = list(splits[self.split]["anchor"])
        qrels = {f"q-{i}": {f"{self.split}-{i}": 1} for i in range(len(queries))}
        return RetrievalSet(name, list(qrels), queries, list(docs), list(docs.values()), qrels)

    def _read(self, split: Split) -> RowSet:
        files = _files(self.path or _fetched(self.language), self.language)
        options = {"format": "debdocs", "language": self.language, "split": split}
        return convert_once(files, options, lambda facts: _rows(files, self.language, split))


def _files(folder: Path, language: str) -> list[Path]:
    matches = {path: match for path in sorted(folder.iterdir()) if (match := FILE.fullmatch(path.name))}
    languages = {path: match["language"].replace("%5f", "_") for path, match in matches.items()}
    found = [path for path in matches if languages[path] == language]
    if not found:
        known = ", ".join(sorted(set(languages.values()))) or "none"
        raise DataError(f"{folder}: no file Translation-{language}; languages found: {known}")
    if packed := [path for path in found if path.suffix == SUFFIX_OF_APT]:
        raise DataError(f"{packed[0]}: unpack it first, with lz4 -d or /usr/lib/apt/apt-helper cat-file")
    return found


class Package(NamedTuple):
    """A package with its short and long description."""

    name: str
    short: str
    paragraphs: list[str]


def _rows(files: list[Path], language: str, split: Split) -> Iterator[Row]:
    """Yield the packages of a split; texts are unique over all splits.

    Packages of one source begin with the same paragraph, and only the first of them is kept.
    """
    seen: set[str] = set()
    for package in (package for path in files for package in _packages(path, language)):
        passage = " ".join(package.paragraphs)
        useful = package.short and len(passage) >= MIN_PASSAGE_CHARS
        if not useful or package.short in seen or package.paragraphs[0] in seen:
            continue
        seen.update((package.short, package.paragraphs[0]))
        if SPLITS.get(xxhash.xxh3_64_intdigest(package.name.encode()) % 10, "train") == split:
            yield Row(package.short, cut_at_space(passage, MAX_PASSAGE_CHARS))


def _packages(path: Path, language: str) -> Iterator[Package]:
    field = f"Description-{language}"
    name, package = "", None
    for where, line in read_lines(path):
        key, colon, value = line.partition(":")
        if line.startswith(" "):
            if package is not None:
                _append(package.paragraphs, line)
        elif not colon:
            raise DataError(f"{where}: expected a field such as 'Package: NAME', found {line[:60]!r}")
        elif key == "Package":
            if package:
                yield package
            name, package = value.strip(), None
        elif key == field:
            if not name:
                raise DataError(f"{where}: expected 'Package: NAME' before {field}")
            package = Package(name, " ".join(value.split()), [])
    if package:
        yield package


def _append(paragraphs: list[str], line: str) -> None:
    """Add a line to the last paragraph; a dot alone stands for an empty line."""
    text = " ".join(line.split())
    if not paragraphs or text == ".":
        paragraphs.append("")
    if text != ".":
        paragraphs[-1] = f"{paragraphs[-1]} {text}".strip()


def _fetched(language: str) -> Path:
    """Return the folder with a language's file, fetched by apt-get if it is not in the cache."""
    if shutil.which("apt-get") is None:
        raise DataError("debdocs: apt-get is not installed; give the folder with the files as path")
    return cached("debian", language, lambda folder: folder, partial(_fetch, language))


def _fetch(language: str, folder: Path) -> None:
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        for name in ("lists/partial", "cache/archives/partial"):
            (place / name).mkdir(parents=True)
        options = {
            "Dir::State::Lists": place / "lists",
            "Dir::Cache": place / "cache",
            "Acquire::Languages": language,
            "Acquire::GzipIndexes": "false",
            "Acquire::IndexTargets::deb::Packages::DefaultEnabled": "false",
            "APT::Sandbox::User": "",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        done = subprocess.run(["apt-get", "-q", "update", *words], capture_output=True, text=True, check=False)
        # The updates of a release have a file of their own, which is smaller.
        fetched = sorted((place / "lists").glob("*Translation-*"), key=lambda path: path.stat().st_size)
        if not fetched:
            reason = done.stderr.strip()[-300:] or "apt's sources have no such language"
            raise DataError(f"debdocs: apt-get could not fetch Translation-{language} ({reason})")
        shutil.copy(fetched[-1], folder)
