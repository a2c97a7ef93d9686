"""Weights on disk: those of a file, and those a run ended with or had on average.

- Weights are read back as written; anything but a mapping of names to numbers is an error.
- The average counts every batch once, by the weights of its line: an update's own line has no batches.
- A static run's average is its mixture, and that of a run whose weights turned round half-way is even.
- A folder without the file, a damaged trace and a trace without batches are errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.errors import DataError
from mixfluence.policy.initial import read_weights, write_weights
from mixfluence.strategies.controls import replayed_weights
from tests.training.runs import TurnAt, Turning, arguments, build

START: dict[str, Any] = {"step": 0, "seconds": 0.0, "datasets": {"a": {"rows": 3}, "b": {"rows": 4}}}
UPDATE = {"seconds": 0.1, "memory": 3.0, "failed": []}


def told(a: float, trained: list[int], **facts: Any) -> dict[str, Any]:
    rows = [1] * len(trained)
    return {"step": 1, "seconds": 0.1, "weights": {"a": a, "b": 1 - a}, "trained": trained, "rows": rows, **facts}


def updated(a: float) -> dict[str, Any]:
    return {"step": 1, "seconds": 0.2, "weights": {"a": a, "b": 1 - a}, "update": UPDATE}


def write_trace(run: Path, *lines: dict[str, Any], rest: str = "") -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "trace.jsonl").write_text(text + rest, encoding="utf-8")
    return run


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write_weights(tmp_path / "weights.json", {"a": 0.1, "ü": 0.9})
    assert read_weights(tmp_path / "weights.json") == {"a": 0.1, "ü": 0.9}
    assert replayed_weights(tmp_path, "final") == {"a": 0.1, "ü": 0.9}


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"a": "much"}', '{"a": true}'])
def test_other_contents_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "weights.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"weights\.json: "):
        replayed_weights(tmp_path, "final")


def test_the_average_is_over_batches(tmp_path: Path) -> None:
    lines = (START, told(0.5, [0, 1, 0], loss=1.0), told(0.5, [1]), updated(0.9), told(0.9, [0]), updated(0.2))
    found = replayed_weights(write_trace(tmp_path, *lines), "average")
    assert found == pytest.approx({"a": (4 * 0.5 + 0.9) / 5, "b": (4 * 0.5 + 0.1) / 5})
    assert list(found) == ["a", "b"]


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    write_trace(tmp_path, START, told(0.25, [0, 1]), rest='{"step": 2, "weig')
    assert replayed_weights(tmp_path, "average") == {"a": 0.25, "b": 0.75}


@pytest.mark.parametrize("which", ["final", "average"])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, which: Literal["final", "average"]) -> None:
    for run in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=rf"{run}: has no \w+\.jsonl?, "):
            replayed_weights(run, which)


@pytest.mark.parametrize(
    "rest",
    [
        "no json\n",
        "[1]\n",
        '{"trained": [0]}\n',
        '{"trained": 3, "weights": {}}\n',
        '{"trained": [0], "weights": 1}\n',
    ],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, rest: str) -> None:
    with pytest.raises(DataError, match=r"trace\.jsonl: "):
        replayed_weights(write_trace(tmp_path, START, rest=rest), "average")


def test_a_trace_without_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"trace\.jsonl: contains no trained batches$"):
        replayed_weights(write_trace(tmp_path, START, updated(0.5)), "average")


@pytest.mark.slow
def test_the_average_of_real_runs(make_static: Callable[[], SentenceTransformer], tmp_path: Path) -> None:
    plain = build(make_static(), arguments(tmp_path / "plain"))
    plain.train()
    assert replayed_weights(tmp_path / "plain", "average") == pytest.approx({"near": 30 / 48, "far": 18 / 48})
    strategy = Turning()
    turning = build(make_static(), arguments(tmp_path / "turning"), strategy=strategy, callbacks=[TurnAt(strategy, 4)])
    turning.train()
    assert turning.probabilities()["far"] > 0.8
    # The step that turns the weights has its line after the turn: three lines before it, three from it on.
    assert replayed_weights(tmp_path / "turning", "average") == pytest.approx({"near": 0.5, "far": 0.5})
