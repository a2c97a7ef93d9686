"""What an evaluation found, and its file of per-query scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from mixfluence.errors import DataError
from mixfluence.evaluation.metrics import MEASURES, mean
from mixfluence.files import write_text

_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Evaluation:
    """The scores of one model on one dataset.

    Args:
        dataset: Name of the set.
        per_query: Query id -> measure -> score, for every query of the set.
        removed_identical: Hits dropped for carrying the id of their query without being relevant to it.
        seconds: Time taken, under "encode", "search" and "score".
    """

    dataset: str
    per_query: Mapping[str, Mapping[str, float]]
    removed_identical: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def mean(self, measure: str) -> float:
        """Average one of `MEASURES` over the queries."""
        return mean(self.per_query, measure)

    def summary(self) -> dict[str, float]:
        """Average every one of `MEASURES` over the queries."""
        return {measure: self.mean(measure) for measure in MEASURES}


def write_evaluation(evaluation: Evaluation, folder: Path) -> Path:
    """Write the per-query scores to `<folder>/<dataset>.jsonl`, one line per query, and return that path.

    The name is percent-encoded, so that any dataset name stays inside the folder, and the file appears
    whole or not at all.
    """
    path = folder / (quote(evaluation.dataset, safe="") + _SUFFIX)
    lines = (json.dumps({"query_id": query, **scores}) + "\n" for query, scores in evaluation.per_query.items())
    write_text(path, "".join(lines))
    return path


def read_evaluation(path: Path) -> Evaluation:
    """Read a file of `write_evaluation`. Only scores are kept in it: count and times come back empty."""
    if not path.is_file():
        raise DataError(f"{path}: no such file of per-query scores")
    per_query = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                per_query[str(row["query_id"])] = {measure: _score(row[measure]) for measure in MEASURES}
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
                raise DataError(f"{path}:{number}: not a line of per-query scores ({problem!r})") from problem
    if not per_query:
        raise DataError(f"{path}: holds no queries")
    return Evaluation(unquote(path.name.removesuffix(_SUFFIX)), per_query)


def _score(value: float) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError(f"a score of {value}")
    return float(value)
