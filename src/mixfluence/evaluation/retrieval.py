"""From a model, or BM25, and a retrieval set to per-query scores."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from sentence_transformers import SparseEncoder
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel
from torch import Tensor

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import DataError
from mixfluence.evaluation.results import Evaluation, score_rankings
from mixfluence.evaluation.search import Hits, check_finite, exact_search, search, search_bm25

logger = logging.getLogger(__name__)

# Passage id -> score, best first.
Ranking = dict[str, float]
# Beyond this, the index of BM25 may not fit in memory, and encoding the corpus twice is not cheap.
MAX_PASSAGES = 1_000_000
# The constant of reciprocal rank fusion.
FUSION = 60


def evaluate(
    model: BaseModel, task: RetrievalSet, *, batch_size: int = 64, k: int = 100, show_progress: bool = False
) -> Evaluation:
    """Search a task exactly with a model of any kind, and score the first `k` hits of every query.

    Dense models search by cosine, sparse ones by inner product and multi-vector ones by MaxSim; a cross-encoder ranks
    the first 100 hits of BM25. Text lengths are the `query_length` and `document_length` of the model's Transformer
    module; prompts are those of the task, else the model's. Module modes and random states are preserved. With `k`
    below 100, recall@100 and map@100 become those of the first k. To select checkpoints during training use
    `DevEvaluator`.
    """
    return score_task(task, rank_task(model, task, batch_size=batch_size, k=k, show_progress=show_progress))


def rank_task(
    model: BaseModel, task: RetrievalSet, *, batch_size: int = 64, k: int = 100, show_progress: bool = False
) -> dict[str, Ranking]:
    """Return what `evaluate` scores: the first `k` hits of every query."""
    rankings = build_rankings(task, search(model, task, k + 1, batch_size=batch_size, show_progress=show_progress), k)
    return _matching(rankings) if isinstance(model, SparseEncoder) else rankings


def rank_embeddings(task: RetrievalSet, queries: Tensor, passages: Tensor, k: int) -> dict[str, Ranking]:
    """Return the first `k` hits of every query, given unit vectors of queries and passages."""
    return build_rankings(task, check_finite(task, exact_search(queries, passages, k + 1)), k)


def score_task(task: RetrievalSet, rankings: Mapping[str, Ranking]) -> Evaluation:
    """Score rankings of a task, such as those of `rank_bm25`."""
    return Evaluation(task.name, score_rankings(rankings, task.qrels, task.query_ids))


def rank_bm25(task: RetrievalSet, k: int = 100) -> dict[str, Ranking]:
    """Rank the passages of a task by BM25, for `score_task`; for a model use `evaluate`.

    Uses the defaults of bm25s: Lucene's formula with k1 1.5 and b 0.75, English stop words removed, no stemming. Not
    meaningful for languages written without spaces. Passages that share no word with the query are not returned.
    """
    return _matching(build_rankings(task, search_bm25(task, k + 1), k))


def evaluate_bm25(task: RetrievalSet) -> Evaluation:
    """Score BM25 on a task, as `evaluate` does a model: the row every table of dense retrievers should have."""
    return score_task(task, rank_bm25(task))


def fuse(*rankings: Mapping[str, Ranking]) -> dict[str, Ranking]:
    """Return the reciprocal rank fusion of several rankings of the same queries."""
    fused: dict[str, Ranking] = {}
    for query in dict.fromkeys(query for ranking in rankings for query in ranking):
        scores: Ranking = defaultdict(float)
        for ranking in rankings:
            hits = ranking.get(query, {})
            for rank, doc in enumerate(sorted(hits, key=lambda doc: -hits[doc]), start=1):
                scores[doc] += 1 / (FUSION + rank)
        fused[query] = dict(scores)
    return fused


def _matching(rankings: Mapping[str, Ranking]) -> dict[str, Ranking]:
    """Leave out passages that share no term with the query."""
    return {query: {doc: score for doc, score in hits.items() if score > 0} for query, hits in rankings.items()}


def build_rankings(task: RetrievalSet, hits: Hits, k: int) -> dict[str, Ranking]:
    """Return the first `k` of k + 1 hits of each query.

    As in BEIR, a passage with the id of the query is removed, for sets whose queries are also passages. It is kept if
    it is judged relevant, because other sets use one id for a question and its answer.
    """
    rankings: dict[str, Ranking] = {}
    removed = 0
    for query, scores, positions in zip(task.query_ids, hits[0].tolist(), hits[1].tolist(), strict=True):
        found = dict(zip(map(task.doc_ids.__getitem__, positions), scores, strict=True))
        if query in found and task.qrels.get(query, {}).get(query, 0) <= 0:
            del found[query]
            removed += 1
        while len(found) > k:
            found.popitem()
        rankings[query] = found
    if removed:
        logger.info("%s: removed %d hits with the id of their query", task.name, removed)
    return rankings


class DevEvaluator(BaseEvaluator):
    """Scores dev sets during training, all with the same weight, for `metric_for_best_model="eval_ndcg@10"`.

    Use sets with a sampled corpus (`RetrievalSet.sample_corpus`); for final scores use `evaluate`.
    """

    def __init__(self, tasks: Sequence[RetrievalSet], *, batch_size: int = 64) -> None:
        super().__init__()
        names = [task.name for task in tasks]
        if not names or len(set(names)) < len(names):
            raise DataError(f"checkpoint selection needs dev sets with distinct names, found {names}")
        self.primary_metric = "ndcg@10"
        self._tasks = tasks
        self._batch_size = batch_size

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return `<name>_ndcg@10` of each set and `ndcg@10`, their mean."""
        by_set = {
            f"{task.name}_ndcg@10": evaluate(model, task, batch_size=self._batch_size, k=10).mean("ndcg@10")
            for task in self._tasks
        }
        scores = {**by_set, "ndcg@10": fmean(by_set.values())}
        logger.info("step %d: dev NDCG@10 × 100 is %.1f", steps, 100 * scores["ndcg@10"])
        self.store_metrics_in_model_card_data(model, scores, epoch, steps)
        return scores
