"""BM25 runs."""

from __future__ import annotations

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.evaluation import bm25_run, score_run


def ocean_task() -> RetrievalSet:
    return RetrievalSet(
        name="ocean",
        query_ids=["q", "whale", "nothing"],
        queries=["deep ocean trench", "whale of the ocean", "zzz unseen"],
        doc_ids=["mountain", "trench", "whale", "empty"],
        docs=["a high mountain", "the deep ocean trench of the pacific", "blue whale song in the ocean", ""],
        qrels={"q": {"trench": 1}},
    )


def test_the_passage_with_the_query_words_comes_first() -> None:
    run = bm25_run(ocean_task(), 3)
    assert list(run["q"]) == ["trench", "whale"]  # the others share no word with the query
    assert score_run(run, ocean_task().qrels)["q"]["ndcg@10"] == 1.0


def test_identical_ids_are_removed() -> None:
    assert bm25_run(ocean_task(), 3)["whale"].keys() == {"trench"}


def test_unseen_words_find_nothing() -> None:
    assert bm25_run(ocean_task(), 3)["nothing"] == {}


def test_keeps_k_hits() -> None:
    assert list(bm25_run(ocean_task(), 1)["q"]) == ["trench"]
