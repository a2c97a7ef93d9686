"""Evaluation: exact search, trec_eval measures, BM25, checkpoint selection and significance tests.

Only modules that do not load torch are imported here, so that comparing run folders stays fast.
"""

from mixfluence.evaluation.results import MEASURES, Evaluation, read_evaluation, score_rankings, write_evaluation

__all__ = ["MEASURES", "Evaluation", "read_evaluation", "score_rankings", "write_evaluation"]
