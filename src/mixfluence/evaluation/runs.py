"""From the positions a search returns to a run: query id -> passage id -> score."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mixfluence.data.retrieval import RetrievalSet

logger = logging.getLogger(__name__)

Run = dict[str, dict[str, float]]


def build_run(
    task: RetrievalSet, scores: Sequence[Sequence[float]], positions: Sequence[Sequence[int]], k: int
) -> tuple[Run, int]:
    """Name the hits of a search, without a query's own passage, and keep `k` per query.

    A passage with the id of the query is dropped, as BEIR does for sets whose queries are also passages,
    unless it is judged relevant: other sets give a question and its answer one id. Search for k + 1 hits,
    so that k remain.

    Args:
        task: The set searched.
        scores: One row per query of `task`, best first.
        positions: The places in `task.doc_ids` these scores belong to.
        k: Hits to keep.

    Returns:
        The run and the number of hits removed.
    """
    run: Run = {}
    removed = 0
    for query, row_scores, row_positions in zip(task.query_ids, scores, positions, strict=True):
        hits = {task.doc_ids[i]: score for i, score in zip(row_positions, row_scores, strict=True)}
        if task.qrels.get(query, {}).get(query, 0) <= 0:
            removed += hits.pop(query, None) is not None
        run[query] = dict(list(hits.items())[:k])
    if removed:
        logger.info("%s: removed %d hits with the id of their query", task.name, removed)
    return run, removed
