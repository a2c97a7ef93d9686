"""Exact search, trec_eval measures, BM25, checkpoint selection, significance tests. Imported without torch."""

from mixfluence.evaluation.results import MEASURES, Evaluation, read_evaluation, score_rankings, write_evaluation

__all__ = ["MEASURES", "Evaluation", "read_evaluation", "score_rankings", "write_evaluation"]
