"""The rank of the answer to each dev query, with its texts: examples for the report, which means cannot give."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, FiniteFloat
from pydantic.dataclasses import dataclass

from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import Row, RowSet, rows_in_memory
from mixfluence.evaluation.results import read_rows, score_rankings, write_rows

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel

logger = logging.getLogger(__name__)

# Limits that keep the cost small beside training: at most two thousand texts are encoded per dev set.
MAX_ROWS = 1_000
MAX_CHARACTERS = 300


@dataclass(frozen=True)
class DevQuery:
    """One dev query, ranked against the positives of all ranked dev queries. Long texts are truncated.

    Args:
        positive: The relevant passage; of several the one with the best rank.
        other: The passage with the best rank that is not relevant; empty if there is none.
        rank: The rank of `positive`, from 1.
        among: Number of passages ranked.
        margin: The score of `positive` minus that of `other`; of dense models, of their cosines.
    """

    query: str
    positive: str
    other: str
    rank: int
    among: int
    margin: FiniteFloat
    ndcg: Annotated[float, Field(ge=0, le=1)]


def rank_dev_sets(
    model: BaseModel,
    dev: Mapping[str, RowSet],
    prompts: Mapping[str, tuple[str | None, str | None]],
    folder: Path,
    *,
    batch_size: int = 64,
) -> None:
    """Rank the first 1,000 rows of each dev set and write `<folder>/<dataset>.jsonl`.

    The corpus is only the positives of these rows, so that scores compare the queries of a set, not models; for those
    use `evaluate`. `prompts` are the query and passage prompt of each dataset; None for the model's own.
    """
    for name, rows in dev.items():
        query_prompt, passage_prompt = prompts[name]
        # Without hard negatives, which would be many more texts to encode.
        first = rows.rows.select(range(min(MAX_ROWS, len(rows))))
        pairs = rows_in_memory(Row(row["anchor"], row["positive"]) for row in first)
        task = retrieval_from_rows(name, replace(rows, rows=pairs))
        task = replace(task, query_prompt=query_prompt, passage_prompt=passage_prompt)
        logger.info("ranking %d dev queries of %s", len(task.queries), name)
        write_dev_queries(name, rank_queries(model, task, batch_size=batch_size), folder)


def rank_queries(model: BaseModel, task: RetrievalSet, *, batch_size: int = 64) -> list[DevQuery]:
    """Rank all passages of a small task for each query. Every query must have a relevant passage.

    A query whose relevant passages are not among those that a cross-encoder ranks is left out.
    """
    # Imported late: reading dev queries must not load torch.
    from mixfluence.evaluation.search import search

    scores, positions = search(model, task, len(task.docs), batch_size=batch_size)
    # Scored by position, not by cosine, so that ties have the same order in NDCG as in the rank.
    rankings = {
        query: {task.doc_ids[doc]: -float(place) for place, doc in enumerate(best)}
        for query, best in zip(task.query_ids, positions[:, :10].tolist(), strict=True)
    }
    ndcg = [measures["ndcg@10"] for measures in score_rankings(rankings, task.qrels, task.query_ids).values()]
    ranked = zip(range(len(ndcg)), positions.tolist(), scores.tolist(), strict=True)
    described = (_describe(task, query, order, cosines, ndcg[query]) for query, order, cosines in ranked)
    return [query for query in described if query is not None]


def write_dev_queries(dataset: str, queries: Sequence[DevQuery], folder: Path) -> Path:
    """Write `<folder>/<dataset>.jsonl`, one line per query."""
    return write_rows(map(asdict, queries), dataset, folder)


def read_dev_queries(path: Path) -> tuple[str, list[DevQuery]]:
    """Read a file of `write_dev_queries`: the name of the dev set and its queries."""
    return read_rows(path, lambda row: DevQuery(**row))


def _describe(
    task: RetrievalSet, query: int, order: Sequence[int], cosines: Sequence[float], ndcg: float
) -> DevQuery | None:
    relevant = [task.doc_ids[doc] in task.qrels[task.query_ids[query]] for doc in order]
    if True not in relevant:
        return None
    hit = relevant.index(True)
    other, margin = "", 0.0
    if False in relevant:
        miss = relevant.index(False)
        other, margin = _truncate(task.docs[order[miss]]), cosines[hit] - cosines[miss]
    question, positive = _truncate(task.queries[query]), _truncate(task.docs[order[hit]])
    return DevQuery(question, positive, other, hit + 1, len(order), margin, ndcg)


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS].rstrip()}…"
