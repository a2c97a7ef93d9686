"""A model looks once at its dev sets: where does it rank the answer to each query?"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sentence_transformers import SentenceTransformer

from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import Row, RowSet, rows_in_memory
from mixfluence.errors import MixfluenceError
from mixfluence.evaluation.dev_queries import DevQuery, write_dev_queries
from mixfluence.evaluation.encoding import encode_task
from mixfluence.evaluation.metrics import score_run
from mixfluence.evaluation.search import exact_search

logger = logging.getLogger(__name__)

# A look for readers, which must cost little beside training: two thousand texts per dev set at most.
MOST_ROWS = 1_000
LONGEST_TEXT = 300


def look_at_dev(
    model: SentenceTransformer,
    dev: Mapping[str, RowSet],
    prompts: Mapping[str, tuple[str | None, str | None]],
    folder: Path,
    *,
    batch_size: int = 64,
) -> None:
    """Rank the first 1,000 rows of each dev set and write `<folder>/<dataset>.jsonl`.

    A query is ranked against the positives of these rows only, so the numbers are higher than on a whole corpus: they
    tell queries of a set apart, not models. For scores to report use `evaluate`.

    Args:
        model: The trained encoder.
        dev: Dev rows by dataset.
        prompts: Query and passage prompt of each dataset; None is the model's own, as when testing.
        folder: Where to write; see `read_dev_queries`.
        batch_size: Texts per forward pass.
    """
    for name, rows in dev.items():
        query_prompt, passage_prompt = prompts[name]
        task = replace(_first_rows(name, rows), query_prompt=query_prompt, passage_prompt=passage_prompt)
        logger.info("looking at %d dev queries of %s", len(task.queries), name)
        write_dev_queries(name, rank_queries(model, task, batch_size=batch_size), folder)


def rank_queries(model: SentenceTransformer, task: RetrievalSet, *, batch_size: int = 64) -> list[DevQuery]:
    """Rank all passages of a small task for each of its queries, every one of which has a relevant passage."""
    scores, positions = exact_search(*encode_task(model, task, batch_size=batch_size), len(task.docs))
    if not scores.isfinite().all():
        raise MixfluenceError(f"{task.name}: the embeddings are not finite; has training diverged?")
    # By place, not by cosine, so that a tie has the same order in the measure as in the rank.
    found = {
        query: {task.doc_ids[doc]: -float(place) for place, doc in enumerate(best)}
        for query, best in zip(task.query_ids, positions[:, :10].tolist(), strict=True)
    }
    ndcg = [measures["ndcg@10"] for measures in score_run(found, task.qrels, task.query_ids).values()]
    ranked = zip(range(len(ndcg)), positions.tolist(), scores.tolist(), strict=True)
    return [_describe(task, query, order, cosines, ndcg[query]) for query, order, cosines in ranked]


def _describe(task: RetrievalSet, query: int, order: Sequence[int], cosines: Sequence[float], ndcg: float) -> DevQuery:
    answers = task.qrels[task.query_ids[query]]
    relevant = [task.doc_ids[doc] in answers for doc in order]
    hit = relevant.index(True)
    miss = relevant.index(False) if False in relevant else None
    return DevQuery(
        query=_cut(task.queries[query]),
        positive=_cut(task.docs[order[hit]]),
        other="" if miss is None else _cut(task.docs[order[miss]]),
        rank=hit + 1,
        among=len(order),
        margin=0.0 if miss is None else cosines[hit] - cosines[miss],
        ndcg=ndcg,
    )


def _first_rows(name: str, dev: RowSet) -> RetrievalSet:
    """Return the first rows as a task without hard negatives, which would be many more texts to encode."""
    first = dev.rows.select(range(min(MOST_ROWS, len(dev))))
    pairs = (Row(row["anchor"], row["positive"]) for row in first)
    return retrieval_from_rows(name, replace(dev, rows=rows_in_memory(pairs)))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT].rstrip()}…"
