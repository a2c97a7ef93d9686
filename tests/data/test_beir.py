"""The BEIR layout with every quirk published sets have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixfluence.errors import DataError
from tests.data.readers import read_beir_rows, read_beir_task

MakeFolder = Callable[..., Path]

# Enough good judgements that one bad one among them stays under the share that may be left out.
MANY = [(f"m{i}", f"n{i}", 1) for i in range(30)]
MANY_QUERIES = [{"_id": query, "text": f"query {query}"} for query, _, _ in MANY]
MANY_PASSAGES = [{"_id": passage, "title": "", "text": f"passage {passage}"} for _, passage, _ in MANY]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Return a function that writes a BEIR folder and returns its path."""

    def make(
        passages: list[Any],
        queries: list[Any],
        qrels: str | list[tuple[str, str, int]],
        split: str = "train",
        zipped: bool = False,
        newline: str = "\n",
    ) -> Path:
        if isinstance(qrels, list):
            qrels = "\n".join(["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in qrels)])
        texts = {
            "corpus.jsonl": "\n".join(map(json.dumps, passages)),
            "queries.jsonl": "\n".join(map(json.dumps, queries)),
            f"qrels/{split}.tsv": qrels,
        }
        (tmp_path / "qrels").mkdir(exist_ok=True)
        for name, text in texts.items():
            content = text.replace("\n", newline).encode()
            path = tmp_path / (f"{name}.gz" if zipped else name)
            path.write_bytes(gzip.compress(content) if zipped else content)
        return tmp_path

    return make


def pairs(folder: Path, **options: Any) -> list[tuple[str, str]]:
    rows = read_beir_rows(folder, "train", **options).rows
    assert all(
        not negatives and not scores for negatives, scores in zip(rows["negatives"], rows["scores"], strict=True)
    )
    return list(zip(rows["anchor"], rows["positive"], strict=True))


PASSAGES: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Title", "text": " one "},
    {"_id": "d2", "title": "", "text": "two"},
    {"_id": "d3", "text": "three"},
    {"_id": "d4", "title": None, "text": "four"},
]
QUERIES: list[dict[str, Any]] = [
    {"_id": "q1", "text": " first? "},
    {"_id": "q2", "text": "second?"},
    {"_id": "q3", "text": "third?"},
]
QRELS = [("q2", "d2", 1), ("q1", "d1", 1), ("q2", "d3", 2), ("q1", "d3", 0), ("q2", "d4", 2), ("q3", "d4", 0)]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_rows_per_query_and_per_pair(make_folder: MakeFolder, zipped: bool, newline: str) -> None:
    folder = make_folder(PASSAGES, QUERIES, QRELS, zipped=zipped, newline=newline)
    assert pairs(folder) == [("second?", "three"), ("first?", "Title  one")]
    assert pairs(folder, per="pair") == [
        ("second?", "two"),
        ("first?", "Title  one"),
        ("second?", "three"),
        ("second?", "four"),
    ]
    assert read_beir_rows(folder, "train").notes == ()


def test_metadata_is_no_part_of_a_text(make_folder: MakeFolder) -> None:
    bare = pairs(make_folder(PASSAGES, QUERIES, QRELS))
    metadata = {"metadata": {"tags": ["a", 1]}}
    passages, queries = ([record | metadata for record in records] for records in (PASSAGES, QUERIES))
    assert pairs(make_folder(passages, queries, QRELS)) == bare


def test_last_duplicate_judgement_wins_in_the_place_of_the_first(make_folder: MakeFolder) -> None:
    qrels = [("q1", "d1", 1), ("q2", "d2", 1), ("q1", "d1", 0), ("q2", "d3", 1), ("q2", "d2", 2)]
    folder = make_folder(PASSAGES, QUERIES, qrels)
    assert pairs(folder, per="pair") == [("second?", "two"), ("second?", "three")]
    assert pairs(folder) == [("second?", "two")]


@pytest.mark.parametrize(
    "qrels",
    [
        "query-id\tcorpus-id\tscore\nq1\td2\t1\nq2\td3\t2",
        "q1\td2\t1\nq2\td3\t2\n\n",
        "q1\td2\t1.0\nq2\td3\t2.0",
        "q1\t0\td2\t1\nq2\t0\td3\t2",
        "q1 Q0 d2 1\nq2  Q0  d3  2",
        'q1\t"d2"\t1\nq2\td3\t2',
    ],
    ids=["header", "no header", "float", "trec tabs", "trec spaces", "quoted id"],
)
def test_forms_of_judgements_read_the_same(make_folder: MakeFolder, qrels: str) -> None:
    assert pairs(make_folder(PASSAGES, QUERIES, qrels)) == [("first?", "two"), ("second?", "three")]


@pytest.mark.parametrize(
    ("qrels", "place"),
    [
        ("q1\td2\t1\nq2\td3\thigh", r"train\.tsv:2: found the score 'high', expected a whole number"),
        ("q1\td2\t1\nq2\td3\t0.5", r"train\.tsv:2: .*'0.5'"),
        ("q1\td2\t1\nq2\td3", r"train\.tsv:2: .*2 columns"),
        ("q1\td2\t1\nq2\td3\ra\t1", r"train\.tsv:2: "),
    ],
)
def test_a_bad_judgement_names_file_and_line(make_folder: MakeFolder, qrels: str, place: str) -> None:
    with pytest.raises(DataError, match=place):
        read_beir_rows(make_folder(PASSAGES, QUERIES, qrels), "train")


def test_unknown_ids_are_noted_while_few_and_refused_when_many(make_folder: MakeFolder) -> None:
    rows = read_beir_rows(make_folder(MANY_PASSAGES, MANY_QUERIES, [("PLAIN-2", "n1", 1), *MANY]), "train")
    assert len(rows) == 30
    (note,) = rows.notes
    assert "1 of 31 judgements" in note
    assert "'PLAIN-2'" in note
    folder = make_folder(MANY_PASSAGES, MANY_QUERIES, [("PLAIN-2", "n1", 1), *MANY, ("m0", "gone", 1)])
    with pytest.raises(DataError, match=r"train\.tsv: .*query 'PLAIN-2', passage 'gone'"):
        read_beir_rows(folder, "train")


def test_empty_queries_and_positives_are_left_out_with_notes(make_folder: MakeFolder) -> None:
    passages = [*PASSAGES, {"_id": "d5", "title": " ", "text": ""}]
    queries = [*QUERIES, {"_id": "q4", "text": " \n"}]
    qrels = [("q1", "d5", 2), ("q1", "d1", 1), ("q2", "d5", 1), ("q4", "d1", 1)]
    rows = read_beir_rows(make_folder(passages, queries, qrels), "train")
    assert list(rows.rows["positive"]) == ["Title  one"]
    assert any("1 of 3 queries" in note and "'q4'" in note for note in rows.notes)
    assert any("1 of 2 judged passages" in note and "'d5'" in note for note in rows.notes)


def test_ids_that_are_numbers_are_read_as_text(make_folder: MakeFolder) -> None:
    folder = make_folder([{"_id": 7, "text": "seven"}], [{"_id": 7, "text": "7?"}], [("7", "7", 1)])
    assert pairs(folder) == [("7?", "seven")]
    task = read_beir_task(folder, "train", "numbers")
    assert (task.query_ids, task.doc_ids, task.qrels) == (["7"], ["7"], {"7": {"7": 1}})


@pytest.mark.parametrize(
    ("passage", "place"),
    [
        (["d1"], r"corpus\.jsonl:2: "),
        ({"text": "x"}, r"corpus\.jsonl:2: .*'_id'"),
        ({"_id": True, "text": "x"}, r"corpus\.jsonl:2: .*'_id'"),
        ({"_id": "d2"}, r"corpus\.jsonl:2: expected 'text' among its keys"),
        ({"_id": "d2", "title": 3, "text": "x"}, r"corpus\.jsonl:2: .*'title'"),
        ({"_id": "d1", "text": "other"}, r"corpus\.jsonl:2: .*'d1'"),
    ],
)
def test_a_bad_passage_names_file_line_and_field(make_folder: MakeFolder, passage: Any, place: str) -> None:
    folder = make_folder([{"_id": "d1", "text": "one"}, passage], QUERIES, [("q1", "d1", 1), ("q1", "d2", 1)])
    for read in (lambda: read_beir_rows(folder, "train"), lambda: read_beir_task(folder, "train", "x")):
        with pytest.raises(DataError, match=place):
            read()


def test_a_missing_split_lists_those_that_are_there(make_folder: MakeFolder) -> None:
    make_folder(PASSAGES, QUERIES, QRELS, split="test", zipped=True)
    folder = make_folder(PASSAGES, QUERIES, QRELS, split="dev")
    with pytest.raises(DataError, match=r"qrels: .*'train'.*dev, test"):
        read_beir_rows(folder, "train")
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").unlink()
    with pytest.raises(DataError, match=r"corpus\.jsonl"):
        read_beir_rows(folder, "dev")


def test_a_split_without_positives_is_refused(make_folder: MakeFolder) -> None:
    with pytest.raises(DataError, match=r"train\.tsv: contains no training rows"):
        read_beir_rows(make_folder(PASSAGES, QUERIES, [("q1", "d1", 0)]), "train")


def test_retrieval_keeps_the_corpus_whole_and_zero_grades(make_folder: MakeFolder) -> None:
    passages = [{"_id": "d0", "title": "", "text": " "}, *PASSAGES]
    task = read_beir_task(make_folder(passages, QUERIES, QRELS), "train", "tiny")
    assert task.name == "tiny"
    assert (task.query_ids, task.queries) == (["q2", "q1", "q3"], ["second?", "first?", "third?"])
    assert task.doc_ids == ["d0", "d1", "d2", "d3", "d4"]
    assert task.docs == ["", "Title  one", "two", "three", "four"]
    assert task.qrels == {"q2": {"d2": 1, "d3": 2, "d4": 2}, "q1": {"d1": 1, "d3": 0}, "q3": {"d4": 0}}


def test_retrieval_counts_a_query_whose_passages_are_unknown(make_folder: MakeFolder) -> None:
    folder = make_folder(MANY_PASSAGES, [*MANY_QUERIES, *QUERIES], [*MANY, ("q1", "gone", 1)])
    task = read_beir_task(folder, "train", "many")
    assert task.query_ids[-1] == "q1"
    assert task.qrels["q1"] == {}
    assert len(task.query_ids) == 31
    (note,) = task.notes
    assert note.startswith("many: ")
    assert "1 of 31 judgements" in note
    with pytest.raises(DataError, match=r"train\.tsv: .*'gone'"):
        read_beir_task(make_folder(PASSAGES, QUERIES, [("q1", "gone", 1)]), "train", "few")


def test_grades_are_bounded(make_folder: MakeFolder) -> None:
    task = read_beir_task(make_folder(PASSAGES, QUERIES, "q1\td1\t1\nq1\td2\t-2\nq2\td2\t-3"), "train", "graded")
    assert task.qrels == {"q1": {"d1": 1, "d2": 0}, "q2": {"d2": 0}}
    folder = make_folder(PASSAGES, QUERIES, "q1\td1\t1\nq1\td2\t2147483647")
    with pytest.raises(DataError, match=r"train\.tsv:2: .*2147483647"):
        read_beir_task(folder, "train", "graded")
    with pytest.raises(DataError, match=r"graded: .*-1 .*'q1'"):
        replace(task, qrels={"q1": {"d1": -1}})


@pytest.mark.parametrize("first", ["q1\td1\t0.5", "q1\td1\tone", "q1\td1\t"])
def test_a_bad_first_judgement_is_no_header(make_folder: MakeFolder, first: str) -> None:
    with pytest.raises(DataError, match=r"train\.tsv:1: .*score"):
        read_beir_rows(make_folder(PASSAGES, QUERIES, f"{first}\nq2\td2\t1"), "train")


@pytest.mark.parametrize("header", ["query-id\tcorpus-id\tscore", "qid\tQ0\tdocid\trelevance", "a\tb\tRel"])
def test_headers_of_judgements(make_folder: MakeFolder, header: str) -> None:
    assert len(read_beir_rows(make_folder(PASSAGES, QUERIES, f"{header}\nq2\td2\t1"), "train")) == 1


def test_ids_of_two_types_do_not_merge(make_folder: MakeFolder) -> None:
    passages = [{"_id": 1, "text": "one"}, {"_id": "1", "text": "one"}]
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: .*'1'.*int"):
        read_beir_task(make_folder(passages, QUERIES, [("q1", "1", 1)]), "train", "ids")
