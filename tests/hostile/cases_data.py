"""Data files that are damaged or do not match the recipe."""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.workplace import Case

NEAR = "data/near.jsonl"
LINE = '["w1 w2", "w3"]\n'
HEADER = "query-id\tcorpus-id\tscore\n"
TABLES: dict[str, str | bytes | None] = {
    "set/corpus.jsonl": '{"_id": "d1", "text": "w1"}\n{"_id": "d2", "text": "w2"}\n',
    "set/queries.jsonl": '{"_id": "q1", "text": "w3"}\n{"_id": "q2", "text": "w4"}\n',
    "set/qrels/train.tsv": f"{HEADER}q1\td1\t1\nq2\td2\t1\n",
}


def line(what: str, content: str | bytes, *names: str, says: str = "", number: int = 2) -> Case:
    """A wrong second line."""
    text = LINE.encode() + (content.encode() if isinstance(content, str) else content)
    return Case(what, "train recipe.yaml", (f"{NEAR}:{number}", *names), says, files={NEAR: text})


def file(what: str, name: str, content: str | bytes, *names: str) -> Case:
    """A file of another kind."""
    return Case(what, f"train recipe.yaml 'train={{near: {{path: {name}}}}}'", (name, *names), files={name: content})


def source(what: str, place: str, *names: str, files: Mapping[str, str | bytes | None] | None = None) -> Case:
    """A source of another format."""
    return Case(what, f"train recipe.yaml 'train={{near: {{{place}}}}}'", names, files=files or {})


def beir(what: str, name: str, content: str | None, *names: str) -> Case:
    """One of the three tables of a BEIR dataset, wrong or missing."""
    files = {place: text for place, text in (TABLES | {f"set/{name}": content}).items() if text is not None}
    return source(what, "format: beir, path: set, split: train", *names, files=files)


def weights(what: str, content: str, *names: str) -> Case:
    command = "train recipe.yaml 'strategy.init={file: weights.json}'"
    return Case(what, command, names, files={"weights.json": content})


def parquet(**columns: list[object]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def same_questions(folder: Path) -> None:
    (folder / "data" / "test.jsonl").write_bytes((folder / NEAR).read_bytes())


CASES = [
    line("a truncated line", '["w1", "w', says="not valid JSON"),
    line("bytes that are not UTF-8", b'["w1", "\xff"]\n', says="not valid UTF-8"),
    line("half of a surrogate pair", '["w1", "\\ud83d"]\n'),
    line("a number for a record", "5\n"),
    line("a list of one text", '["w1"]\n'),
    line("a number for a text", '["w1", 5]\n'),
    line("columns that change", '{"query": "w1", "p": "w2"}\n{"query": "w1", "r": "w2"}\n', "'r'", number=3),
    line("a score without a passage", '{"query": "w1", "pos": ["w2"], "pos_scores": [1, 2]}\n', "pos_scores"),
    line("a score that is NaN", '{"query": "w1", "pos": ["w2"], "pos_scores": [NaN]}\n', "nan"),
    line("half of the rows without text", '["w1", ""]\n'),
    Case("an empty file", "train recipe.yaml", (NEAR,), files={NEAR: ""}),
    Case("only rows that ask a test query", "train recipe.yaml", ("near",), arrange=same_questions),
    Case(
        "a missing column",
        "train recipe.yaml 'train={near: {columns: {anchor: q, positive: p}}}'",
        (f"{NEAR}:1", "'q'"),
        files={NEAR: '{"query": "w1", "p": "w2"}\n'},
    ),
    file("an unknown ending", "near.txt", "w1\tw2\n", ".jsonl"),
    file("no gzip", "near.jsonl.gz", LINE),
    file("truncated gzip", "near.jsonl.gz", gzip.compress(LINE.encode() * 50)[:-12]),
    file("a header with a column twice", "near.csv", "a,a\n1,2\n", "near.csv:1"),
    file("a row with an extra column", "near.csv", "a,b\n1,2,3\n", "near.csv:2"),
    file("an unclosed quote", "near.csv", 'a,b\n"1,2\n', "near.csv:2"),
    file("no Parquet", "near.parquet", b"PAR1 nothing"),
    file("truncated Parquet", "near.parquet", parquet(a=["x"] * 9, b=["y"] * 9)[:-20]),
    file("Parquet with numbers", "near.parquet", parquet(a=[1, 2], b=["x", "y"]), "row 1", "'a'"),
    file("Parquet without rows", "near.parquet", parquet(a=[], b=[])),
    beir("no queries", "queries.jsonl", None, "set", "queries.jsonl"),
    beir("no judgements of the split", "qrels/train.tsv", None, "set/qrels", "train"),
    beir("a judgement without a score", "qrels/train.tsv", f"{HEADER}q1\td1\n", "set/qrels/train.tsv:2"),
    beir("an infinite score", "qrels/train.tsv", f"{HEADER}q1\td1\tinf\n", "set/qrels/train.tsv:2", "'inf'"),
    beir("judgements of unknown queries", "qrels/train.tsv", f"{HEADER}q9\td9\t1\n", "set/qrels/train.tsv", "q9"),
    beir("no positive judgement", "qrels/train.tsv", f"{HEADER}q1\td1\t0\n", "set/qrels/train.tsv"),
    beir(
        "a duplicate id", "corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}\n', "jsonl:2", "'d1'"
    ),
    beir("an id that is null", "corpus.jsonl", '{"_id": null, "text": "w1"}\n', "set/corpus.jsonl:1", "_id"),
    source(
        "a document without text",
        "format: corpus, path: docs.jsonl, kind: title, split: all",
        *("docs.jsonl:2", "'text'"),
        files={"docs.jsonl": '{"text": "w1"}\n{"title": "w2"}\n'},
    ),
    Case(
        "a labelled query of an unknown document",
        "train recipe.yaml 'dev={q: {format: corpus, path: docs.jsonl, kind: queries, queries: asked.jsonl}}'",
        ("asked.jsonl:2", "'d9'"),
        files={
            "docs.jsonl": '{"_id": "d1", "text": "w1"}\n{"_id": "d2", "text": "w2"}\n',
            "asked.jsonl": '{"query": "w1", "doc_id": "d1"}\n{"query": "w2", "doc_id": "d9"}\n',
        },
    ),
    source(
        "a package without a description",
        "format: debdocs, path: deb, language: de, split: train",
        "deb",
        files={"deb/Translation-de": "Package: a\nDescription-md5\n"},
    ),
    source("a hub dataset without network", "format: hub, id: nobody/nothing", "nobody/nothing"),
    source("a dataset script", "format: hub, id: ./set", "./set", files={"set/set.py": "open('pwned', 'w')\n"}),
    source("an unknown library", "format: pydocs, library: scikit, split: all", "'scikit'", "'scikit-learn'"),
    source("an unknown language", "format: bge_m3, path: data, language: xx", "data", "'xx'"),
    source("a folder without MLDR", "format: mldr, path: data, language: en", "data", "mldr-v1.0-en"),
    weights("weights in a list", "[1, 2]", "weights.json"),
    weights("a weight that is NaN", '{"near": NaN, "far": 1}', "weights.json", "'near'"),
    weights("a weight of an unknown dataset", '{"nera": 1, "far": 1}', "'nera'", "'near'"),
]
