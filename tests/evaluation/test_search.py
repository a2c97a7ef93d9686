"""Exact search against brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixfluence.evaluation.retrieval import exact_search


@settings(deadline=None)
@given(
    queries=st.integers(1, 9),
    corpus=st.integers(1, 40),
    k=st.integers(1, 12),
    chunk=st.integers(1, 45),
    query_chunk=st.integers(1, 10),
    seed=st.integers(0, 1000),
)
def test_equals_brute_force(queries: int, corpus: int, k: int, chunk: int, query_chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(queries, 8, generator=generator)
    right = torch.randn(corpus, 8, generator=generator)
    exact = left.double() @ right.double().T
    scores, positions = exact_search(left, right, k, chunk, query_chunk)
    assert torch.equal(positions, exact.argsort(dim=1, descending=True)[:, :k])
    torch.testing.assert_close(scores.double(), exact.gather(1, positions), rtol=1e-5, atol=1e-5)


def test_half_precision_and_autocast_still_score_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(5, 64, generator=generator).bfloat16()
    right = torch.randn(500, 64, generator=generator).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores, _ = exact_search(left, right, 10, chunk=128)
    exact = (left.double() @ right.double().T).topk(10).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["none", "ieee", "tf32"])
def test_precision_settings_are_left_as_found(precision: str) -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = precision
        exact_search(torch.ones(1, 2), torch.ones(1, 2), 1)
        assert matmul.fp32_precision == precision
    finally:
        matmul.fp32_precision = before
