"""Checkpoint selection inside the trainer of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import DataError
from mixfluence.evaluation.retrieval import evaluate
from mixfluence.evaluation.selection import DevEvaluator


def two_sets(task: RetrievalSet) -> list[RetrievalSet]:
    return [task, replace(task.take_queries(range(5)), name="first")]


def test_returns_each_set_and_their_mean(make_static: Callable[[], SentenceTransformer], task: RetrievalSet) -> None:
    model = make_static()
    sets = two_sets(task)
    scores = DevEvaluator(sets)(model)
    for each in sets:
        assert scores[f"{each.name}_ndcg@10"] == pytest.approx(evaluate(model, each).mean("ndcg@10"))
    assert scores["ndcg@10"] == pytest.approx((scores["tiny_ndcg@10"] + scores["first_ndcg@10"]) / 2)


def test_training_goes_on_as_if_nothing_had_happened(tiny_bert: SentenceTransformer, task: RetrievalSet) -> None:
    tiny_bert.train()
    before = torch.get_rng_state()
    DevEvaluator(two_sets(task))(tiny_bert)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in tiny_bert.modules())


def test_the_trainer_selects_by_it(tiny_bert: SentenceTransformer, task: RetrievalSet, tmp_path: Path) -> None:
    rows = Dataset.from_dict({"anchor": list(task.docs[:16]), "positive": list(task.docs[16:32])})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_ndcg@10",
        greater_is_better=True,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    loss = MultipleNegativesRankingLoss(tiny_bert)
    evaluator = DevEvaluator(two_sets(task))
    trainer = SentenceTransformerTrainer(tiny_bert, arguments, rows, loss=loss, evaluator=evaluator)
    trainer.train()
    logged = [entry["eval_ndcg@10"] for entry in trainer.state.log_history if "eval_ndcg@10" in entry]
    assert len(logged) == 2
    assert trainer.state.best_metric == max(logged)
    tiny_bert.save_pretrained(str(tmp_path / "final"))
    assert "ndcg@10" in (tmp_path / "final" / "README.md").read_text(encoding="utf-8")


def test_needs_distinct_names(task: RetrievalSet) -> None:
    with pytest.raises(DataError, match="distinct names"):
        DevEvaluator([task, task])
    with pytest.raises(DataError, match="distinct names"):
        DevEvaluator([])
