"""A model becomes per-query numbers here: exact search, trec_eval measures, BM25, checkpoint selection.

Only what needs no model is imported at once: comparing run folders should not load torch.
"""

from __future__ import annotations

from mixfluence.evaluation.metrics import MEASURES, mean, score_run
from mixfluence.evaluation.results import Evaluation, read_evaluation, write_evaluation

__all__ = ["MEASURES", "Evaluation", "mean", "read_evaluation", "score_run", "write_evaluation"]
