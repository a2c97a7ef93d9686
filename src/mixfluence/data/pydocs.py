"""The format `pydocs`: docstrings of installed libraries, so that the demo needs no download.

The summary of a docstring is the query and the rest of it the passage; one library is one dataset. Files are parsed,
never imported.
"""

from __future__ import annotations

import ast
import gc
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once, cut_at_space, fingerprint, hash_order
from mixfluence.data.source import SourceSection
from mixfluence.errors import DataError

LIBRARIES = ("stdlib", "numpy", "scipy", "scikit-learn", "pandas", "torch", "transformers")

TRAIN_ROWS, DEV_ROWS = 150, 250
MIN_TARGET_ROWS = 600
SUMMARY_WORDS = range(3, 41)  # a longer first paragraph is not a summary
MIN_BODY_WORDS = 12
MAX_BODY_CHARS = 1_000

SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", "site-packages"})
# Vendored copies of other projects, which would leak a target's test queries into another library.
SKIPPED_FOLDERS |= {"externals", "array_api_compat", "array_api_extra", "_vendor"}
# Slow to parse and repetitive: transformers' model definitions and torch's compiler internals.
SKIPPED_FOLDERS |= {"models", "_inductor", "_dynamo"}
HORIZONTAL_RULES = re.compile(r"([-=~^*_+])\1{2,}")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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
    return summary, cut_at_space(body, MAX_BODY_CHARS)
