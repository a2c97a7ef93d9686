"""Coverage-guided fuzzing of the readers, by hand: whatever is not one of our own errors ends it with the input.

    pip install atheris                                             # Linux, up to Python 3.13; not a dependency
    python -m tests.hostile.fuzz_readers recipe -max_total_time=600  # or: jsonl, gzip, csv, parquet, grades, weights

Further words are libFuzzer's own; a folder named last keeps what was found, so that a later run goes on from it.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["mixfluence", "yaml"]):
    from mixfluence.data.beir import read_grades
    from mixfluence.data.pairs import RecordReader
    from mixfluence.data.rows import Facts
    from mixfluence.data.source import read_records
    from mixfluence.errors import MixfluenceError
    from mixfluence.policy.initial import read_weights
    from mixfluence.recipe_yaml import load_recipe


def _rows(path: Path) -> None:
    for _ in RecordReader(path.name).read([read_records(path)], Facts()):
        pass


def _recipe(path: Path) -> None:
    load_recipe(path, files_may_be_missing=True)


def _grades(path: Path) -> None:
    read_grades([path])


# What to fuzz -> the ending of its files, and what reads them.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "recipe": (".yaml", _recipe),
    "jsonl": (".jsonl", _rows),
    "gzip": (".jsonl.gz", _rows),
    "csv": (".csv", _rows),
    "parquet": (".parquet", _rows),
    "grades": (".tsv", _grades),
    "weights": (".json", read_weights),
}


def main() -> None:
    """Fuzz the reader that the first word names."""
    ending, read = READERS[sys.argv.pop(1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{ending}"

        def try_once(content: bytes) -> None:
            # Half of the inputs are damaged archives, the other half archives of anything.
            packed = ending.endswith(".gz") and len(content) % 2
            path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
            with suppress(MixfluenceError):
                read(path)

        atheris.Setup(sys.argv, try_once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
