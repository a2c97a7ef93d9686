"""Exact nearest neighbours by inner product, in full float32 and bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def exact_search(
    queries: Tensor, corpus: Tensor, k: int, chunk: int = 65536, query_chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Return the scores and positions of the `k` rows of `corpus` with the largest inner product for each query.

    Embeddings [q, d] and [n, d] may have any floating type; products are taken in float32, on their device. At most
    `query_chunk` x `chunk` scores exist at a time. The results are both [q, min(k, n)], best first.
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

    Torch 2.9 changed the interface of this setting, and reading the old one raises once the Trainer's `tf32=True` has
    set the new one.
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
