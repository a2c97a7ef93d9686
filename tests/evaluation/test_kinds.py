"""Search with sparse and multi-vector encoders equals their own similarities; a cross-encoder ranks hits of BM25."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.encoders import Kind, load_encoder
from mixfluence.evaluation import retrieval
from mixfluence.evaluation.results import rank_queries
from mixfluence.evaluation.retrieval import evaluate, rank_bm25, rank_task, search

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["sparse", "multi-vector"])
def test_search_is_exact(
    tiny_bert_folder: Path, task: RetrievalSet, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several chunks of each.
    monkeypatch.setattr(retrieval, "SCORES_AT_ONCE", 600)
    monkeypatch.setattr(retrieval, "PASSAGES_AT_ONCE", 30)
    model = load_encoder(str(tiny_bert_folder), kind=kind, passage_length=16, device="cpu").train()
    scores, positions = search(model, task, 10, batch_size=16)
    assert model.training
    model.eval()
    queries = model.encode_query(list(task.queries))
    exact = model.similarity(queries, model.encode_document(list(task.docs))).to_dense()
    torch.testing.assert_close(scores, exact.topk(10).values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(exact.gather(1, positions), scores, rtol=1e-4, atol=1e-4)


def test_a_cross_encoder_ranks_the_hits_of_bm25(
    tiny_bert_folder: Path, task: RetrievalSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "RERANKED", 5)
    model = load_encoder(str(tiny_bert_folder), kind="reranker", device="cpu")
    found, lexical = rank_task(model, task, k=5), rank_bm25(task, k=6)
    for query, hits in found.items():
        assert len(hits) == 5
        assert len(set(hits) - set(lexical[query])) == max(0, 5 - len(lexical[query]))
        texts = [(task.queries[task.query_ids.index(query)], task.docs[task.doc_ids.index(doc)]) for doc in hits]
        expected = model.predict(texts, activation_fn=nn.Identity()).tolist()
        assert list(hits.values()) == pytest.approx(expected, abs=1e-4)
        assert list(hits.values()) == sorted(hits.values(), reverse=True)


@pytest.mark.parametrize("kind", ["sparse", "multi-vector", "reranker"])
def test_every_kind_is_scored(tiny_bert_folder: Path, task: RetrievalSet, kind: Kind) -> None:
    model = load_encoder(str(tiny_bert_folder), kind=kind, device="cpu")
    assert 0 <= evaluate(model, task).mean("ndcg@10") <= 1
    ranked = rank_queries(model, task)
    assert len(ranked) == len(task.queries)
    assert {query.among for query in ranked} == {80}
