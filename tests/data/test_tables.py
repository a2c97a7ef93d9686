"""Dialects of tables: detected and said, given as options, or refused; and arrays in JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixfluence.errors import DataError, RecipeError
from tests.data.readers import read_pairs


def read(path: Path, content: str | bytes, **options: Any) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    rows = read_pairs(path, **options)
    return list(zip(rows.rows["anchor"], rows.rows["positive"], strict=True)), rows.notes


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_detected_and_said(tmp_path: Path, delimiter: str) -> None:
    content = f"query{delimiter}answer\nwhat, now?{delimiter}this, then that\nr{delimiter}s\n"
    rows, notes = read(tmp_path / "t.csv", content)
    assert rows == [("what, now?", "this, then that"), ("r", "s")]
    assert len(notes) == 1
    assert repr(delimiter) in notes[0]
    assert read(tmp_path / "t.csv", content, delimiter=delimiter, quoting=True) == (rows, ())


def test_commas_in_a_header_do_not_hide_the_delimiter(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "t.csv", "question;answer, short\na;b\nc, d;e\n")
    assert rows == [("a", "b"), ("c, d", "e")]


def test_quotes_of_a_tsv_group_text_if_a_cell_is_quoted_as_a_whole(tmp_path: Path) -> None:
    content = 'query\tanswer\n"one\nline"\t"says ""hi"""\nr\ts\n'
    rows, notes = read(tmp_path / "t.tsv", content)
    assert rows == [("one\nline", 'says "hi"'), ("r", "s")]
    assert "quotes that group text" in notes[0]
    with pytest.raises(DataError, match=r"t\.tsv:2: found 1 columns, expected 2"):
        read(tmp_path / "t.tsv", content, quoting=False)


def test_other_quotes_of_a_tsv_are_text(tmp_path: Path) -> None:
    content = 'query\tanswer\n"a" is\tb"\n"unbalanced\ts\n'
    assert read(tmp_path / "t.tsv", content) == ([('"a" is', 'b"'), ('"unbalanced', "s")], ())


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_the_first_row_of_a_file_without_a_header_is_not_lost(tmp_path: Path, name: str) -> None:
    content = "how long?\ttwo days\nhow much?\tnothing\n".replace("\t", "\t" if name == "t.tsv" else ",")
    with pytest.raises(DataError, match=rf"{name}:1: .*'how long\?'.*header: false"):
        read(tmp_path / name, content)
    rows, _ = read(tmp_path / name, content, header=False)
    assert rows == [("how long?", "two days"), ("how much?", "nothing")]
    with pytest.raises(DataError, match=rf"{name}:2: .*'how long\?', 'two days'.*write columns: "):
        read(tmp_path / name, content, header=True)


def test_columns_that_are_given_imply_a_header(tmp_path: Path) -> None:
    columns = {"anchor": "Frage", "positive": "Antwort"}
    assert read(tmp_path / "t.csv", "Antwort,Frage\na,q\n", columns=columns)[0] == [("q", "a")]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_other_encodings_are_refused_until_they_are_given(tmp_path: Path, encoding: str) -> None:
    content = "query,answer\nwie läuft’s?,gut\n".replace("’", "'" if encoding == "latin-1" else "’").encode(encoding)
    # The one that is suggested reads the file: Latin-1 would read UTF-16 as well, but not as text.
    likely = "utf-16" if encoding == "utf-16" else "latin-1"
    with pytest.raises(DataError, match=rf"t\.csv:\d: not valid UTF-8 .*encoding: {likely}"):
        read(tmp_path / "t.csv", content)
    rows, _ = read(tmp_path / "t.csv", content, encoding=encoding)
    assert rows[0][0].startswith("wie läuft")
    with pytest.raises(RecipeError, match=r"encoding: .*'klingon'"):
        read(tmp_path / "t.csv", content, encoding="klingon")


def test_arrays_of_records_are_read(tmp_path: Path) -> None:
    records: list[Any] = [{"query": "q", "answer": "a"}, ["r", "b"]]
    for indent in (None, 2):
        rows, _ = read(tmp_path / "t.json", json.dumps(records, indent=indent))
        assert rows == [("q", "a"), ("r", "b")]
    assert read(tmp_path / "t.json", "\n".join(map(json.dumps, records)))[0] == rows, "lines under that name too"
    with pytest.raises(DataError, match=r"t\.json: record 2: .*'answer'"):
        read(tmp_path / "t.json", json.dumps([records[0], {"query": "q", "answer": 3}]))
    with pytest.raises(DataError, match=r"t\.json:1: not valid JSON"):
        read(tmp_path / "t.json", "[{]")
    with pytest.raises(DataError, match=r"t\.json: record 1: not valid JSON .*surrogates"):
        read(tmp_path / "t.json", '[["\\ud800", "a"]]')


def test_detection_sees_long_files_and_quotes_across_the_sample(tmp_path: Path) -> None:
    lines = [f'"q{i}\nmore";a{i}' for i in range(120)]
    rows, _ = read(tmp_path / "t.csv", "query;answer\n" + "\n".join(lines))
    assert len(rows) == 120
    assert rows[-1] == ("q119\nmore", "a119")
