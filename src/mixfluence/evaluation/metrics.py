"""The measures of trec_eval, per query, through pytrec_eval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

import pytrec_eval

_TREC_NAMES = {
    "ndcg@10": "ndcg_cut_10",
    "mrr@10": "recip_rank",
    "recall@100": "recall_100",
    "map@100": "map_cut_100",
}

MEASURES = tuple(_TREC_NAMES)
"""What is reported. A run of fewer hits is scored as it is: from 10 hits, recall@100 is recall at 10."""


def score_run(
    run: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
    query_ids: Iterable[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Score every query of a run on every one of `MEASURES`.

    Gains are linear in the grade, and equal scores (in float32) are ordered by descending passage id, as
    in trec_eval. A query missing from the run or without a positive judgement scores zero; trec_eval would
    leave the former out, which flatters a mean.

    Args:
        run: Query id -> passage id -> score.
        qrels: Query id -> passage id -> grade; grades of zero and below are not relevant.
        query_ids: The queries to score; those of `qrels` unless given.
    """
    judged = {query: dict(grades) for query, grades in qrels.items()}
    retrieved = {query: dict(hits) for query, hits in run.items()}
    found = pytrec_eval.RelevanceEvaluator(judged, set(_TREC_NAMES.values())).evaluate(retrieved)
    queries = judged if query_ids is None else query_ids
    return {query: _scores(found.get(query, {})) for query in queries}


def _scores(found: Mapping[str, float]) -> dict[str, float]:
    scores = {name: found.get(trec_name, 0.0) for name, trec_name in _TREC_NAMES.items()}
    # trec_eval has no cut-off for this one: below rank 10 the reciprocal is under a tenth.
    if scores["mrr@10"] < 1 / 10:
        scores["mrr@10"] = 0.0
    return scores


def mean(per_query: Mapping[str, Mapping[str, float]], measure: str) -> float:
    """Average one of `MEASURES` over the queries, each counting once."""
    return fmean(scores[measure] for scores in per_query.values())
