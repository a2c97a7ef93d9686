"""A task in the words of the tiny encoders."""

from __future__ import annotations

import random

import pytest

from mixfluence.data.retrieval import RetrievalSet


@pytest.fixture
def task() -> RetrievalSet:
    rng = random.Random(3)
    docs = [" ".join(f"w{rng.randrange(60)}" for _ in range(rng.randint(3, 12))) for _ in range(80)]
    positives = [rng.sample(range(80), rng.randint(1, 3)) for _ in range(20)]
    return RetrievalSet(
        name="tiny",
        query_ids=[f"q{i}" for i in range(20)],
        queries=[" ".join(docs[chosen[0]].split()[:6]) for chosen in positives],
        doc_ids=[f"d{i}" for i in range(80)],
        docs=docs,
        qrels={f"q{i}": {f"d{doc}": 1 for doc in chosen} for i, chosen in enumerate(positives)},
    )
