"""What `mixfluence data`, `plan` and the start of a run show of a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.data import reading
from mixfluence.data.reading import preview, token_counter
from mixfluence.data.rows import Row
from mixfluence.errors import DataError, RecipeError
from tests.conftest import row_set


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.csv"
    rows = [f"{i},how long does it take {i % 30}?,two days,de" for i in range(40)]
    path.write_text("\n".join(["ticket_id,question,answer,lang", *rows, "41,,nothing,de"]), encoding="utf-8")
    return path


def test_a_file_is_shown_with_roles_lengths_duplicates_and_what_was_left_out(tickets: Path) -> None:
    head, anchor, positive, *notes = run(tickets).splitlines()
    assert head == "tickets.csv: 40 rows, 10 duplicates; words: anchor 6 (up to 6), positive 2 (up to 2)"
    assert anchor == "  anchor (question): 'how long does it take 0?'"
    assert positive == "  positive (answer): 'two days'"
    assert "left out 1 of 41 rows" in notes[0]
    assert "'lang', 'ticket_id'" in notes[1]


def test_options_of_a_file_are_words_with_an_equals_sign(tickets: Path) -> None:
    shown = run(tickets, "columns.anchor=answer", "columns.positive=lang", "columns.negatives=[question]")
    assert "  anchor (answer): 'two days'" in shown
    assert "  negatives (question): 'how long" in shown
    with pytest.raises(DataError, match=r"tickets\.csv:2: no column 'nowhere'"):
        run(tickets, "columns.anchor=nowhere", "columns.positive=lang")


def test_a_folder_is_read_in_its_layout(tmp_path: Path) -> None:
    folder = tmp_path / "faq"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d", "title": "", "text": "two days"}', encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "how long?"}', encoding="utf-8")
    for split in ("train", "dev"):
        (folder / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n", encoding="utf-8")
    assert run(folder).startswith("faq: 1 row,")
    assert run(folder, "split=dev").startswith("faq: 1 row,")
    with pytest.raises(DataError, match="'tests'"):
        run(folder, "split=tests")


def test_errors_of_options_name_the_file_and_the_option(tickets: Path) -> None:
    for option, place in {"encoding=latinx": "encoding", "delimeter=;": "delimiter", "format=bier": "format"}.items():
        with pytest.raises(RecipeError) as error:
            run(tickets, option)
        assert str(error.value).startswith(f"{tickets}: ")
        assert place in str(error.value)


def test_a_recipe_shows_all_its_sources_and_what_is_missing(tickets: Path, tmp_path: Path) -> None:
    sources = {"faq": {"path": str(tickets)}, "gone": {"path": str(tmp_path / "gone.csv")}}
    recipe = {"name": "mine", "model": {"name": "wordllama"}, "train": sources, "dev": {"own": {"path": str(tickets)}}}
    recipe |= {
        "defaults": {"format": "pairs"},
        "strategy": {"name": "static"},
        "training": {"steps": 1, "batch_size": 8, "learning_rate": 0.01},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    shown = run(tmp_path / "mine.yaml")
    assert "faq: 40 rows, 10 duplicates; tokens: anchor" in shown
    assert "dev own: 40 rows" in shown
    assert f"gone: not on this machine ({tmp_path / 'gone.csv'})" in shown


def test_tokens_are_counted_as_the_model_makes_them(make_static: Callable[[], SentenceTransformer]) -> None:
    rows = row_set(Row("w1 w2", "w3", ["w4", "w5"], [1, 2, 3]), Row("w1", "w3 w4 w5"))
    lines = list(preview("toy", rows, token_counter(make_static())))
    assert lines[0] == "toy: 2 rows, 0 duplicates; tokens: anchor 2 (up to 2), positive 2 (up to 3)"
    assert lines[3:] == ["  negatives: 'w4' and 1 more", "  scores: [1.0, 2.0, 3.0]"]


def test_large_datasets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LENGTH_ROWS", 2)
    monkeypatch.setattr(reading, "DUPLICATE_BATCHES", 1)
    monkeypatch.setattr(reading, "ROWS_PER_BATCH", 3)
    rows = row_set(*(Row("same", "w " * (i + 1)) for i in range(5)), Row("same", "w "))
    head = next(preview("toy", rows))
    assert head == "toy: 6 rows, 0 duplicates among the first 3; words: anchor 1 (up to 1), positive 2 (up to 4)"


def test_control_characters_do_not_reach_the_terminal() -> None:
    lines = list(preview("toy", row_set(Row("\x1b[2Jgone", "\r\n"))))
    assert not any(ord(char) < 32 for line in lines for char in line)
