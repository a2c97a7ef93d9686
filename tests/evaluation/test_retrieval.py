"""From a model to per-query scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import MixfluenceError
from mixfluence.evaluation.retrieval import evaluate, score_embeddings


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("kind", ["static", "bert"])
def test_agrees_with_the_host(
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
    host = InformationRetrievalEvaluator(
        dict(zip(task.query_ids, task.queries, strict=True)),
        dict(zip(task.doc_ids, task.docs, strict=True)),
        {query: set(grades) for query, grades in task.qrels.items()},
        name="tiny",
    )(model)
    scores = evaluate(model, task).summary()
    assert 0.1 < scores["ndcg@10"] < 0.95
    for measure in ("ndcg@10", "mrr@10", "map@100"):
        assert scores[measure] == pytest.approx(host[f"tiny_cosine_{measure}"], abs=1e-6)


def test_every_query_is_reported(tiny_bert: SentenceTransformer, task: RetrievalSet) -> None:
    unjudged = replace(task, qrels={"q0": task.qrels["q0"]})
    evaluation = evaluate(tiny_bert, unjudged)
    assert list(evaluation.per_query) == list(task.query_ids)
    assert evaluation.per_query["q1"]["ndcg@10"] == 0.0
    assert set(evaluation.seconds) == {"encode", "search", "score"}


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
    ("query_id", "positive", "removed", "score"),
    [
        pytest.param("a", "b", 1, 1.0, id="own passage dropped, so b is first"),
        pytest.param("x", "b", 0, 0.0, id="nothing to drop, and only one hit is kept"),
        pytest.param("a", "a", 0, 1.0, id="own passage is the answer"),
    ],
)
def test_identical_ids(query_id: str, positive: str, removed: int, score: float) -> None:
    evaluation = score_embeddings(one_query(query_id, positive), QUERY, PASSAGES, k=1)
    assert evaluation.removed_identical == removed
    assert evaluation.per_query[query_id]["ndcg@10"] == score


def test_wrong_number_of_embeddings_is_refused() -> None:
    with pytest.raises(ValueError, match="1 queries and 3 passages, got 1 and 4"):
        score_embeddings(one_query("x", "a"), QUERY, torch.ones(4, 2))


def test_embeddings_that_are_not_numbers_are_refused() -> None:
    passages = PASSAGES.clone()
    passages[2, 0] = torch.nan
    with pytest.raises(MixfluenceError, match="one: the embeddings are not finite"):
        score_embeddings(one_query("x", "a"), QUERY, passages, k=1)
