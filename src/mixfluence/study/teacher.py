"""Negatives and a teacher's scores by BM25, for twins of settings that are trained by distillation.

The teacher is BM25 over character trigrams (Lucene's formula), which needs no word boundaries and so reads every
language; it is no neural teacher, and tables that use it say so. A row gets the passages that it ranks best, judged
ones left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from mixfluence.data.formats import Source, read_rows, read_task

NEGATIVES = 8
# The rows of a set that get scores, the first ones. The others are trained on without, as some of BGE-M3's are.
MOST_SCORED = 2_000


def scored_rows(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the rows of a source as records with the keys query, pos, neg, pos_scores and neg_scores.

    A row's scores are standardised over its passages, so that their softmax, which distillation takes, is neither
    flat nor a single one.
    """
    # Where jax is installed, importing bm25s starts it, and jax claims three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    task = read_task("teacher", source)
    answers = dict(zip(task.doc_ids, task.docs, strict=True))
    judged = {
        query: {answers[doc] for doc in task.qrels[id]} for id, query in zip(task.query_ids, task.queries, strict=True)
    }
    places = {text: place for place, text in enumerate(task.docs)}
    index = bm25s.BM25()
    index.index([trigrams(text) for text in task.docs], show_progress=False)
    for number, row in enumerate(read_rows(source).rows):
        query, positive = row["anchor"], row["positive"]
        if number >= MOST_SCORED:
            yield {"query": query, "pos": [positive], "neg": []}
            continue
        scores = index.get_scores(trigrams(query))
        best = np.argsort(-scores, kind="stable")[: NEGATIVES + len(judged[query]) + 1]
        chosen = [place for place in best.tolist() if task.docs[place] not in judged[query]][:NEGATIVES]
        own = _standardised(scores[[places[positive], *chosen]])
        negatives = [task.docs[place] for place in chosen]
        yield {"query": query, "pos": [positive], "neg": negatives, "pos_scores": own[:1], "neg_scores": own[1:]}


def trigrams(text: str) -> list[str]:
    """Return the runs of three characters of a text, lower-cased; a shorter text is one of its own."""
    text = " ".join(text.lower().split())
    return [text[place : place + 3] for place in range(max(1, len(text) - 2))]


def _standardised(scores: Any) -> list[float]:
    spread = float(scores.std())
    return (
        [0.0] * len(scores) if spread == 0 else [round(float(value), 4) for value in (scores - scores.mean()) / spread]
    )
