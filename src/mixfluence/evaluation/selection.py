"""Choosing checkpoints while training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import fmean

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import DataError
from mixfluence.evaluation.retrieval import evaluate

logger = logging.getLogger(__name__)


class DevEvaluator(BaseEvaluator):
    """Scores dev sets during training, for the trainer's `metric_for_best_model="eval_ndcg@10"`.

    Give it sets with a sampled corpus (`RetrievalSet.sample_corpus`) and report final numbers with
    `evaluate` on the whole one.

    Args:
        tasks: One or more dev sets; each counts the same in the mean.
        batch_size: Texts per forward pass.
    """

    def __init__(self, tasks: Sequence[RetrievalSet], *, batch_size: int = 64) -> None:
        super().__init__()
        names = [task.name for task in tasks]
        if not names or len(set(names)) < len(names):
            raise DataError(f"checkpoint selection needs dev sets with distinct names, found {names}")
        self.primary_metric = "ndcg@10"
        self._tasks = tasks
        self._batch_size = batch_size

    def __call__(
        self, model: SentenceTransformer, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return `<name>_ndcg@10` of each set and `ndcg@10`, their mean."""
        by_set = {f"{task.name}_ndcg@10": self._ndcg(model, task) for task in self._tasks}
        scores = {**by_set, "ndcg@10": fmean(by_set.values())}
        logger.info("step %d: dev NDCG@10 %.4f", steps, scores["ndcg@10"])
        self.store_metrics_in_model_card_data(model, scores, epoch, steps)
        return scores

    def _ndcg(self, model: SentenceTransformer, task: RetrievalSet) -> float:
        return evaluate(model, task, batch_size=self._batch_size, k=10).mean("ndcg@10")
