"""MLDR in its published shapes: gzipped files, TREC judgements, and mteb's Parquet twin."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mixfluence.errors import DataError
from tests.data.readers import read_mldr_rows, read_mldr_task

LONG = "long document " * 1_000


def passage(number: int) -> dict[str, str]:
    return {"docid": f"doc-hi-{number}", "text": f" {LONG}{number} "}


def query(number: int, positives: list[int], negatives: list[int] | None) -> dict[str, Any]:
    found = None if negatives is None else [passage(number) for number in negatives]
    return {
        "query_id": f"q-hi-{number}",
        "query": f"question {number}?",
        "positive_passages": [passage(number) for number in positives],
        "negative_passages": found,
    }


def put(path: Path, records: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = tmp_path / "mldr-v1.0-hi"
    put(files / "train.jsonl.gz", [query(1, [1], [2, 3]), query(2, [2, 4], []), query(3, [3], None)])
    put(files / "dev.jsonl.gz", [query(4, [4], [1])])
    put(files / "test.jsonl.gz", [query(5, [5], [1, 2]), query(6, [6], [])])
    put(files / "corpus.jsonl.gz", [passage(number) for number in range(8)])
    judged = "q-hi-5\tQ0\tdoc-hi-5\t1\nq-hi-5\tQ0\tdoc-hi-1\t0\nq-hi-6\tQ0\tdoc-hi-6\t1\n"
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "qrels.mldr-v1.0-hi-test.tsv").write_text(judged)
    (tmp_path / "qrels" / "qrels.mldr-v1.0-hi-dev.tsv").write_text("q-hi-4\tdoc-hi-4\t1\n")
    return tmp_path


def test_rows_have_the_first_positive_and_all_negatives(folder: Path) -> None:
    rows = read_mldr_rows(folder, "hi", "train").rows
    assert list(rows["anchor"]) == ["question 1?", "question 2?", "question 3?"]
    assert [text.removeprefix(LONG) for text in rows["positive"]] == ["1", "2", "3"]
    assert [len(negatives) for negatives in rows["negatives"]] == [2, 0, 0]
    assert not any(rows["scores"])
    assert len(read_mldr_rows(folder, "hi", "dev")) == 1


@pytest.mark.parametrize(("split", "queries"), [("dev", ["q-hi-4"]), ("test", ["q-hi-5", "q-hi-6"])])
def test_a_task_has_the_languages_whole_corpus(folder: Path, split: str, queries: list[str]) -> None:
    task = read_mldr_task(folder, "hi", split, "hindi")
    assert task.name == "hindi"
    assert task.query_ids == queries
    assert task.doc_ids == [f"doc-hi-{number}" for number in range(8)]
    assert task.docs[3] == f"{LONG}3"
    assert all(sum(grade > 0 for grade in task.qrels[name].values()) == 1 for name in queries)


def test_judgements_of_zero_are_kept_but_not_relevant(folder: Path) -> None:
    assert read_mldr_task(folder, "hi", "test", "hi").qrels["q-hi-5"] == {"doc-hi-5": 1, "doc-hi-1": 0}


def test_the_parquet_twin_is_the_same_task(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    twin = tmp_path_factory.mktemp("MultiLongDocRetrieval")
    corpus: list[dict[str, Any]] = [
        {"_id": f"doc-hi-{number}", "text": passage(number)["text"], "title": ""} for number in range(8)
    ]
    tables: dict[str, list[dict[str, Any]]] = {
        "corpus": corpus,
        "queries": [{"_id": f"q-hi-{number}", "text": f"question {number}?"} for number in (5, 6)],
        "qrels": [
            {"query-id": "q-hi-5", "corpus-id": "doc-hi-5", "score": 1},
            {"query-id": "q-hi-5", "corpus-id": "doc-hi-1", "score": 0},
            {"query-id": "q-hi-6", "corpus-id": "doc-hi-6", "score": 1},
        ],
    }
    for table, records in tables.items():
        for split in ("dev", "test"):
            (twin / f"hi-{table}").mkdir(exist_ok=True)
            found = records if split == "test" else records[:1]
            pq.write_table(pa.Table.from_pylist(found), twin / f"hi-{table}" / f"{split}-00000-of-00001.parquet")
    ours, theirs = read_mldr_task(folder, "hi", "test", "hi"), read_mldr_task(twin, "hi", "test", "hi")
    assert ours.fingerprint == theirs.fingerprint


def test_queries_without_a_positive_are_left_out_while_few(folder: Path) -> None:
    many = [query(number, [number], []) for number in range(30)]
    put(folder / "mldr-v1.0-hi" / "train.jsonl.gz", [*many, query(30, [], [1])])
    rows = read_mldr_rows(folder, "hi", "train")
    assert len(rows) == 30
    assert "1 of 31 rows" in rows.notes[0]


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (
            {"query": "q", "positive_passages": "text"},
            r"train\.jsonl\.gz:1: .*'positive_passages'",
        ),
        ({"query": 3, "positive_passages": []}, r"train\.jsonl\.gz:1: .*'query'"),
        (["q"], r"train\.jsonl\.gz:1: "),
    ],
)
def test_a_bad_line_is_named(folder: Path, record: Any, place: str) -> None:
    put(folder / "mldr-v1.0-hi" / "train.jsonl.gz", [record])
    with pytest.raises(DataError, match=place):
        read_mldr_rows(folder, "hi", "train")


def test_missing_files_are_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"mldr-v1\.0-xx"):
        read_mldr_rows(folder, "xx", "train")
    with pytest.raises(DataError, match=r"qrels\.mldr-v1\.0-hi-train\.tsv"):
        read_mldr_task(folder, "hi", "train", "hi")
