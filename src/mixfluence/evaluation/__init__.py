"""A model becomes per-query numbers here: exact search, trec_eval measures, BM25, checkpoint selection."""

from __future__ import annotations

from mixfluence.evaluation.bm25 import bm25_run
from mixfluence.evaluation.metrics import MEASURES, mean, score_run
from mixfluence.evaluation.results import Evaluation, read_evaluation, write_evaluation
from mixfluence.evaluation.retrieval import evaluate, score_embeddings
from mixfluence.evaluation.search import exact_search
from mixfluence.evaluation.selection import DevEvaluator

__all__ = [
    "MEASURES",
    "DevEvaluator",
    "Evaluation",
    "bm25_run",
    "evaluate",
    "exact_search",
    "mean",
    "read_evaluation",
    "score_embeddings",
    "score_run",
    "write_evaluation",
]
