"""The formats `pydocs` and `debdocs`: documentation of software on this machine, real text without a hub.

- `pydocs`: the summary of a docstring is the query and the rest of it the passage; one library is one dataset. Its
  files are parsed, never imported.
- `debdocs`: the short description of a Debian package is the query and the long one the passage; one language is one
  dataset. Languages are translations of each other, so a package is in the same split in all of them. Files are apt's,
  `Translation-XX`.
"""

from __future__ import annotations

import ast
import gc
import platform
import re
import shutil
import subprocess
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple

import xxhash
from pydantic import StringConstraints

from mixfluence.data.cache import cached
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once, fingerprint, hash_order
from mixfluence.data.source import ExistingPath, SourceSection, read_lines
from mixfluence.errors import DataError

MAX_PASSAGE_CHARS = 1_000

LIBRARIES = ("stdlib", "numpy", "scipy", "scikit-learn", "pandas", "torch", "transformers")

TRAIN_ROWS, DEV_ROWS = 150, 250
MIN_TARGET_ROWS = 600
SUMMARY_WORDS = range(3, 41)  # a longer first paragraph is not a summary
MIN_BODY_WORDS = 12

SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", "site-packages"})
# Vendored copies of other projects, which would leak a target's test queries into another library.
SKIPPED_FOLDERS |= {"externals", "array_api_compat", "array_api_extra", "_vendor"}
# Slow to parse and repetitive: transformers' model definitions and torch's compiler internals.
SKIPPED_FOLDERS |= {"models", "_inductor", "_dynamo"}
HORIZONTAL_RULES = re.compile(r"([-=~^*_+])\1{2,}")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

Split = Literal["train", "dev", "test"]
# By the last digit of the hash of a package's name.
SPLITS: dict[int, Split] = {0: "test", 1: "dev"}
MIN_PASSAGE_CHARS = 40
# How apt names the file of a language: with its address in front, and `_` escaped.
TRANSLATION = re.compile(r"(?:.*_)?Translation-(?P<language>[a-z]{2,3}(?:(?:_|%5f)[A-Z]{2})?)(\.gz|\.bz2|\.xz|\.lz4)?")
SUFFIX_OF_APT = ".lz4"


class PydocsSource(SourceSection):
    """Docstrings of an installed library.

    The split `all` is for libraries that are only trained on. A target is divided into `train` (150 rows), `dev` (250)
    and `test` (the rest). They depend on the summaries alone, so that equal versions have equal splits everywhere.
    """

    format: Literal["pydocs"] = "pydocs"
    library: str
    split: Literal["all", "train", "dev", "test"]

    def read_rows(self) -> RowSet:
        everything = _read_library(self.library)
        rows = everything.rows.select(self._positions(everything))
        return RowSet(rows, fingerprint(rows))

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        everything = _read_library(self.library)
        summaries, bodies = list(everything.rows["anchor"]), list(everything.rows["positive"])
        ids = [f"{self.library}-{i}" for i in range(len(bodies))]
        qrels = {f"q-{id}": {id: 1} for id in ids}
        return RetrievalSet(name, list(qrels), summaries, ids, bodies, qrels).take_queries(self._positions(everything))

    def _positions(self, everything: RowSet) -> list[int]:
        if self.split == "all":
            return list(range(len(everything)))
        if len(everything) < MIN_TARGET_ROWS:
            raise DataError(
                f"{self.library}: {len(everything)} docstrings are too few to split, "
                f"a target needs {MIN_TARGET_ROWS}; use the split 'all'"
            )
        order = hash_order(everything.rows["anchor"])
        dev_end = TRAIN_ROWS + DEV_ROWS
        splits = {"train": order[:TRAIN_ROWS], "dev": order[TRAIN_ROWS:dev_end], "test": order[dev_end:]}
        return sorted(splits[self.split])


def _read_library(library: str) -> RowSet:
    if library not in LIBRARIES:
        raise DataError(f"unknown library '{library}', expected one of {', '.join(map(repr, LIBRARIES))}")
    folder, version = _locate(library)
    # One file represents the library: installing another version rewrites it.
    witness = folder / ("os.py" if library == "stdlib" else "__init__.py")
    options = {"format": "pydocs", "library": library, "version": version}
    return convert_once([witness], options, lambda facts: _extract_rows(folder))


def _locate(library: str) -> tuple[Path, str]:
    """Return a library's folder and version without importing it."""
    if library == "stdlib":
        return Path(sysconfig.get_paths()["stdlib"]), platform.python_version()
    spec = find_spec("sklearn" if library == "scikit-learn" else library)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"{library} is not installed; pip install {library}")
    return Path(spec.submodule_search_locations[0]), metadata.version(library)


def _extract_rows(folder: Path) -> Iterator[Row]:
    """Yield one row per documented function or class; summaries and bodies are unique."""
    seen: set[str] = set()
    for docstring in _docstrings(folder):
        summary, body = _summary_and_body(docstring)
        useful = len(summary.split()) in SUMMARY_WORDS and len(body.split()) >= MIN_BODY_WORDS
        if useful and summary not in seen and body not in seen:
            seen.update((summary, body))
            yield Row(summary, body)


def _docstrings(folder: Path) -> Iterator[str]:
    for path in _python_files(folder):
        try:
            with warnings.catch_warnings(action="ignore"), _no_collection():  # invalid escapes in their strings
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            continue  # templates and files for other Python versions
        yield from filter(None, map(ast.get_docstring, _definitions(tree)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector, which takes half of the time while a tree is built and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _python_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py":
            yield path
        elif path.is_dir() and path.name not in SKIPPED_FOLDERS:
            yield from _python_files(path)


def _definitions(scope: ast.Module | Definition) -> Iterator[Definition]:
    for node in scope.body:
        if isinstance(node, Definition):
            yield node
            yield from _definitions(node)


def _summary_and_body(docstring: str) -> tuple[str, str]:
    """Split at the first empty line and join the lines of both parts."""
    summary, _, body = docstring.partition("\n\n")
    summary, body = (" ".join(HORIZONTAL_RULES.sub(" ", part).split()) for part in (summary, body))
    return summary, _shortened(body)


def _shortened(text: str) -> str:
    """Return at most so many characters of a text, cut at a space if it has any."""
    if len(text) <= MAX_PASSAGE_CHARS:
        return text
    return text[: MAX_PASSAGE_CHARS + 1].rpartition(" ")[0] or text[:MAX_PASSAGE_CHARS]


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
        files = _translations(self.path or _fetched(self.language), self.language)
        options = {"format": "debdocs", "language": self.language, "split": split}
        return convert_once(files, options, lambda facts: _package_rows(files, self.language, split))


def _translations(folder: Path, language: str) -> list[Path]:
    matches = {path: match for path in sorted(folder.iterdir()) if (match := TRANSLATION.fullmatch(path.name))}
    languages = {path: match["language"].replace("%5f", "_") for path, match in matches.items()}
    found = [path for path, own in languages.items() if own == language]
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


def _package_rows(files: list[Path], language: str, split: Split) -> Iterator[Row]:
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
            yield Row(package.short, _shortened(passage))


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
