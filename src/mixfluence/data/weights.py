"""Weight files: a JSON mapping of dataset name to number, learned by a run or written by hand."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from mixfluence.errors import DataError
from mixfluence.files import write_text
from mixfluence.runs import TRACE_FILE, WEIGHTS_FILE, read_trace
from mixfluence.schema import LARGEST


def read_weights(path: Path) -> dict[str, float]:
    """Read a weight file."""
    if not path.is_file():
        raise DataError(f"{path}: no such weight file")
    try:
        weights = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a weight file ({error})") from error
    if not isinstance(weights, dict) or not weights:
        raise DataError(f"{path}: expected a mapping of dataset name to number")
    for name, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= LARGEST:
            raise DataError(f"{path}: {name!r}: expected a non-negative number, found {reprlib.repr(weight)}")
    return weights


def write_weights(path: Path, weights: Mapping[str, float]) -> None:
    """Write weights that a later run can start from."""
    write_text(path, json.dumps(dict(weights), indent=1) + "\n")


def replayed_weights(run: Path, which: Literal["final", "average"]) -> dict[str, float]:
    """Return the final weights of a run's folder, or their average over all trained batches.

    A batch counts with the weights of its line in the trace. It was drawn by these if weights change only at updates,
    because the trace is written before each update. Changes in between, by a schedule or a limit on epochs, count from
    the line before, and batches that loader workers drew before an update count with the new weights.
    """
    path = run / {"final": WEIGHTS_FILE, "average": TRACE_FILE}[which]
    if not path.is_file():
        raise DataError(f"{run}: has no {path.name}, expected the folder of a finished run")
    if which == "final":
        return read_weights(path)
    totals: dict[str, float] = {}
    batches = 0
    for line in read_trace(path):
        trained = len(line.get("trained", []))
        batches += trained
        for name, weight in (line["weights"] if trained else {}).items():
            totals[name] = totals.get(name, 0.0) + trained * weight
    if not batches:
        raise DataError(f"{path}: contains no trained batches")
    return {name: total / batches for name, total in totals.items()}
