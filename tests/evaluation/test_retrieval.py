"""From a model, or BM25, to per-query scores, and checkpoint selection in the trainer of sentence-transformers."""

from __future__ import annotations

import subprocess
import sys
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
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import DataError, MixfluenceError
from mixfluence.evaluation import score_rankings
from mixfluence.evaluation.retrieval import DevEvaluator, evaluate, rank_bm25, rank_embeddings, score_task

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("kind", ["static", "bert"])
def test_scores_equal_those_of_sentence_transformers(
    make_static: Callable[[], SentenceTransformer],
    tiny_bert: SentenceTransformer,
    task: RetrievalSet,
    kind: str,
    empty: bool,
) -> None:
    model = make_static() if kind == "static" else tiny_bert
    if empty:  # some published passages have no text
        qrels = {query: {**grades, "empty": 1} for query, grades in task.qrels.items()}
        task = replace(task, doc_ids=[*task.doc_ids, "empty"], docs=[*task.docs, ""], qrels=qrels)
    expected = InformationRetrievalEvaluator(
        dict(zip(task.query_ids, task.queries, strict=True)),
        dict(zip(task.doc_ids, task.docs, strict=True)),
        {query: set(grades) for query, grades in task.qrels.items()},
        name="tiny",
    )(model)
    scores = evaluate(model, task).summary()
    assert 0.1 < scores["ndcg@10"] < 0.95
    for measure in ("ndcg@10", "mrr@10", "map@100"):
        assert scores[measure] == pytest.approx(expected[f"tiny_cosine_{measure}"], abs=1e-6)


def test_every_query_is_reported(tiny_bert: SentenceTransformer, task: RetrievalSet) -> None:
    unjudged = replace(task, qrels={"q0": task.qrels["q0"]})
    evaluation = evaluate(tiny_bert, unjudged)
    assert list(evaluation.per_query) == list(task.query_ids)
    assert evaluation.per_query["q1"]["ndcg@10"] == 0.0


def test_prompts_of_the_task_override_those_of_the_model(
    make_static: Callable[[], SentenceTransformer], task: RetrievalSet
) -> None:
    model = make_static()
    bare = evaluate(model, task).per_query
    asked = replace(task, query_prompt="w1 w2 ", passage_prompt="w4 w5 w6 ")
    prompted = evaluate(model, asked).per_query
    assert prompted != bare
    model.prompts = {"query": "w1 w2 ", "document": "w4 w5 w6 "}
    assert evaluate(model, task).per_query == prompted
    assert evaluate(model, replace(task, query_prompt="", passage_prompt="")).per_query == bare


def test_modes_of_the_model_are_kept(tiny_bert: SentenceTransformer, task: RetrievalSet) -> None:
    tiny_bert.train()
    tiny_bert[1].eval()
    evaluate(tiny_bert, task)
    assert tiny_bert.training
    assert tiny_bert[0].training
    assert not tiny_bert[1].training


PASSAGES = torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.2, 0.0]])
QUERY = torch.tensor([[1.0, 0.0]])


def one_query(query_id: str, positive: str) -> RetrievalSet:
    """One query for which the embeddings above rank passages a, b and c in this order."""
    return RetrievalSet("one", [query_id], ["?"], ["a", "b", "c"], ["A", "B", "C"], {query_id: {positive: 1}})


@pytest.mark.parametrize(
    ("query_id", "positive", "score"),
    [
        pytest.param("a", "b", 1.0, id="own passage dropped, so b is first"),
        pytest.param("x", "b", 0.0, id="nothing to drop, and only one hit is kept"),
        pytest.param("a", "a", 1.0, id="own passage is the answer"),
    ],
)
def test_identical_ids(query_id: str, positive: str, score: float) -> None:
    task = one_query(query_id, positive)
    evaluation = score_task(task, rank_embeddings(task, QUERY, PASSAGES, k=1))
    assert evaluation.per_query[query_id]["ndcg@10"] == score


def test_embeddings_that_are_not_numbers_are_refused() -> None:
    passages = PASSAGES.clone()
    passages[2, 0] = torch.nan
    with pytest.raises(MixfluenceError, match=r"^one: "):
        rank_embeddings(one_query("x", "a"), QUERY, passages, k=1)


def two_sets(task: RetrievalSet) -> list[RetrievalSet]:
    return [task, replace(task.take_queries(range(5)), name="first")]


def test_returns_each_set_and_their_mean(make_static: Callable[[], SentenceTransformer], task: RetrievalSet) -> None:
    model = make_static()
    sets = two_sets(task)
    scores = DevEvaluator(sets)(model)
    for each in sets:
        assert scores[f"{each.name}_ndcg@10"] == pytest.approx(evaluate(model, each).mean("ndcg@10"))
    assert scores["ndcg@10"] == pytest.approx((scores["tiny_ndcg@10"] + scores["first_ndcg@10"]) / 2)


def test_selection_preserves_modes_and_random_states(tiny_bert: SentenceTransformer, task: RetrievalSet) -> None:
    tiny_bert.train()
    before = torch.get_rng_state()
    DevEvaluator(two_sets(task))(tiny_bert)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in tiny_bert.modules())


def test_the_trainer_selects_by_its_scores(tiny_bert: SentenceTransformer, task: RetrievalSet, tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match="dev sets"):
        DevEvaluator([task, task])
    with pytest.raises(DataError, match="dev sets"):
        DevEvaluator([])


def ocean_task() -> RetrievalSet:
    return RetrievalSet(
        name="ocean",
        query_ids=["q", "whale", "nothing"],
        queries=["deep ocean trench", "whale of the ocean", "zzz unseen"],
        doc_ids=["mountain", "trench", "whale", "empty"],
        docs=["a high mountain", "the deep ocean trench of the pacific", "blue whale song in the ocean", ""],
        qrels={"q": {"trench": 1}},
    )


def test_bm25_ranks_the_passage_with_the_query_words_first() -> None:
    rankings = rank_bm25(ocean_task(), 3)
    assert list(rankings["q"]) == ["trench", "whale"]  # the others share no word with the query
    assert score_rankings(rankings, ocean_task().qrels)["q"]["ndcg@10"] == 1.0


def test_bm25_removes_identical_ids() -> None:
    assert rank_bm25(ocean_task(), 3)["whale"].keys() == {"trench"}


def test_bm25_finds_nothing_for_unseen_words() -> None:
    assert rank_bm25(ocean_task(), 3)["nothing"] == {}


def test_bm25_keeps_k_hits() -> None:
    assert list(rank_bm25(ocean_task(), 1)["q"]) == ["trench"]


@pytest.mark.slow
def test_bm25s_is_not_imported_before_it_is_used() -> None:
    # If jax is installed, bm25s imports it, and jax reserves most of the GPU's memory.
    code = "import sys, mixfluence.experiment; print('bm25s' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
