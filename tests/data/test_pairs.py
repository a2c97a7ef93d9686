"""Every shape of pair and triplet, in every file format."""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixfluence.data.pairs import PairsSource
from mixfluence.errors import DataError, RecipeError
from tests.data.readers import read_pairs

Rows = list[tuple[str, str, list[str], list[float]]]


def write_jsonl(path: Path, *records: Any) -> Path:
    content = "\n".join(map(json.dumps, records)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path: Path, columns: dict[str, str | list[str]] | None = None) -> Rows:
    rows = read_pairs(path, columns).rows
    names = ("anchor", "positive", "negatives", "scores")
    return list(zip(*(list(rows[name]) for name in names), strict=True))


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (["a", "b"], [("a", "b", [], [])]),
        (["a", "p", "n"], [("a", "p", ["n"], [])]),
        (["a", "p", "n", "m"], [("a", "p", ["n", "m"], [])]),
        ({"set": ["a", "b", "c"]}, [("a", "b", [], []), ("b", "c", [], [])]),
        ({"texts": ["a", "b"]}, [("a", "b", [], [])]),
        ({"query": "q", "pos": ["a", "b"]}, [("q", "a", [], []), ("q", "b", [], [])]),
        ({"query": "q", "pos": ["a"], "neg": []}, [("q", "a", [], [])]),
        ({"query": "q", "pos": "a", "neg": None}, [("q", "a", [], [])]),
        ({"neg": ["n"], "pos": ["a", "b"], "query": "q"}, [("q", "a", ["n"], []), ("q", "b", ["n"], [])]),
        ({"response": "r", "context": "c"}, [("c", "r", [], [])]),
        ({"query": "t", "citation": ["a", "b"]}, [("t", "a", [], []), ("t", "b", [], [])]),
        ({"anchor": "a", "positive": "p", "n1": "n", "n2": ["m", "o"]}, [("a", "p", ["n", "m", "o"], [])]),
    ],
)
def test_every_shape_of_line(tmp_path: Path, name: str, record: Any, expected: Rows) -> None:
    rows = read_pairs(write_jsonl(tmp_path / name, record))
    assert read(tmp_path / name) == expected
    assert rows.notes == ()


def test_teacher_scores_follow_their_passages(tmp_path: Path) -> None:
    record = {
        "query": "q",
        "pos": ["a", "b"],
        "neg": ["n", "m"],
        "pos_scores": [4, 3.5],
        "neg_scores": [2, 1],
    }
    unscored = {"query": "r", "pos": ["a"], "neg": ["n"], "pos_scores": None, "neg_scores": None}
    path = write_jsonl(tmp_path / "scored.jsonl", record, unscored)
    assert read(path) == [
        ("q", "a", ["n", "m"], [4.0, 2.0, 1.0]),
        ("q", "b", ["n", "m"], [3.5, 2.0, 1.0]),
        ("r", "a", ["n"], []),
    ]


@pytest.mark.parametrize(
    ("scores", "named"),
    [
        ({"pos_scores": [1], "neg_scores": [1, 2]}, "found 2 scores in column 'neg_scores', expected 1"),
        ({"pos_scores": [1]}, ".*'neg_scores'"),
        ({"pos_scores": [], "neg_scores": [1, 2]}, ".*'pos_scores'"),
        ({"pos_scores": 1, "neg_scores": [1]}, ".*'pos_scores'"),
        ({"pos_scores": ["1"], "neg_scores": [1]}, "found '1' as a score"),
        ({"pos_scores": [float("nan")], "neg_scores": [1]}, "found nan as a score"),
        ({"pos_scores": [10**400], "neg_scores": [1]}, "found 1000.* as a score"),
    ],
)
def test_scores_that_do_not_fit_are_refused(tmp_path: Path, scores: dict[str, Any], named: str) -> None:
    path = write_jsonl(tmp_path / "scored.jsonl", ["a", "b"], {"query": "q", "pos": ["a"], "neg": ["n"], **scores})
    with pytest.raises(DataError, match=rf"scored\.jsonl:2: {named}"):
        read_pairs(path)


def test_an_empty_negative_goes_with_its_score(tmp_path: Path) -> None:
    record = {"query": "q", "pos": ["a"], "neg": [" ", "n"], "pos_scores": [3], "neg_scores": [2, 1]}
    path = write_jsonl(tmp_path / "scored.jsonl", record)
    assert read(path) == [("q", "a", ["n"], [3.0, 1.0])]
    assert read_pairs(path).notes == (f"{path}: left out 1 of 2 negatives without text, such as {path}:1",)


def test_extra_columns_are_ignored_with_one_note(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "more.jsonl", {"query": "q", "pos": ["p"], "prompt": "x", "topic": "y"}, ["a", "b"])
    assert read(path) == [("q", "p", [], []), ("a", "b", [], [])]
    assert read_pairs(path).notes == (f"{path}: ignored the columns 'prompt', 'topic'",)


def test_columns_keep_the_meaning_the_first_object_gave_them(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "order.jsonl", {"question": "q", "answer": "a"}, {"answer": "b", "question": "r"})
    assert read(path) == [("q", "a", [], []), ("r", "b", [], [])]
    path = write_jsonl(tmp_path / "other.jsonl", {"question": "q", "answer": "a"}, {"answer": "b", "topic": "t"})
    with pytest.raises(DataError, match=r"other\.jsonl:2: .*'topic'.*'question'"):
        read_pairs(path)


def test_a_column_map_overrides_the_shape(tmp_path: Path) -> None:
    record = {
        "id": 1,
        "a": "answer",
        "q": "question",
        "n1": "x",
        "n2": "y",
        "t": [3, 2, 1],
        "query": "-",
        "pos": ["-"],
    }
    path = write_jsonl(tmp_path / "mapped.jsonl", record)
    columns: dict[str, str | list[str]] = {
        "anchor": "q",
        "positive": "a",
        "negatives": ["n2", "n1"],
        "scores": "t",
    }
    assert read(path, columns) == [("question", "answer", ["y", "x"], [3.0, 2.0, 1.0])]
    assert read(path, {"anchor": "q", "positive": "a"}) == [("question", "answer", [], [])]
    assert read_pairs(path, columns).notes == ()


def test_a_mapped_list_column_holds_all_negatives(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "mapped.jsonl", {"q": "q", "a": "a", "negs": ["x", "y"]})
    assert read(path, {"anchor": "q", "positive": "a", "negatives": "negs"}) == [("q", "a", ["x", "y"], [])]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (
            {"anchor": "q", "positive": "answers"},
            r"p\.jsonl:1: no column 'answers', found 'q', 'answer'",
        ),
        ({"anchor": "q", "positive": "zzz"}, r"p\.jsonl:1: .*'zzz'"),
        ({"anchor": "q"}, "columns: .*'anchor'"),
        ({"anchor": "q", "positive": "answer", "negs": "n"}, "columns: .*'negs'"),
        (
            {"anchor": ["q", "answer"], "positive": "answer"},
            "columns: .*anchor",
        ),
    ],
)
def test_a_wrong_column_map_is_explained(tmp_path: Path, columns: Any, named: str) -> None:
    path = write_jsonl(tmp_path / "p.jsonl", {"q": "q", "answer": "a"})
    with pytest.raises(DataError, match=named):
        read_pairs(path, columns)


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (7, ""),
        (["a"], ""),
        (["a", 2], ".*the list"),
        ({"a": "x"}, ".*'a'"),
        ({"a": "x", "label": "y"}, ".*'a', 'label'"),
        ({}, ".*columns none"),
        ({"a": "x", "b": 3}, ".*'a', 'b'"),
        ({"query": "x", "answer": 3}, "found 3 in column 'answer', expected text"),
        ({"a": ["x"], "b": "y"}, ".*'a'"),
        ({"query": "x", "pos": [{}]}, ".*'pos'"),
        ({"set": ["a", True]}, ".*'set'"),
    ],
)
def test_a_wrong_record_names_file_line_and_column(tmp_path: Path, record: Any, named: str) -> None:
    path = write_jsonl(tmp_path / "wrong.jsonl", ["fine", "fine"], record)
    with pytest.raises(DataError, match=rf"wrong\.jsonl:2: {named}"):
        read_pairs(path)


@pytest.mark.parametrize(
    "empty",
    [
        ["", "b"],
        ["a", " "],
        ["a", None],
        {"query": "q", "pos": []},
        {"set": ["a"]},
        {"query": None, "pos": "p"},
    ],
)
def test_rows_without_text_are_noted_while_few_and_refused_when_many(tmp_path: Path, empty: Any) -> None:
    good = [["a", f"b{i}"] for i in range(19)]
    path = write_jsonl(tmp_path / "few.jsonl", empty, *good)
    rows = read_pairs(path)
    assert len(rows) == 19
    assert rows.notes == (
        f"{path}: left out 1 of 20 rows without text for the anchor or the positive, such as {path}:1",
    )
    path = write_jsonl(tmp_path / "many.jsonl", empty, *good[1:])
    with pytest.raises(DataError, match=r"many\.jsonl: .*1 of 19 rows"):
        read_pairs(path)


def test_a_positive_missing_but_scored_is_not_lost_silently(tmp_path: Path) -> None:
    record = {"query": "q", "pos": [], "neg": ["n"], "pos_scores": [], "neg_scores": [1]}
    with pytest.raises(DataError, match=r"scored\.jsonl: .*1 of 1 rows"):
        read_pairs(write_jsonl(tmp_path / "scored.jsonl", record))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz"])
def test_tables(tmp_path: Path, name: str) -> None:
    delimiter = "," if ".csv" in name else "\t"
    lines = [
        ["question", "answer", "topic", "negative"],
        ["q", 'say "hi"', "1", ""],
        [],
        ["r", "b", "0", "n"],
    ]
    content = "\ufeff" + "\r\n".join(delimiter.join(line) for line in lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    assert read(path) == [("q", 'say "hi"', [], []), ("r", "b", ["n"], [])]
    assert read(path, {"anchor": "answer", "positive": "question"})[0][:2] == ('say "hi"', "q")


def test_csv_quotes_group_text_over_lines_and_tsv_quotes_are_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'query,answer\r\n"one, two","first\r\nsecond ""line"""\r\n')
    assert read(path) == [("one, two", 'first\nsecond "line"', [], [])]
    path = tmp_path / "t.tsv"
    path.write_text('query\tanswer\n"quoted" start\t"unbalanced\nr\tb\n')
    assert read(path) == [('"quoted" start', '"unbalanced', [], []), ("r", "b", [], [])]


def test_long_csv_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"query,answer\nq,{'x' * 200_000}\n")
    assert len(read(path)[0][1]) == 200_000


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("", r"t\.csv:1: "),
        ("q,q\na,b\n", r"t\.csv:1: .*'q', 'q'"),
        ("query,answer\nx,y\nx,y,z\n", r"t\.csv:3: found 3 columns, expected 2 as in the first line"),
        ('q,a\nx,"y\n', r"t\.csv:2: "),
        ('q,a\nx,"y"z\n', r"t\.csv:2: "),
    ],
)
def test_a_bad_table_names_file_and_line(tmp_path: Path, content: str, place: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=place):
        read_pairs(path)


def test_parquet_files_with_other_columns(tmp_path: Path) -> None:
    tables: dict[str, dict[str, list[Any]]] = {
        "1.parquet": {"query": ["q"], "answer": ["a"]},
        "2.parquet": {"anchor": ["q"], "positive": ["p"], "negative": ["n"]},
        "3.parquet": {"query": ["t"], "citation": [["c", "d"]]},
        "4.parquet": {"premise": ["p"], "hypothesis": ["h"], "topic": [2]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / name)
    assert read(tmp_path) == [
        ("q", "a", [], []),
        ("q", "p", ["n"], []),
        ("t", "c", [], []),
        ("t", "d", [], []),
        ("p", "h", [], []),
    ]
    assert read_pairs(tmp_path).notes == (f"{tmp_path}: ignored the columns 'topic'",)


def test_bad_parquet_is_refused_with_its_name_and_row(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(DataError, match=r"bad\.parquet: not a valid Parquet file"):
        read_pairs(path)
    pq.write_table(pa.table({"query": ["a", "b"], "answer": ["x", "y"], "negative": [None, 3]}), path)
    with pytest.raises(DataError, match=r"bad\.parquet: row 2: .*'negative'"):
        read_pairs(path)


def test_a_folder_mixes_formats_in_the_order_of_names(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl.gz", ["b", "b"])
    (tmp_path / "a.csv").write_text("query,answer\na,a\n")
    (tmp_path / ".hidden").write_text("ignored")
    assert [row[0] for row in read(tmp_path)] == ["a", "b"]
    (tmp_path / "README.md").touch()
    with pytest.raises(DataError, match=r"README\.md: "):
        read_pairs(tmp_path)


def test_a_new_file_in_a_folder_is_noticed(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["a", "b"])
    assert len(read_pairs(tmp_path)) == 1
    write_jsonl(tmp_path / "b.jsonl", ["c", "d"])
    assert len(read_pairs(tmp_path)) == 2


def test_missing_and_empty_paths_are_refused(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(RecipeError, match=r"path: .*absent"):
        read_pairs(absent)
    planned = PairsSource.model_validate({"path": absent}, context={"files_may_be_missing": True})
    with pytest.raises(DataError, match="absent: no such file or folder"):
        planned.read_rows()
    with pytest.raises(DataError, match=f"{tmp_path.name}: the folder is empty"):
        read_pairs(tmp_path)
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(DataError, match=r"a\.jsonl: contains no training rows"):
        read_pairs(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["query", "pos", "neg", "set", "x"]), inner),
)
LINE = st.binary() | JSON.map(lambda value: json.dumps(value).encode()) | st.just(b'["a", "b"]')


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINE, max_size=5),
    name=st.sampled_from(["f.jsonl", "f.csv", "f.tsv", "f.jsonl.gz", "f.parquet"]),
)
def test_arbitrary_bytes_raise_nothing_but_data_errors(lines: list[bytes], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"\n".join(lines))
        with suppress(DataError):
            assert len(read_pairs(path)) > 0


def test_one_row_per_record_takes_the_first_positive_with_its_score(tmp_path: Path) -> None:
    records = [
        {"query": "q", "pos": ["", "b", "c"], "neg": ["n"], "pos_scores": [1, 2, 3], "neg_scores": [0]},
        {"query": "r", "pos": ["d"], "neg": []},
        ["s", "e"],
    ]
    rows = read_pairs(write_jsonl(tmp_path / "a.jsonl", *records), per="query").rows
    assert list(rows["positive"]) == ["b", "d", "e"]
    assert list(rows["scores"]) == [[2, 0], [], []]


@pytest.mark.parametrize(("most", "expected"), [(0, []), (1, ["m"]), (3, ["m", "n"])])
def test_only_so_many_negatives_are_kept_with_their_scores(tmp_path: Path, most: int, expected: list[str]) -> None:
    record = {"query": "q", "pos": ["a"], "neg": [" ", "m", "n"], "pos_scores": [9], "neg_scores": [1, 2, 3]}
    path = write_jsonl(tmp_path / "a.jsonl", record, ["q", "a", " ", "m", "n"])
    scored, plain = read_pairs(path, negatives=most).rows
    assert scored["negatives"] == plain["negatives"] == expected
    assert scored["scores"] == [9, 2, 3][: 1 + len(expected)]
    assert [len(row) for row in read_pairs(path).rows["negatives"]] == [2, 2]


def test_texts_may_stand_beside_other_columns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"texts": ["title", "body"], "tags": ["x"], "meta": {"id": 1}})
    rows = read_pairs(path)
    assert [(row["anchor"], row["positive"]) for row in rows.rows] == [("title", "body")]
    assert rows.notes == (f"{path}: ignored the columns 'meta', 'tags'",)


def test_the_five_shapes_of_the_dump_may_be_in_one_folder(tmp_path: Path) -> None:
    shapes = {
        "AllNLI.jsonl.gz": ["anchor", "positive", "negative"],
        "NQ-train_pairs.jsonl.gz": ["question", "answer"],
        "WikiAnswers.jsonl.gz": {"set": ["a", "b", "c"]},
        "amazon-qa.jsonl.gz": {"query": "q", "pos": ["x", "y"]},
        "msmarco-triplets.jsonl.gz": {"query": "m", "pos": ["p"], "neg": ["n1", "n2"]},
    }
    for name, record in shapes.items():
        write_jsonl(tmp_path / name, record)
    rows = read_pairs(tmp_path, negatives=1)
    assert [(row["anchor"], row["positive"], len(row["negatives"])) for row in rows.rows] == [
        ("anchor", "positive", 1),
        ("question", "answer", 0),
        ("a", "b", 0),
        ("b", "c", 0),
        ("q", "x", 0),
        ("q", "y", 0),
        ("m", "p", 1),
    ]
    assert len(read_pairs(tmp_path, per="query")) == 6
