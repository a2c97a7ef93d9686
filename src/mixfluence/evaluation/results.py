"""Per-query measures of trec_eval, and the files that keep them.

Importing this module does not load torch, so that comparing runs stays fast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import pytrec_eval

from mixfluence.errors import DataError
from mixfluence.files import write_text

Parsed = TypeVar("Parsed")
_SUFFIX = ".jsonl"
_TREC_NAMES = {
    "ndcg@10": "ndcg_cut_10",
    "mrr@10": "recip_rank",
    "recall@100": "recall_100",
    "map@100": "map_cut_100",
}
MEASURES = tuple(_TREC_NAMES)
"""The reported measures. Shorter rankings are scored as they are: with 10 hits, recall@100 is recall@10."""


@dataclass(frozen=True)
class Evaluation:
    """The scores of one model on one test set: query id -> measure -> score, for every query of the set."""

    dataset: str
    per_query: Mapping[str, Mapping[str, float]]

    def mean(self, measure: str) -> float:
        """Average a measure over the queries."""
        return fmean(scores[measure] for scores in self.per_query.values())

    def summary(self) -> dict[str, float]:
        """Average each of `MEASURES` over the queries."""
        return {measure: self.mean(measure) for measure in MEASURES}


def score_rankings(
    rankings: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
    query_ids: Iterable[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Score every query on each of `MEASURES`.

    As in trec_eval, gains are linear in the grade and ties (in float32) are ordered by descending passage id. A query
    without hits or without a relevant passage scores zero; trec_eval leaves out queries without hits, which raises
    the mean.

    Args:
        rankings: Query id -> passage id -> score.
        qrels: Query id -> passage id -> grade; only grades above zero are relevant.
        query_ids: The queries to score; by default those of `qrels`.
    """
    judged = {query: dict(grades) for query, grades in qrels.items()}
    retrieved = {query: dict(hits) for query, hits in rankings.items()}
    found = pytrec_eval.RelevanceEvaluator(judged, set(_TREC_NAMES.values())).evaluate(retrieved)
    return {query: _scores(found.get(query, {})) for query in (judged if query_ids is None else query_ids)}


def _scores(found: Mapping[str, float]) -> dict[str, float]:
    scores = {name: found.get(trec_name, 0.0) for name, trec_name in _TREC_NAMES.items()}
    # trec_eval's reciprocal rank has no cutoff; below rank 10 it is less than 1/10.
    if scores["mrr@10"] < 1 / 10:
        scores["mrr@10"] = 0.0
    return scores


def write_evaluation(evaluation: Evaluation, folder: Path) -> Path:
    """Write the per-query scores to `<folder>/<dataset>.jsonl` and return that path."""
    rows = ({"query_id": query, **scores} for query, scores in evaluation.per_query.items())
    return write_rows(rows, evaluation.dataset, folder)


def read_evaluation(path: Path) -> Evaluation:
    """Read a file of `write_evaluation`."""
    dataset, rows = read_rows(path, lambda row: (str(row["query_id"]), {name: _score(row[name]) for name in MEASURES}))
    return Evaluation(dataset, dict(rows))


def _score(value: float) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError(f"score {value} is not between 0 and 1")
    return float(value)


def write_rows(rows: Iterable[Mapping[str, Any]], dataset: str, folder: Path) -> Path:
    """Write `<folder>/<dataset>.jsonl` atomically, one line per row, and return that path.

    The name is percent-encoded, so that no dataset name can point outside the folder.
    """
    path = folder / (quote(dataset, safe="") + _SUFFIX)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path, parse: Callable[[Any], Parsed]) -> tuple[str, list[Parsed]]:
    """Read a file of `write_rows`: the name of the dataset and the parsed rows. DataError if any line is damaged."""
    rows = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    rows.append(parse(json.loads(line)))
                except (ValueError, KeyError, TypeError, OverflowError) as problem:
                    raise DataError(f"{path}:{number}: damaged line ({problem!r})") from problem
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if not rows:
        raise DataError(f"{path}: contains no queries")
    return unquote(path.name.removesuffix(_SUFFIX)), rows
