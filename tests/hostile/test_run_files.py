"""A damaged run folder is read as far as possible or refused with one of our errors, which names the run.

Files of two real runs, one guided by probes and one of three stages, are cut off at any byte, or lose a line or a
key. The files stay as they are. `MIXFLUENCE_EXAMPLES=5000` tries more than a usual test run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixfluence.cli.runs import compare, status, weights
from mixfluence.runs import read_record, read_run, read_trace
from mixfluence.training.callback import probing_cost
from tests.hostile.test_readers import our_errors_only
from tests.report.test_figures import all_charts

pytestmark = pytest.mark.slow

OLD = Path(__file__).parents[1] / "report" / "old-runs"
NAMES = ["inf-dds", "doremi"]
READ = ["record.json", "weights.json", "trace.jsonl", "stages/proxy/trace.jsonl", "eval/red.jsonl", "dev/red.jsonl"]
often = settings(
    max_examples=int(os.environ.get("MIXFLUENCE_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# What can be done with a run and another one.
COMMANDS: dict[str, Callable[[Path, Path], object]] = {
    "status": lambda run, other: status(run),
    "compare": lambda run, other: compare([run, other], file=run.parent / "table.json"),
    "charts": lambda run, other: all_charts([read_run(run), read_run(other)]),
    "weights": lambda run, other: weights(run, file=run.parent / "mixture.json"),
    "average weights": lambda run, other: weights(run, "average"),
    "resume": lambda run, other: probing_cost(run / "trace.jsonl")["seconds"],
}
commands = st.sampled_from(list(COMMANDS))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = shutil.copytree(OLD, tmp_path_factory.mktemp("damaged") / "runs")
    found = [path for name in NAMES for path in (folder / name / place for place in READ) if path.exists()]
    assert len(found) == len(NAMES) * len(READ) - 1
    return found


@contextmanager
def instead(path: Path, content: bytes) -> Iterator[None]:
    """Give a file other content for a while."""
    before = path.read_bytes()
    try:
        path.write_bytes(content)
        yield
    finally:
        path.write_bytes(before)


def left_after(command: str, path: Path, content: bytes) -> bytes:
    """Return the content of a damaged file after a command has read it, or ended with one of our errors."""
    run = next(parent for parent in path.parents if parent.name in NAMES)
    (other,) = set(NAMES) - {run.name}
    with instead(path, content):
        with our_errors_only(run):
            COMMANDS[command](run, run.parent / other)
        return path.read_bytes()


def test_what_was_written_is_what_is_read(files: list[Path]) -> None:
    for path in files:
        if path.name == "trace.jsonl":
            assert read_trace(path) == [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        elif path.name == "record.json":
            assert read_record(path) == json.loads(path.read_text("utf-8")) | {"kind": "run"}


@often
@given(number=st.integers(0, 100), end=st.integers(0, 10_000), command=commands)
def test_a_file_cut_off_anywhere(number: int, end: int, command: str, files: list[Path]) -> None:
    path = files[number % len(files)]
    whole = path.read_bytes()
    content = whole[: end % len(whole)]
    assert left_after(command, path, content) == content


@often
@given(number=st.integers(0, 100), place=st.integers(0, 10_000), command=commands)
def test_a_line_that_is_lost(number: int, place: int, command: str, files: list[Path]) -> None:
    path = files[number % len(files)]
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[place % len(lines)]
    assert left_after(command, path, b"".join(lines)) == b"".join(lines)


@often
@given(number=st.integers(0, 100), place=st.integers(0, 10_000), command=commands)
def test_a_key_that_is_lost(number: int, place: int, command: str, files: list[Path]) -> None:
    path = files[number % len(files)]
    text = path.read_text("utf-8")
    documents = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    keys = [(document, key) for document in documents for key in document]
    document, key = keys[place % len(keys)]
    del document[key]
    content = "".join(json.dumps(document) + "\n" for document in documents).encode()
    assert left_after(command, path, content) == content
