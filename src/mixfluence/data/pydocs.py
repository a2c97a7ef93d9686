"""Real text that is already on the disk: docstrings of installed libraries as retrieval data.

The summary of a docstring is the query and the rest of it the passage; one library is one dataset.
Files are parsed, never imported.
"""

from __future__ import annotations

import ast
import logging
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import xxhash

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once, fingerprint
from mixfluence.errors import DataError

logger = logging.getLogger(__name__)

LIBRARIES = ("stdlib", "numpy", "scipy", "scikit-learn", "pandas", "torch", "transformers")
Split = Literal["all", "train", "dev", "test"]

TRAIN_ROWS, DEV_ROWS = 150, 250
MIN_TARGET_ROWS = 600
SUMMARY_WORDS = range(3, 41)  # a first paragraph that is longer summarises nothing
MIN_BODY_WORDS = 12
MAX_BODY_CHARS = 1_000

SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", "site-packages"})
# Copies of other projects: their texts would reach a target's test queries through another library.
SKIPPED_FOLDERS |= {"externals", "array_api_compat", "array_api_extra", "_vendor"}
# Most of the parsing time for little text: transformers' many alike models, torch's compiler internals.
SKIPPED_FOLDERS |= {"models", "_inductor", "_dynamo"}
RULES = re.compile(r"([-=~^*_+])\1{2,}")


def read_pydocs_rows(library: str, split: Split) -> RowSet:
    """Return the docstrings of an installed library as rows: summary -> body.

    A library is either an ordinary training dataset, then read `"all"` of it, or a target, then its
    rows fall into `"train"` (150), `"dev"` (250) and `"test"` (the rest). The three parts never share a
    row and follow from the summaries alone, so they are the same on every machine with the same version
    of the library. `"all"` holds the dev and test rows too: never train on it when the library is a target.

    For data of your own use the file readers; this one exists so that a demo needs no download.

    Raises:
        DataError: If the library is not one of `LIBRARIES`, is not installed or is too small to be split.
    """
    everything = _read_library(library)
    if split == "all":
        return everything
    rows = everything.rows.select(_split_positions(library, everything, split))
    return RowSet(rows, fingerprint(rows), everything.notes)


def read_pydocs_retrieval(library: str, split: Split, name: str) -> RetrievalSet:
    """Return the split's summaries as queries against every body of the library.

    For training rows use `read_pydocs_rows`, which splits the same way.

    Args:
        library: One of `LIBRARIES`.
        split: Whose summaries are the queries; the corpus is always the whole library.
        name: How tables call the set.

    Raises:
        DataError: As `read_pydocs_rows`.
    """
    everything = _read_library(library)
    positions = _split_positions(library, everything, split)
    summaries, bodies = list(everything.rows["anchor"]), list(everything.rows["positive"])
    return RetrievalSet(
        name=name,
        query_ids=[f"q-{library}-{i}" for i in positions],
        queries=[summaries[i] for i in positions],
        doc_ids=[f"{library}-{i}" for i in range(len(bodies))],
        docs=bodies,
        qrels={f"q-{library}-{i}": {f"{library}-{i}": 1} for i in positions},
    )


def _split_positions(library: str, everything: RowSet, split: Split) -> list[int]:
    if split not in get_args(Split):
        raise DataError(f"{library}: no split '{split}', only {', '.join(get_args(Split))}")
    if split == "all":
        return list(range(len(everything)))
    if len(everything) < MIN_TARGET_ROWS:
        raise DataError(
            f"{library}: {len(everything)} docstrings are too few to split, "
            f"a target needs {MIN_TARGET_ROWS}; read it as 'all'"
        )
    summaries = list(everything.rows["anchor"])
    order = sorted(range(len(summaries)), key=lambda i: xxhash.xxh3_128_hexdigest(summaries[i].encode()))
    dev_end = TRAIN_ROWS + DEV_ROWS
    parts = {"train": order[:TRAIN_ROWS], "dev": order[TRAIN_ROWS:dev_end], "test": order[dev_end:]}
    return sorted(parts[split])


def _read_library(library: str) -> RowSet:
    if library not in LIBRARIES:
        near = get_close_matches(library, LIBRARIES, n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(LIBRARIES)}"
        raise DataError(f"no docstrings of a library called '{library}'; {hint}")
    folder, version = _locate(library)
    # One file stands for the library: installing another version rewrites it.
    witness = folder / ("os.py" if library == "stdlib" else "__init__.py")
    options = {"format": "pydocs", "library": library, "version": version}
    return convert_once([witness], options, lambda notes: _extract_rows(folder))


def _locate(library: str) -> tuple[Path, str]:
    """Return a library's folder and version without importing it."""
    if library == "stdlib":
        return Path(sysconfig.get_paths()["stdlib"]), platform.python_version()
    spec = find_spec("sklearn" if library == "scikit-learn" else library)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the docstrings of {library} need the library: pip install {library}")
    return Path(spec.submodule_search_locations[0]), metadata.version(library)


def _extract_rows(folder: Path) -> Iterator[Row]:
    """Yield one row per documented function or class, every summary and every body only once."""
    seen: set[str] = set()
    for docstring in _docstrings(folder):
        summary, body = _summary_and_body(docstring)
        useful = len(summary.split()) in SUMMARY_WORDS and len(body.split()) >= MIN_BODY_WORDS
        if useful and summary not in seen and body not in seen:
            seen.update((summary, body))
            yield Row(summary, body)


def _docstrings(folder: Path) -> Iterator[str]:
    unreadable = 0
    for path in _python_files(folder):
        try:
            with warnings.catch_warnings(action="ignore"):  # other people's escape sequences
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            unreadable += 1
        else:
            yield from filter(None, map(ast.get_docstring, _definitions(tree)))
    logger.debug("%s: %d files could not be parsed", folder, unreadable)


def _python_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py":
            yield path
        elif path.is_dir() and path.name not in SKIPPED_FOLDERS:
            yield from _python_files(path)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(scope: ast.Module | Definition) -> Iterator[Definition]:
    for node in scope.body:
        if isinstance(node, Definition):
            yield node
            yield from _definitions(node)


def _summary_and_body(docstring: str) -> tuple[str, str]:
    """Split at the first empty line and squeeze both parts to one line each."""
    summary, _, body = docstring.partition("\n\n")
    summary, body = (" ".join(RULES.sub(" ", part).split()) for part in (summary, body))
    if len(body) > MAX_BODY_CHARS:
        body = body[: MAX_BODY_CHARS + 1].rpartition(" ")[0]
    return summary, body
