"""Mined hard negatives.

- Mined passages are those that the encoder or BM25 ranks high, never the positive, the query or what the margin skips.
- Rows with negatives of their own keep them; rows for which nothing is found stay.
- The result is cached by the content of rows and encoder, and what was dropped is noted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

from mixfluence.data import mining
from mixfluence.data.beir import BeirSource
from mixfluence.data.formats import read_rows
from mixfluence.data.mining import MiningSection, mine_negatives
from mixfluence.data.pairs import PairsSource
from mixfluence.data.rows import Row, RowSet
from mixfluence.errors import RecipeError
from tests.conftest import WORDS, row_set


@pytest.fixture
def encoder(tmp_path: Path, make_static: Callable[[], SentenceTransformer]) -> Path:
    folder = tmp_path / "encoder"
    make_static().save(str(folder))
    return folder


def pairs() -> list[Row]:
    return [Row(f"w{i}", f"w{i} w{(i + 1) % 40}") for i in range(40)]


def section(encoder: Path | str, **options: Any) -> MiningSection:
    return MiningSection(**{"mine": 3, "filter": str(encoder), "range": [0, 20]} | options)


def similarities(encoder: Path, rows: RowSet) -> dict[str, dict[str, float]]:
    model = SentenceTransformer(str(encoder), device="cpu")
    texts = list(rows.rows["positive"])
    scores = model.similarity(model.encode(list(rows.rows["anchor"])), model.encode(texts))
    return {a: dict(zip(texts, own.tolist(), strict=True)) for a, own in zip(rows.rows["anchor"], scores, strict=True)}


@pytest.mark.parametrize("margin", [None, 0.9])
def test_negatives_are_the_best_that_the_margin_allows(encoder: Path, margin: float | None) -> None:
    rows = row_set(*pairs())
    scores = similarities(encoder, rows)
    mined = mine_negatives(rows, [], section(encoder, margin=margin, range=[0, 60]))
    assert list(mined.rows["anchor"]) == list(rows.rows["anchor"])
    for row in mined.rows:
        own = scores[row["anchor"]]
        limit = own[row["positive"]] - abs(own[row["positive"]]) * (1 - margin) if margin else float("inf")
        allowed = [text for text, score in own.items() if text != row["positive"] and score <= limit]
        best = sorted(allowed, key=lambda text: -own[text])[:3]
        assert row["negatives"] == best
    assert any("Skipped" in note for note in mined.notes) == (margin is not None)


def test_the_first_ranks_are_left_out(encoder: Path) -> None:
    rows = row_set(*pairs())
    first = mine_negatives(rows, [], section(encoder, mine=6)).rows["negatives"]
    later = mine_negatives(rows, [], section(encoder, range=[3, 20])).rows["negatives"]
    assert [own[3:] for own in first] == list(later)


def test_bm25_finds_passages_with_words_of_the_query() -> None:
    anchors = [f"alpha{i} beta{i}" for i in range(10)]
    rows = row_set(
        *(Row(a, f"answer{i}") for i, a in enumerate(anchors)),
        *(Row(f"other{i}", a) for i, a in enumerate(f"alpha{i} gamma{i}" for i in range(10))),
        Row("nothing shared", "unrelated"),
    )
    mined = mine_negatives(rows, [], section("bm25", mine=1))
    found = {row["anchor"]: row["negatives"] for row in mined.rows}
    assert all(found[anchor] == [f"alpha{i} gamma{i}"] for i, anchor in enumerate(anchors))
    assert found["nothing shared"] == []
    assert "10 rows have 1, 0 have fewer, 11 have none" in mined.notes[-1]


def test_rows_keep_negatives_of_their_own(encoder: Path) -> None:
    rows = row_set(Row("w61", "w62", ["w63 w64"]), Row("w65", "w66", (), [0.5]), *pairs())
    mined = mine_negatives(rows, [], section(encoder)).rows
    assert mined[0]["negatives"] == ["w63 w64"]
    assert mined[1]["negatives"] == []
    assert all(len(row["negatives"]) == 3 for row in mined.select(range(2, len(mined))))


def test_a_query_that_is_a_passage_is_not_its_own_negative(encoder: Path) -> None:
    rows = row_set(*pairs(), Row("w50", "w1"), Row("w51", "w2"))
    for filter in (encoder, "bm25"):
        for row in mine_negatives(rows, [], section(filter, mine=5)).rows:
            assert row["anchor"] not in row["negatives"]


def test_results_are_cached_until_the_encoder_changes(
    encoder: Path, make_static: Callable[[], SentenceTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    mine = mining._dense

    def counted(*args: Any) -> Any:
        calls.append(args)
        return mine(*args)

    monkeypatch.setattr(mining, "_dense", counted)
    rows = row_set(*pairs())
    first = mine_negatives(rows, [], section(encoder))
    assert mine_negatives(rows, [], section(encoder)).fingerprint == first.fingerprint
    assert len(calls) == 1
    changed = make_static()
    with torch.no_grad():
        next(changed.parameters()).normal_()
    changed.save(str(encoder))
    assert mine_negatives(rows, [], section(encoder)).fingerprint != first.fingerprint
    assert len(calls) == 2


def test_vectors_of_an_interrupted_run_are_used_again(
    encoder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = row_set(*pairs())
    encoded: list[str] = []
    encode = SentenceTransformer.encode_document

    def until_interrupted(self: SentenceTransformer, texts: list[str], **options: Any) -> Any:
        if len(encoded) == 8:
            raise KeyboardInterrupt
        encoded.extend(texts)
        return encode(self, texts, **options)

    monkeypatch.setattr(mining, "TEXTS_PER_CHUNK", 4)
    monkeypatch.setattr(SentenceTransformer, "encode_document", until_interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine_negatives(rows, [], section(encoder))
    encoded.append("resumed")
    resumed = mine_negatives(rows, [], section(encoder))
    encoded.remove("resumed")
    assert sorted(encoded) == sorted(set(rows.rows["positive"])), "no passage is encoded twice"
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(tmp_path / "fresh"))
    assert list(mine_negatives(rows, [], section(encoder)).rows) == list(resumed.rows)


def test_the_whole_corpus_is_searched(tmp_path: Path, encoder: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"_id": w, "text": w}) for w in WORDS[:90]))
    (tmp_path / "queries.jsonl").write_text("\n".join(json.dumps({"_id": w, "text": f"{w} w9"}) for w in WORDS[:30]))
    (tmp_path / "qrels" / "train.tsv").write_text("\n".join(f"{w}\t{w}\t1" for w in WORDS[:30]))
    dense = read_rows(BeirSource(path=tmp_path, split="train", negatives=section(encoder))).rows
    assert all(len(row["negatives"]) == 3 for row in dense)
    assert {text for row in dense for text in row["negatives"]} - set(dense["positive"])


def test_a_number_still_limits_the_negatives_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"query": "q", "pos": "a", "neg": ["x", "y"]}))
    assert read_rows(PairsSource(path=path, negatives=1)).rows[0]["negatives"] == ["x"]
    mined = PairsSource(path=path, negatives=section("bm25"))
    assert read_rows(mined).rows[0]["negatives"] == ["x", "y"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"range": [10]}, "range"),
        ({"range": [10, 12]}, "range"),
        ({"filter": "bm25", "margin": 0.9}, "margin"),
        ({"margin": 1.5}, "margin"),
        ({"mine": 0}, "mine"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RecipeError, match=field):
        section("minilm", **options)
