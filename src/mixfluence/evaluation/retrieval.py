"""From a model, or BM25, and a retrieval set to per-query scores."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator
from torch import Tensor

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.tokenize import tokenise_texts
from mixfluence.embedding import text_encoders
from mixfluence.errors import DataError, MixfluenceError
from mixfluence.evaluation.results import Evaluation, score_rankings

logger = logging.getLogger(__name__)

# Passage id -> score, best first.
Ranking = dict[str, float]


def evaluate(
    model: SentenceTransformer, task: RetrievalSet, *, batch_size: int = 64, k: int = 100, show_progress: bool = False
) -> Evaluation:
    """Encode a task, search it exactly by cosine similarity and score the first `k` hits of every query.

    Text lengths are the `query_length` and `document_length` of the model's Transformer module; prompts are those of
    the task, else the model's. Module modes and random states are preserved. With `k` below 100, recall@100 and
    map@100 become those of the first k. To select checkpoints during training use `DevEvaluator`.
    """
    return score_task(task, rank_task(model, task, batch_size=batch_size, k=k, show_progress=show_progress))


def rank_task(
    model: SentenceTransformer, task: RetrievalSet, *, batch_size: int = 64, k: int = 100, show_progress: bool = False
) -> dict[str, Ranking]:
    """Return what `evaluate` scores: the first `k` hits of every query."""
    embeddings = encode_task(model, task, batch_size=batch_size, show_progress=show_progress)
    return rank_embeddings(task, *embeddings, k)


def score_task(task: RetrievalSet, rankings: Mapping[str, Ranking]) -> Evaluation:
    """Score rankings of a task, such as those of `rank_bm25`."""
    return Evaluation(task.name, score_rankings(rankings, task.qrels, task.query_ids))


def encode_task(
    model: SentenceTransformer, task: RetrievalSet, *, batch_size: int, show_progress: bool = False
) -> tuple[Tensor, Tensor]:
    """Return normalised embeddings of queries and passages, on the model's device; token ids are cached."""
    encoders = text_encoders(model, {"query": task.query_prompt, "document": task.passage_prompt})
    texts = {"query": task.queries, "document": task.docs}
    vectors = []
    for kind, encoder in encoders.items():
        prepared = tokenise_texts(texts[kind], encoder.side)
        vectors.append(encoder.encode(prepared, batch_size=batch_size, show_progress=show_progress))
    queries, passages = vectors
    return queries, passages


def rank_embeddings(task: RetrievalSet, queries: Tensor, passages: Tensor, k: int = 100) -> dict[str, Ranking]:
    """Rank the passages of a task by their embeddings; refuse embeddings that are not finite."""
    scores, positions = search_finite(task, queries, passages, k + 1)
    return _build_rankings(task, scores.tolist(), positions.tolist(), k)


def search_finite(task: RetrievalSet, queries: Tensor, passages: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return `exact_search` of a task; refuse embeddings that are not finite."""
    scores, positions = exact_search(queries, passages, k)
    # NaN sorts first, so that a single such passage is found here.
    if not scores.isfinite().all():
        raise MixfluenceError(f"{task.name}: embeddings are not finite; has training diverged?")
    return scores, positions


@torch.no_grad()
def exact_search(
    queries: Tensor, corpus: Tensor, k: int, chunk: int = 65536, query_chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Return scores and positions [q, min(k, n)] of the rows of `corpus` with the largest inner products, best first.

    Products are taken in float32, on the device of the embeddings; `query_chunk` x `chunk` scores exist at a time.
    """
    with _full_float32(), torch.autocast(queries.device.type, enabled=False):
        found = [_search_block(block.float(), corpus, k, chunk) for block in torch.split(queries, query_chunk)]
    return torch.cat([scores for scores, _ in found]), torch.cat([positions for _, positions in found])


def _search_block(queries: Tensor, corpus: Tensor, k: int, chunk: int) -> tuple[Tensor, Tensor]:
    best_scores = queries.new_empty(len(queries), 0)
    best_positions = torch.empty_like(best_scores, dtype=torch.long)
    start = 0
    for block in torch.split(corpus, chunk):
        scores, positions = (queries @ block.float().T).topk(min(k, len(block)))
        candidates = torch.cat([best_scores, scores], dim=1)
        candidate_positions = torch.cat([best_positions, positions + start], dim=1)
        best_scores, kept = candidates.topk(min(k, candidates.shape[1]))
        best_positions = candidate_positions.gather(1, kept)
        start += len(block)
    return best_scores, best_positions


@contextmanager
def _full_float32() -> Iterator[None]:
    """Disable TF32 and bf16 in float32 products, which would turn different scores into ties.

    Torch 2.9 changed the interface; reading the old one raises once the Trainer's `tf32=True` has set the new one.
    """
    backends: Any = torch.backends  # mypy does not know its attributes
    if not hasattr(backends, "fp32_precision"):
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
        return
    products = (backends.cuda.matmul, backends.mkldnn.matmul)
    precisions = [product.fp32_precision for product in products]
    try:
        for product in products:
            product.fp32_precision = "ieee"
        yield
    finally:
        for product, precision in zip(products, precisions, strict=True):
            product.fp32_precision = precision


def rank_bm25(task: RetrievalSet, k: int = 100) -> dict[str, Ranking]:
    """Rank the passages of a task by BM25, for `score_task`; for a model use `evaluate`.

    Uses the defaults of bm25s: Lucene's formula with k1 1.5 and b 0.75, English stop words removed, no stemming. Not
    meaningful for languages written without spaces. Passages that share no word with the query are not returned.
    """
    # If jax is installed, bm25s imports it, and jax reserves three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    tokens = bm25s.tokenize(list(task.docs), show_progress=False)
    if not any(tokens.ids):
        logger.warning("%s: no passage has a word, so that BM25 finds none", task.name)
        return {query: {} for query in task.query_ids}
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)
    positions, scores = index.retrieve(
        bm25s.tokenize(list(task.queries), show_progress=False),
        k=min(k + 1, len(task.doc_ids)),
        show_progress=False,
        backend_selection="numpy",
    )
    rankings = _build_rankings(task, scores.tolist(), positions.tolist(), k)
    return {query: {doc: score for doc, score in hits.items() if score > 0} for query, hits in rankings.items()}


def _build_rankings(
    task: RetrievalSet, scores: Sequence[Sequence[float]], positions: Sequence[Sequence[int]], k: int
) -> dict[str, Ranking]:
    """Return the first `k` of k + 1 hits of each query.

    As in BEIR, a passage with the id of the query is removed, for sets whose queries are also passages. It is kept if
    it is judged relevant, because other sets use one id for a question and its answer.
    """
    rankings: dict[str, Ranking] = {}
    removed = 0
    for query, row_scores, row_positions in zip(task.query_ids, scores, positions, strict=True):
        hits = {task.doc_ids[i]: score for i, score in zip(row_positions, row_scores, strict=True)}
        if task.qrels.get(query, {}).get(query, 0) <= 0:
            removed += hits.pop(query, None) is not None
        rankings[query] = dict(list(hits.items())[:k])
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
        self, model: SentenceTransformer, output_path: str | None = None, epoch: float = -1, steps: int = -1
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
