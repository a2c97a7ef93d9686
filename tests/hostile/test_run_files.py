"""Whatever the files of a run hold, a command that reads them does what it does or ends with one of our errors.

Two real runs, one guided by probes and one of two stages, are changed by hand: values of another kind anywhere in
their files, keys that are missing or have another name, bytes that are cut off or changed. The error is one line and
names the run, and the files stay as they are. `MIXFLUENCE_EXAMPLES=5000` tries more than the few of a test run.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixfluence.cli.compare import compare
from mixfluence.cli.report import report
from mixfluence.cli.status import status
from mixfluence.cli.weights import Which, weights
from mixfluence.runs import read_record, read_trace
from mixfluence.training.trace import probing_cost, seconds_until
from tests.hostile.test_readers import damage, our_errors_only
from tests.hostile.workplace import Case, run_program, write_workplace

pytestmark = pytest.mark.slow

often = settings(
    max_examples=int(os.environ.get("MIXFLUENCE_EXAMPLES", "150")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SAMPLERS = {
    "guided": "inf-dds, update_every: 2, warmup_steps: 0, inner_steps: 1",
    "staged": "doge, update_every: 2, proxy_steps: 2",
}
READ = ["record.json", "weights.json", "trace.jsonl", "stages/proxy/trace.jsonl", "eval/test.jsonl", "dev/dev.jsonl"]
READ += ["checkpoints/checkpoint-4/trainer_state.json"]
# What can be done with a run and another one.
COMMANDS: dict[str, Callable[[Path, Path], object]] = {
    "status": lambda run, other: status(run),
    "compare one": lambda run, other: compare([run]),
    "compare": lambda run, other: compare([run, other], bootstrap=True, file=run.parent / "table.json"),
    "report": lambda run, other: report([other, run], run.parent / "page.html"),
    "weights": lambda run, other: weights(run, file=run.parent / "mixture.json"),
    "average weights": lambda run, other: weights(run, Which.AVERAGE),
    "resume": lambda run, other: seconds_until(run / "trace.jsonl", 2) + probing_cost(run / "trace.jsonl")["seconds"],
}
commands = st.sampled_from(list(COMMANDS))
GONE, RENAMED = "(gone)", "(another name)"
ODD: list[Any] = [None, True, -1, 0, 5, 0.5, "text", "", "half \ud83d", "two\nlines", [], {}, [5], {"a": 1}, [[]]]
ODD += [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 10**18, 10**400, {"a": {}}, GONE, RENAMED]
# Which value of a file, counted through all that is in it, and what becomes of it.
changes = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(ODD)), min_size=1, max_size=3)


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory, tiny_bert_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "two"
    write_workplace(folder, tiny_bert_folder)
    for name, sampler in SAMPLERS.items():
        command = f"train recipe.yaml output={name} 'strategy={{name: {sampler}}}' 'selection={{every: 2}}'"
        case = Case("nothing", f"{command} training.save_every=null training.log_every=1")
        assert run_program(case, folder) == 0
    return folder


@pytest.fixture(scope="session")
def files(two_runs: Path) -> list[Path]:
    found = [path for name in SAMPLERS for path in (two_runs / name / place for place in READ) if path.exists()]
    assert len(found) == len(SAMPLERS) * len(READ) - 1
    return found


@contextmanager
def instead(path: Path, content: bytes) -> Iterator[None]:
    """Let a file hold something else for a while."""
    before = path.read_bytes()
    try:
        path.write_bytes(content)
        yield
    finally:
        path.write_bytes(before)


def values(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the holder and the key of every value below a mapping or list."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from values(tree[key])


def changed(path: Path, wanted: list[tuple[int, Any]]) -> bytes:
    """Return what a file of JSON would be with some of its values changed."""
    text = path.read_text("utf-8")
    documents = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    for position, value in wanted:
        if not (places := list(values(documents))):
            break
        holder, key = places[position % len(places)]
        if value == GONE or (value == RENAMED and isinstance(holder, list)):
            del holder[key]
        elif value == RENAMED:
            holder["another"] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(value)
    return "".join(json.dumps(document) + "\n" for document in documents).encode()


def runs_of(path: Path) -> tuple[Path, Path]:
    """Return the run that a file is of, and the other one."""
    run = next(parent for parent in path.parents if parent.name in SAMPLERS)
    (other,) = SAMPLERS.keys() - {run.name}
    return run, run.parent / other


def left_after(command: str, path: Path, content: bytes) -> bytes:
    """Return what is in a file of other content after a command has read it, or ended with one of our errors."""
    run, other = runs_of(path)
    with instead(path, content):
        with our_errors_only(run):
            COMMANDS[command](run, other)
        return path.read_bytes()


def test_what_was_written_is_what_is_read(files: list[Path]) -> None:
    for path in files:
        if path.name == "trace.jsonl":
            assert read_trace(path) == [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        elif path.name == "record.json":
            assert read_record(path) == json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_only_written_otherwise_says_the_same(
    command: str, files: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    for path in files:
        usual = COMMANDS[command](*runs_of(path)), capfd.readouterr().out
        with instead(path, changed(path, [])):
            assert (COMMANDS[command](*runs_of(path)), capfd.readouterr().out) == usual


@often
@given(number=st.integers(0, 100), wanted=changes, command=commands)
def test_any_value_of_any_file(number: int, wanted: list[tuple[int, Any]], command: str, files: list[Path]) -> None:
    path = files[number % len(files)]
    content = changed(path, wanted)
    assert left_after(command, path, content) == content


@often
@given(number=st.integers(0, 100), end=st.none() | st.integers(0, 10_000), altered=damage, command=commands)
def test_any_bytes_of_any_file(
    number: int, end: int | None, altered: list[tuple[int, int]], command: str, files: list[Path]
) -> None:
    path = files[number % len(files)]
    content = bytearray(path.read_bytes()[:end])
    for position, byte in altered if content else []:
        content[position % len(content)] = byte
    assert left_after(command, path, bytes(content)) == content
