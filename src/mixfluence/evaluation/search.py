"""Exact search with every kind of model: the passages with the largest scores for each query of a task."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import maxsim
from torch import Tensor, nn

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.tokenize import Task, tokenise_texts
from mixfluence.data.tokens import TokenTable
from mixfluence.embedding import TextEncoder, float32_products, prompt_of, text_encoders
from mixfluence.errors import MixfluenceError
from mixfluence.influence.snapshot import preserve_modes

logger = logging.getLogger(__name__)

# Scores of sparse vectors that exist at a time.
SCORES_AT_ONCE = 2**27
# Passages whose token vectors exist at a time.
PASSAGES_AT_ONCE = 4096
# Hits of BM25 that a cross-encoder ranks again.
RERANKED = 100

# Scores and positions [queries, at most k], best first.
Hits = tuple[Tensor, Tensor]


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
    return exact_search(*encode_task(model, task, batch_size=batch_size, show_progress=show_progress), k)


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
    found = []
    size = max(1, SCORES_AT_ONCE // passages.shape[0])
    for start in range(0, queries.shape[0], size):
        scores = torch.from_numpy((queries[start : start + size] @ passages.T).toarray())
        found.append(scores.topk(min(k, scores.shape[1])))
    return torch.cat([hits.values for hits in found]), torch.cat([hits.indices for hits in found])


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


def encode_task(
    model: BaseModel, task: RetrievalSet, *, batch_size: int, show_progress: bool = False
) -> tuple[Tensor, Tensor]:
    """Return unit vectors of queries and passages, on the model's device.

    The model is a dense one. Token ids are cached.
    """
    queries, passages = (
        encoder.encode(texts, batch_size=batch_size, show_progress=show_progress)
        for encoder, texts in tokenised_sides(model, task)
    )
    return queries, passages


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
def exact_search(
    queries: Tensor, corpus: Tensor, k: int, chunk: int = 65536, query_chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Return scores and positions [q, min(k, n)] of the rows of `corpus` with the largest inner products, best first.

    Products are taken in float32, on the device of the embeddings; `query_chunk` x `chunk` scores exist at a time.
    """
    with float32_products("ieee"), torch.autocast(queries.device.type, enabled=False):
        found = [_search_block(block.float(), corpus, k, chunk) for block in torch.split(queries, query_chunk)]
    return torch.cat([scores for scores, _ in found]), torch.cat([positions for _, positions in found])


def _search_block(queries: Tensor, corpus: Tensor, k: int, chunk: int) -> tuple[Tensor, Tensor]:
    best: Hits | None = None
    for number, block in enumerate(torch.split(corpus, chunk)):
        scores, positions = (queries @ block.float().T).topk(min(k, len(block)))
        best = _best(best, (scores, positions + number * chunk), k)
    assert best is not None
    return best


def _best(best: Hits | None, others: Hits, k: int) -> Hits:
    """Return the best of two lists of hits."""
    scores, positions = (torch.cat(parts, dim=1) for parts in zip(best, others, strict=True)) if best else others
    kept_scores, kept = scores.topk(min(k, scores.shape[1]))
    return kept_scores, positions.gather(1, kept)
