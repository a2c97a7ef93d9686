"""Roles of columns: found by name, given by the user, or refused with the line to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from mixfluence.data.columns import find_roles
from mixfluence.data.mixture import Mixture
from mixfluence.errors import DataError
from tests.data.readers import read_pairs


@pytest.mark.parametrize(
    ("columns", "anchor", "positive", "negatives"),
    [
        (["positive", "anchor"], "anchor", "positive", []),
        (["query_id", "query", "passage"], "query", "passage", []),
        (["Question", "Answer"], "Question", "Answer", []),
        (["sentence1", "sentence2"], "sentence1", "sentence2", []),
        (["lang", "document", "question"], "question", "document", []),
        (["negative_2", "anchor", "positive", "negative_1"], "anchor", "positive", ["negative_2", "negative_1"]),
        (["anchor", "positive", "answer", "title"], "anchor", "positive", []),
        (["response", "context"], "context", "response", []),
        (["question", "context", "answer"], "question", "answer", []),
        (["query", "text"], "query", "text", []),
        (["text", "query", "docid"], "query", "text", []),
    ],
)
def test_names_decide(columns: list[str], anchor: str, positive: str, negatives: list[str]) -> None:
    roles = find_roles(dict.fromkeys(columns, "a text"), "here", "columns: {}")
    assert (roles.anchor, roles.positive, list(roles.negatives)) == (anchor, positive, negatives)


@pytest.mark.parametrize(
    "columns",
    [
        ["ticket_id", "Kundenfrage", "Antwort Text", "lang"],
        ["query", "question", "answer"],
        ["query", "passage", "document"],
        ["title", "body", "summary"],
        ["Antwort", "Frage"],
        ["title", "abstract", "_id"],
        ["query"],
        ["id", "query"],
        ["anchor", "negative"],
    ],
)
def test_ambiguous_columns_are_refused(columns: list[str]) -> None:
    with pytest.raises(DataError, match=rf"^here: .*'{columns[0]}'.*write columns: "):
        find_roles(dict.fromkeys(columns, "a text"), "here", "columns: {}")


def test_the_line_to_write_is_one_that_works(tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_text("ticket_id,Kundenfrage,Antwort Text,lang\n17,Wie lange?,Zwei Tage.,de\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"tickets\.csv:2: ") as error:
        read_pairs(path)
    shown = json.loads(str(error.value).partition("write columns: ")[2])
    rows = read_pairs(path, shown)
    assert rows.rows[0]["anchor"] == "Wie lange?"
    assert rows.rows[0]["positive"] == "Zwei Tage."
    assert rows.rows[0]["negatives"] == []
    assert rows.columns == {"anchor": ["Kundenfrage"], "positive": ["Antwort Text"], "negatives": [], "scores": []}
    assert read_pairs(path, shown).columns == rows.columns, "also from the cache"


@pytest.mark.parametrize("label", ["label", "score"])
def test_labelled_pairs_are_refused_unless_columns_are_given(tmp_path: Path, label: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"sentence1": "a", "sentence2": "b", label: 0}), encoding="utf-8")
    with pytest.raises(DataError, match=rf"pairs\.jsonl:1: .*'{label}'.*write columns: "):
        read_pairs(path)
    assert len(read_pairs(path, {"anchor": "sentence1", "positive": "sentence2"})) == 1


def test_teacher_scores_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"query": "q", "positive": "p", "negatives": ["n"], "scores": [2, 1]}))
    assert read_pairs(path).rows[0]["scores"] == [2.0, 1.0]


def test_a_mixture_takes_columns_per_dataset() -> None:
    odd: dict[str, Any] = {"a": ["a"], "b": ["b"], "c": ["c"]}
    with pytest.raises(DataError, match=r"odd: row 1: .*write columns=\{\"odd\": \{\"anchor\": \"a\""):
        Mixture({"odd": Dataset.from_dict(odd)})
    columns = {"odd": {"anchor": "c", "positive": "a", "negatives": "b"}}
    mixture = Mixture(
        {"odd": Dataset.from_dict(odd), "plain": Dataset.from_dict({"query": ["q"], "answer": ["p"]})}, columns
    )
    assert mixture["odd"].rows[0]["negatives"] == ["b"]
    assert mixture["odd"].rows[0]["anchor"] == "c"


def test_rows_without_text_are_said_to_be_dropped(caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"t{i}" for i in range(40)]
    Mixture({"faq": Dataset.from_dict({"query": [" ", *texts[1:]], "answer": texts})})
    assert "faq: left out 1 of 40 rows" in caplog.text
