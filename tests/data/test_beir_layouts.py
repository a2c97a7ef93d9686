"""The same small set in every layout that BEIR is published in.

- Rows and tasks are the same whichever layout they come from.
- A split that a table does not have is found if the table has only one, except for judgements.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mixfluence.errors import DataError
from tests.data.readers import read_beir_rows, read_beir_task

PASSAGES = [
    {"_id": "d1", "title": "Title", "text": "one"},
    {"_id": "d2", "title": "", "text": "two"},
    {"_id": "q1", "title": "", "text": "a passage with the id of a query"},
]
QUERIES = [{"_id": "q1", "text": "first?"}, {"_id": "q2", "text": "second?"}, {"_id": "q9", "text": "not judged"}]
QRELS = [("q1", "d2", 1), ("q2", "d1", 2), ("q1", "q1", 0), ("q2", "d2", 1), ("q2", "d1", 2)]
JUDGED: list[dict[str, Any]] = [
    {"query-id": query, "corpus-id": passage, "score": score} for query, passage, score in QRELS
]


def lines(records: list[Any]) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


def table() -> bytes:
    return "\r\n".join(["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in QRELS)]).encode()


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def put_parquet(path: Path, records: list[dict[str, Any]], **types: pa.DataType) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(records[0])
    columns = {name: pa.array([record[name] for record in records], types.get(name)) for name in names}
    pq.write_table(pa.table(columns), path)


def archive(root: Path) -> Path:
    put(root / "set" / "corpus.jsonl", lines(PASSAGES))
    put(root / "set" / "queries.jsonl", lines(QUERIES))
    put(root / "set" / "qrels" / "test.tsv", table())
    return root / "set"


def hub(root: Path) -> Path:
    put(root / "set" / "corpus.jsonl.gz", lines(PASSAGES))
    put(root / "set" / "queries.jsonl.gz", lines(QUERIES))
    put(root / "set" / "README.md", b"a card")
    put(root / "set-qrels" / "README.md", b"another card")
    put(root / "set-qrels" / "test.tsv", table())
    put(root / "set-qrels" / "train.tsv", b"query-id\tcorpus-id\tscore\nq1\td1\t1")
    return root / "set"


def mteb_lines(root: Path) -> Path:
    put(root / "set" / "corpus.jsonl", lines(PASSAGES))
    put(root / "set" / "queries.jsonl", lines(QUERIES))
    put(root / "set" / "qrels" / "test.jsonl", lines(JUDGED))
    return root / "set"


def mteb_parquet(root: Path) -> Path:
    put_parquet(root / "set" / "corpus" / "corpus-00000-of-00002.parquet", PASSAGES[:1])
    put_parquet(root / "set" / "corpus" / "corpus-00001-of-00002.parquet", PASSAGES[1:])
    put_parquet(root / "set" / "queries" / "queries-00000-of-00001.parquet", QUERIES)
    judged = [record | {"score": float(record["score"])} for record in JUDGED]
    put_parquet(root / "set" / "data" / "test-00000-of-00001.parquet", judged)
    put_parquet(root / "set" / "data" / "train-00000-of-00001.parquet", judged[:1])
    return root / "set"


def mteb_converted(root: Path) -> Path:
    plain = [{"id": record["_id"], "text": f"{record['title']} {record['text']}".strip()} for record in PASSAGES]
    put_parquet(root / "set" / "corpus" / "test" / "0000.parquet", plain)
    put_parquet(root / "set" / "corpus" / "dev" / "0000.parquet", plain[:1])
    queries = [{"id": record["_id"], "text": record["text"]} for record in QUERIES]
    put_parquet(root / "set" / "queries" / "test" / "0000.parquet", queries)
    put_parquet(root / "set" / "default" / "test" / "0000.parquet", JUDGED[:2])
    put_parquet(root / "set" / "default" / "test" / "0001.parquet", JUDGED[2:])
    return root / "set"


LAYOUTS = [archive, hub, mteb_lines, mteb_parquet, mteb_converted]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_alike(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    folder = layout(tmp_path)
    rows = read_beir_rows(folder, "test")
    assert list(zip(rows.rows["anchor"], rows.rows["positive"], strict=True)) == [
        ("first?", "two"),
        ("second?", "Title one"),
    ]
    assert len(read_beir_rows(folder, "test", per="pair")) == 3
    task = read_beir_task(folder, "test", "set")
    assert (task.query_ids, task.doc_ids) == (["q1", "q2"], ["d1", "d2", "q1"])
    assert task.docs[0] == "Title one"
    assert task.qrels == {"q1": {"d2": 1, "q1": 0}, "q2": {"d1": 2, "d2": 1}}


def test_ids_that_are_numbers_meet_as_text(tmp_path: Path) -> None:
    put_parquet(tmp_path / "corpus" / "test-00000-of-00001.parquet", [{"_id": 7, "title": None, "text": "seven"}])
    put_parquet(tmp_path / "queries" / "test-00000-of-00001.parquet", [{"_id": 3, "text": "seven?"}])
    put_parquet(tmp_path / "qrels" / "test-00000-of-00001.parquet", [{"query-id": 3, "corpus-id": "7", "score": 1.0}])
    assert list(read_beir_rows(tmp_path, "test").rows["positive"]) == ["seven"]
    assert read_beir_task(tmp_path, "test", "numbers").qrels == {"3": {"7": 1}}


def test_judgements_of_another_split_are_not_taken(tmp_path: Path) -> None:
    folder = mteb_lines(tmp_path)
    with pytest.raises(DataError, match=r"qrels: .*'train'.*test"):
        read_beir_rows(folder, "train")


def test_a_table_with_several_splits_needs_the_one_that_is_asked_for(tmp_path: Path) -> None:
    folder = archive(tmp_path)
    (folder / "corpus.jsonl").unlink()
    for split in ("dev", "train"):
        put_parquet(folder / "corpus" / f"{split}-00000-of-00001.parquet", PASSAGES)
    with pytest.raises(DataError, match=r"set: .*corpus.*dev, train"):
        read_beir_rows(folder, "test")


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"query-id": "q1", "corpus-id": "d1", "score": 0.5}, r"test\.jsonl:2: .*0\.5"),
        ({"query-id": "q1", "corpus-id": "d1"}, r"test\.jsonl:2: .*score"),
        ({"corpus-id": "d1", "score": 1}, r"test\.jsonl:2: .*'query-id'"),
        (["q1", "d1", 1], r"test\.jsonl:2: "),
    ],
)
def test_a_bad_judgement_names_file_and_line(tmp_path: Path, record: Any, place: str) -> None:
    folder = mteb_lines(tmp_path)
    put(folder / "qrels" / "test.jsonl", lines([JUDGED[0], record]))
    with pytest.raises(DataError, match=place):
        read_beir_rows(folder, "test")


def test_a_damaged_piece_is_named(tmp_path: Path) -> None:
    folder = mteb_parquet(tmp_path)
    (folder / "corpus" / "corpus-00001-of-00002.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"corpus-00001-of-00002\.parquet: .*after row 0"):
        read_beir_rows(folder, "test")
