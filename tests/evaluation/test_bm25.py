"""BM25 runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.evaluation import score_run
from mixfluence.evaluation.bm25 import bm25_run


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
    program = "import sys, mixfluence.experiment; print('bm25s' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.split() == ["False"]
