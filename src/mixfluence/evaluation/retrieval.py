"""Exact search with every kind of model, or BM25, and per-query scores of what it finds."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import maxsim
from torch import Tensor, nn

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.tokenize import Task, tokenise_texts
from mixfluence.data.tokens import TokenTable
from mixfluence.embedding import TextEncoder, float32_products, prompt_of, text_encoders
from mixfluence.errors import DataError, MixfluenceError
from mixfluence.evaluation.results import Evaluation, score_rankings
from mixfluence.influence.snapshot import preserve_modes

logger = logging.getLogger(__name__)

# Passage id -> score, best first.
Ranking = dict[str, float]
# Beyond this, the index of BM25 may not fit in memory, and encoding the corpus twice is not cheap.
MAX_PASSAGES = 1_000_000
# The constant of reciprocal rank fusion.
FUSION = 60
# Scores of sparse vectors that exist at a time.
SCORES_AT_ONCE = 2**27
# Passages whose token vectors exist at a time.
PASSAGES_AT_ONCE = 4096
# Hits of BM25 that a cross-encoder ranks again.
RERANKED = 100

# Scores and positions [queries, at most k], best first.
Hits = tuple[Tensor, Tensor]


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


def search(model: BaseModel, task: RetrievalSet, k: int, *, batch_size: int, show_progress: bool = False) -> Hits:
    """Return the `k` best passages of each query; refuse scores that are not finite."""
    with torch.inference_mode():
        return check_finite(task, _search(model, task, k, batch_size, show_progress))


def check_finite(task: RetrievalSet, hits: Hits) -> Hits:
    """Return the hits of a task; refuse scores that are not finite."""
    # NaN sorts first, so that a single such passage is found here.
    if not hits[0].isfinite().all():
        raise MixfluenceError(f"{task.name}: embeddings are not finite; has training diverged?")
    return hits


@singledispatch
def _search(model: SentenceTransformer, task: RetrievalSet, k: int, batch_size: int, show_progress: bool) -> Hits:
    queries, passages = (
        encoder.encode(texts, batch_size=batch_size, show_progress=show_progress)
        for encoder, texts in tokenised_sides(model, task)
    )
    return exact_search(queries, passages, k)


@_search.register(SparseEncoder)
def _search_sparse(model: SparseEncoder, task: RetrievalSet, k: int, batch_size: int, show_progress: bool) -> Hits:
    """Search by inner products of sparse vectors, which are kept in CPU memory."""

    def matrix(encoder: TextEncoder, texts: Any) -> Any:
        parts, order = [], []
        for places, output in encoder.outputs(texts, batch_size=batch_size, show_progress=show_progress):
            rows = output["sentence_embedding"].float().to_sparse_csr().cpu()
            indices, starts = rows.col_indices().numpy(), rows.crow_indices().numpy()
            parts.append(sparse.csr_matrix((rows.values().numpy(), indices, starts), rows.shape))
            order.append(places)
        return sparse.vstack(parts, format="csr")[np.argsort(np.concatenate(order))]

    queries, passages = (matrix(encoder, texts) for encoder, texts in tokenised_sides(model, task))
    found: list[Hits] = []
    size = max(1, SCORES_AT_ONCE // passages.shape[0])
    for start in range(0, queries.shape[0], size):
        scores = torch.from_numpy((queries[start : start + size] @ passages.T).toarray())
        found.append(scores.topk(min(k, scores.shape[1])))
    return _join(found)


@_search.register(MultiVectorEncoder)
def _search_tokens(model: MultiVectorEncoder, task: RetrievalSet, k: int, batch_size: int, progress: bool) -> Hits:
    """Search by MaxSim. Token vectors of a part of the passages exist at a time, those of all queries throughout."""
    (query_encoder, texts), (passage_encoder, passages) = tokenised_sides(model, task)
    queries: dict[int, Tensor] = {}
    for places, output in query_encoder.outputs(texts, batch_size=batch_size):
        queries |= zip(places.tolist(), _token_vectors(output), strict=True)
    ordered = [queries[place] for place in range(len(queries))]
    best: Hits | None = None
    waiting: dict[int, Tensor] = {}
    seen = 0
    for places, output in passage_encoder.outputs(passages, batch_size=batch_size, show_progress=progress):
        waiting |= zip(places.tolist(), _token_vectors(output), strict=True)
        seen += len(places)
        if len(waiting) < PASSAGES_AT_ONCE and seen < len(task.docs):
            continue
        mean = model.similarity_fn_name == "meanmaxsim"
        scores = maxsim(ordered, list(waiting.values()), length_normalize=mean)
        positions = torch.tensor(list(waiting), device=scores.device).expand_as(scores)
        best = _best(best, (scores, positions), k)
        waiting = {}
    assert best is not None
    return best


@_search.register(CrossEncoder)
def _rerank(model: CrossEncoder, task: RetrievalSet, k: int, batch_size: int, show_progress: bool) -> Hits:
    """Rank the first hits of BM25 by logits; there are no other hits."""
    _, positions = search_bm25(task, RERANKED + 1)
    query_prompt = prompt_of(model, "query", task.query_prompt)
    passage_prompt = prompt_of(model, "document", task.passage_prompt)
    pairs = [
        (query_prompt + query, passage_prompt + task.docs[place])
        for query, hits in zip(task.queries, positions.tolist(), strict=True)
        for place in hits
    ]
    options = {"batch_size": batch_size, "show_progress_bar": show_progress, "convert_to_tensor": True}
    with preserve_modes(model):
        logits = model.predict(pairs, activation_fn=nn.Identity(), **options)
    scores = logits.float().cpu().view(positions.shape)
    return _best(None, (scores, positions), k)


def tokenised_sides(model: BaseModel, task: RetrievalSet) -> Iterator[tuple[TextEncoder, TokenTable]]:
    """Yield encoder and token ids of queries, then of passages; token ids are cached."""
    prompts: dict[Task, str | None] = {"query": task.query_prompt, "document": task.passage_prompt}
    texts = {"query": task.queries, "document": task.docs}
    for kind, encoder in text_encoders(model, prompts).items():
        yield encoder, tokenise_texts(texts[kind], encoder.side)


def _token_vectors(output: dict[str, Tensor]) -> list[Tensor]:
    masks = output["attention_mask"].bool()
    return [tokens[mask] for tokens, mask in zip(output["token_embeddings"].float(), masks, strict=True)]


def search_bm25(task: RetrievalSet, k: int) -> Hits:
    """Return the `k` best passages by BM25; those that share no word with the query have a score of 0."""
    # If jax is installed, bm25s imports it, and jax reserves three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    tokens = bm25s.tokenize(list(task.docs), show_progress=False)
    if not any(tokens.ids):
        logger.warning("%s: no passage contains a word, so BM25 finds nothing", task.name)
        first = torch.arange(min(k, len(task.docs))).expand(len(task.queries), -1)
        return torch.zeros(first.shape), first
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)
    positions, scores = index.retrieve(
        bm25s.tokenize(list(task.queries), show_progress=False),
        k=min(k, len(task.doc_ids)),
        show_progress=False,
        backend_selection="numpy",
    )
    return torch.from_numpy(scores), torch.from_numpy(positions.astype(np.int64))


@torch.no_grad()
def exact_search(queries: Tensor, corpus: Tensor, k: int, chunk: int = 65536, query_chunk: int = 1024) -> Hits:
    """Return scores and positions [q, min(k, n)] of the rows of `corpus` with the largest inner products, best first.

    Products are taken in float32, on the device of the embeddings; `query_chunk` x `chunk` scores exist at a time.
    """
    found: list[Hits] = []
    with float32_products("ieee"), torch.autocast(queries.device.type, enabled=False):
        for asked in torch.split(queries.float(), query_chunk):
            best: Hits | None = None
            for number, block in enumerate(torch.split(corpus, chunk)):
                scores, positions = (asked @ block.float().T).topk(min(k, len(block)))
                best = _best(best, (scores, positions + number * chunk), k)
            assert best is not None
            found.append(best)
    return _join(found)


def _join(hits: Sequence[Hits]) -> Hits:
    """Return the hits of several blocks of queries as one."""
    scores, positions = (torch.cat(parts) for parts in zip(*hits, strict=True))
    return scores, positions


def _best(best: Hits | None, others: Hits, k: int) -> Hits:
    """Return the best of two lists of hits."""
    scores, positions = (torch.cat(parts, dim=1) for parts in zip(best, others, strict=True)) if best else others
    kept_scores, kept = scores.topk(min(k, scores.shape[1]))
    return kept_scores, positions.gather(1, kept)
