"""Learned or expert weights as a file: a JSON mapping of dataset name to number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mixfluence.atomic import write_text
from mixfluence.errors import DataError


def read_weights(path: Path) -> dict[str, float]:
    """Read the weights that an earlier run wrote, or that somebody wrote by hand."""
    try:
        weights = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a file of weights ({error})") from error
    if not isinstance(weights, dict) or not weights:
        raise DataError(f"{path}: expected a mapping of dataset name to number")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise DataError(f"{path}: the weight of {name!r} is {weight!r}, expected a number")
    return weights


def write_weights(path: Path, weights: Mapping[str, float]) -> None:
    """Write weights so that a later run can start from them."""
    write_text(path, json.dumps(dict(weights), indent=1) + "\n")
