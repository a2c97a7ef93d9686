"""BM25 runs."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.evaluation import score_run
from mixfluence.evaluation.bm25 import bm25_run
from tests.forked import server


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


@pytest.mark.slow
def test_bm25s_is_not_imported_before_it_is_used() -> None:
    # Where jax is installed, importing bm25s starts it, and jax claims most of the GPU's memory.
    with ProcessPoolExecutor(1, mp_context=server) as new:
        assert new.submit(is_imported, "mixfluence.experiment").result()
        assert not new.submit(is_imported, "bm25s").result()


def is_imported(module: str) -> bool:
    return module in sys.modules
