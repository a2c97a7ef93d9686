"""Reference rows: zero-shot, BM25 and their fusion with a trained model, computed once for all runs beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.evaluation import references
from mixfluence.evaluation.references import References
from mixfluence.evaluation.results import read_evaluation
from mixfluence.evaluation.retrieval import evaluate, fuse, rank_bm25, rank_task, score_task
from mixfluence.recipe import Recipe

ROWS = ("zero-shot", "bm25", "fusion")


def recipe(folder: Path) -> Recipe:
    data = {
        "name": "x",
        "output": folder,
        "model": {"name": "minilm"},
        "train": {"a": {"format": "pairs", "path": "a"}},
        "training": {"steps": 1, "batch_size": 2},
    }
    return Recipe.model_validate(data, context={"files_may_be_missing": True})


def test_references_are_scored_and_kept_for_other_runs(
    make_static: Callable[[], SentenceTransformer], task: RetrievalSet, tmp_path: Path
) -> None:
    loaded: list[int] = []

    def load() -> SentenceTransformer:
        loaded.append(1)
        return make_static()

    trained = rank_task(make_static(), task)
    for seed in range(2):
        References(recipe(tmp_path / str(seed)), load).write(task, trained)
    assert len(loaded) == 1
    lexical = rank_bm25(task)
    expected = {
        "zero-shot": evaluate(make_static(), task),
        "bm25": score_task(task, lexical),
        "fusion": score_task(task, fuse(trained, lexical)),
    }
    for name, evaluation in expected.items():
        for seed in range(2):
            assert read_evaluation(tmp_path / str(seed) / "references" / name / "tiny.jsonl") == evaluation
    # A damaged file is computed again.
    for path in (tmp_path / ".references").iterdir():
        path.write_text("{", encoding="utf-8")
    References(recipe(tmp_path / "2"), load).write(task, trained)
    assert len(loaded) == 2


def test_what_cannot_be_scored_costs_no_run(
    make_static: Callable[[], SentenceTransformer],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wordless = RetrievalSet("wordless", ["q"], ["?"], ["a", "b"], ["!", "."], {"q": {"a": 1}})
    References(recipe(tmp_path / "run"), make_static).write(wordless, {"q": {"a": 1.0}})
    assert "wordless: no passage contains a word, so BM25 finds nothing" in caplog.text
    scores = {name: read_evaluation(tmp_path / "run" / "references" / name / "wordless.jsonl") for name in ROWS}
    assert scores["bm25"].summary()["ndcg@10"] == 0
    assert scores["fusion"].summary()["ndcg@10"] == 1
    monkeypatch.setattr(references, "MAX_PASSAGES", 1)
    with caplog.at_level(logging.INFO, logger="mixfluence"):
        References(recipe(tmp_path / "other"), make_static).write(wordless, {"q": {"a": 1.0}})
    assert caplog.text.count("wordless: no reference rows") >= 1
    assert not (tmp_path / "other").exists()


def test_a_reference_that_fails_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(task: RetrievalSet) -> references.Rankings:
        raise ValueError("out of words")

    task = RetrievalSet("failing", ["q"], ["one"], ["a"], ["two"], {"q": {"a": 1}})
    references.write_references(tmp_path, task, {"q": {"a": 1.0}}, lexical=fail)
    assert "out of words" in caplog.text
    assert not list(tmp_path.iterdir())


def test_fusion_adds_reciprocal_ranks() -> None:
    fused = fuse({"q": {"a": 0.9, "b": 0.5}, "r": {}}, {"q": {"b": 12.0, "c": 3.0}})
    assert fused["q"] == pytest.approx({"a": 1 / 61, "b": 1 / 62 + 1 / 61, "c": 1 / 62})
    assert max(fused["q"], key=lambda doc: fused["q"][doc]) == "b"
    assert fused["r"] == {}
