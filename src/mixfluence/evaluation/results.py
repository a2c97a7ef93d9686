"""Scores of test queries by trec_eval, ranks of dev queries, and the files that keep them.

Ranks of dev queries are stored with their texts, as examples for the report. This module does not load torch, so that
`compare` is fast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, unquote

import pytrec_eval
from pydantic import Field, FiniteFloat
from pydantic.dataclasses import dataclass as checked_dataclass

from mixfluence.data.retrieval import LARGEST_GRADE
from mixfluence.errors import DataError
from mixfluence.files import write_text
from mixfluence.runs import read_bytes

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel

    from mixfluence.data.retrieval import RetrievalSet

Parsed = TypeVar("Parsed")
_SUFFIX = ".jsonl"
_TREC_NAMES = {
    "ndcg@10": "ndcg_cut_10",
    "mrr@10": "recip_rank",
    "recall@100": "recall_100",
    "map@100": "map_cut_100",
}
# Length to which the texts of dev queries are cut.
MAX_CHARACTERS = 300
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
        """Average each of `MEASURES`."""
        return {measure: self.mean(measure) for measure in MEASURES}


def score_rankings(
    rankings: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
    query_ids: Iterable[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Score every query on each of `MEASURES`.

    As in trec_eval, gains are linear in the grade and ties (in float32) are ordered by descending passage id. A query
    without hits or without a relevant passage scores zero; trec_eval leaves out queries without hits, which raises
    the mean. Only grades above zero are relevant. By default the queries of `qrels` are scored.
    """
    # pytrec_eval crashes on two queries with grades below -1 only, and takes memory for every grade up to the highest.
    judged = {query: {doc: max(grade, 0) for doc, grade in grades.items()} for query, grades in qrels.items()}
    if high := [query for query, grades in judged.items() if max(grades.values(), default=0) > LARGEST_GRADE]:
        raise DataError(f"query {high[0]!r} has a grade above {LARGEST_GRADE:,}")
    retrieved = {query: dict(hits) for query, hits in rankings.items()}
    found = pytrec_eval.RelevanceEvaluator(judged, set(_TREC_NAMES.values())).evaluate(retrieved)
    scores = {}
    for query in judged if query_ids is None else query_ids:
        scores[query] = {name: found.get(query, {}).get(trec, 0.0) for name, trec in _TREC_NAMES.items()}
        # trec_eval's reciprocal rank has no cutoff; below rank 10 it is less than 1/10.
        if scores[query]["mrr@10"] < 1 / 10:
            scores[query]["mrr@10"] = 0.0
    return scores


def write_evaluation(evaluation: Evaluation, folder: Path) -> Path:
    """Write the per-query scores to `<folder>/<dataset>.jsonl`."""
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
    """Write `<folder>/<dataset>.jsonl` atomically; the name is percent-encoded and cannot leave the folder."""
    path = folder / (quote(dataset, safe="") + _SUFFIX)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path, parse: Callable[[Any], Parsed]) -> tuple[str, list[Parsed]]:
    """Read a file of `write_rows`: the name of the dataset and the parsed rows. DataError if any line is damaged."""
    rows = []
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        try:
            rows.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, OverflowError) as problem:
            raise DataError(f"{path}:{number}: damaged line ({' '.join(repr(problem).split())})") from problem
    if not rows:
        raise DataError(f"{path}: contains no queries")
    return unquote(path.name.removesuffix(_SUFFIX)), rows


@checked_dataclass(frozen=True)
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


def rank_queries(model: BaseModel, task: RetrievalSet, *, batch_size: int = 64) -> list[DevQuery]:
    """Rank all passages of a small task for each query. Every query must have a relevant passage.

    A query whose relevant passages are not among those that a cross-encoder ranks is left out.
    """
    # Imported late: reading dev queries must not load torch.
    from mixfluence.evaluation.retrieval import search

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
