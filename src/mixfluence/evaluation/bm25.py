"""BM25, the baseline that needs no model."""

from __future__ import annotations

import os

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.evaluation.runs import Run, build_run


def bm25_run(task: RetrievalSet, k: int = 100) -> Run:
    """Rank the passages of a task by BM25; score the result with `score_run`.

    The defaults of bm25s: Lucene's formula with k1 1.5 and b 0.75, lower-cased words of two characters and
    more, English stop words dropped, no stemming. It means little for languages written without spaces.
    Passages that share no word with the query are not returned. For a model use `evaluate`.
    """
    # Where jax is installed, importing bm25s starts it, and jax claims three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(task.docs), show_progress=False), show_progress=False)
    positions, scores = index.retrieve(
        bm25s.tokenize(list(task.queries), show_progress=False),
        k=min(k + 1, len(task.doc_ids)),
        show_progress=False,
        backend_selection="numpy",
    )
    run, _ = build_run(task, scores.tolist(), positions.tolist(), k)
    return {query: {doc: score for doc, score in hits.items() if score > 0} for query, hits in run.items()}
