"""Learned or expert weights as a file: a JSON mapping of dataset name to number."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from mixfluence.errors import DataError
from mixfluence.files import write_text
from mixfluence.runs import TRACE_FILE, WEIGHTS_FILE, read_trace

LARGEST = 1e30


def read_weights(path: Path) -> dict[str, float]:
    """Read the weights that an earlier run wrote, or that somebody wrote by hand."""
    if not path.is_file():
        raise DataError(f"{path}: no such file of weights")
    try:
        weights = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a file of weights ({error})") from error
    if not isinstance(weights, dict) or not weights:
        raise DataError(f"{path}: expected a mapping of dataset name to number")
    for name, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= LARGEST:
            raise DataError(f"{path}: the weight of {name!r} is {reprlib.repr(weight)}, expected a number from 0 on")
    return weights


def write_weights(path: Path, weights: Mapping[str, float]) -> None:
    """Write weights so that a later run can start from them."""
    write_text(path, json.dumps(dict(weights), indent=1) + "\n")


def replayed_weights(run: Path, which: Literal["final", "average"]) -> dict[str, float]:
    """Return the weights of a run that was trained, to draw by them again.

    The average is over the batches trained on, each with the weights that the trace gives for it. They are those the
    batch was drawn by if weights change only at updates, because the trace is brought up to date before each. Where a
    schedule or a limit on epochs changes them in between, they are those of the next line of the trace, and batches
    that loader workers drew ahead of an update count by its new weights.

    Args:
        run: The run's folder.
        which: `final` for the weights it ended with (`weights.json`), `average` for their mean on the way
            (`trace.jsonl`).
    """
    path = run / {"final": WEIGHTS_FILE, "average": TRACE_FILE}[which]
    if not path.is_file():
        raise DataError(f"{run}: has no {path.name}, so it is not the folder of a run that was trained")
    return read_weights(path) if which == "final" else _average_weights(path)


def _average_weights(path: Path) -> dict[str, float]:
    totals: dict[str, float] = {}
    batches = 0
    for line in read_trace(path):
        trained = len(line.get("trained", []))
        batches += trained
        for name, weight in (line["weights"] if trained else {}).items():
            totals[name] = totals.get(name, 0.0) + trained * weight
    if not batches:
        raise DataError(f"{path}: tells of no batch that was trained on")
    return {name: total / batches for name, total in totals.items()}
