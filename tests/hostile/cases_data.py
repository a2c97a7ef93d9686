"""Data files that are damaged, or are not what the recipe says."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mixfluence.data.files import LONGEST_LINE
from tests.hostile.workplace import Case

NEAR = "data/near.jsonl"
LINE = '["w1 w2", "w3"]\n'
TABLES: dict[str, str | bytes | None] = {
    "set/corpus.jsonl": '{"_id": "d1", "text": "w1"}\n{"_id": "d2", "text": "w2"}\n',
    "set/queries.jsonl": '{"_id": "q1", "text": "w3"}\n{"_id": "q2", "text": "w4"}\n',
    "set/qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
}


def line(what: str, content: str | bytes) -> Case:
    """A second line that is wrong."""
    return Case(what, files={NEAR: LINE.encode() + (content.encode() if isinstance(content, str) else content)})


def file(what: str, name: str, content: str | bytes) -> Case:
    """A file of another kind."""
    return Case(what, f"train recipe.yaml 'train={{near: {{path: {name}}}}}'", files={name: content})


def source(what: str, place: str, files: Mapping[str, str | bytes | None] | None = None) -> Case:
    """A source of another format."""
    return Case(what, f"train recipe.yaml 'train={{near: {{{place}}}}}'", files=files or {})


def beir(what: str, name: str, content: str | None) -> Case:
    """One of the three tables of a BEIR set that is wrong, or not there."""
    files = {place: text for place, text in (TABLES | {f"set/{name}": content}).items() if text is not None}
    return source(what, "format: beir, path: set, split: train", files)


def weights(what: str, content: str) -> Case:
    return Case(what, "train recipe.yaml 'strategy.init={file: weights.json}'", files={"weights.json": content})


def parquet(**columns: list[object]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def pipe(folder: Path) -> None:
    os.mkfifo(folder / NEAR)


def endless(folder: Path) -> None:
    (folder / NEAR).symlink_to("/dev/zero")


def same_questions(folder: Path) -> None:
    (folder / "data" / "test.jsonl").write_bytes((folder / NEAR).read_bytes())


CASES = [
    line("a line cut short", '["w1", "w'),
    line("bytes that are not UTF-8", b'["w1", "\xff"]\n'),
    line("half a character", '["w1", "\\ud83d"]\n'),
    line("100,000 brackets, one in the other", "[" * 100_000 + "\n"),
    line("a number for a record", "5\n"),
    line("a list of one text", '["w1"]\n'),
    line("a number for a text", '["w1", 5]\n'),
    line("columns that change", '{"q": "w1", "p": "w2"}\n{"q": "w1", "r": "w2"}\n'),
    line("a score for no passage", '{"query": "w1", "pos": ["w2"], "pos_scores": [1, 2]}\n'),
    line("a score that is not a number", '{"query": "w1", "pos": ["w2"], "pos_scores": [NaN]}\n'),
    line("half of the rows without text", '["w1", ""]\n'),
    Case("an empty file", files={NEAR: ""}),
    Case("a pipe that nobody writes to", files={NEAR: None}, arrange=pipe),
    Case("a device without end", files={NEAR: None}, arrange=endless),
    Case("only rows that ask a test query", arrange=same_questions),
    Case(
        "a column that is not there",
        "train recipe.yaml 'train={near: {columns: {anchor: q, positive: p}}}'",
        files={NEAR: '{"query": "w1", "p": "w2"}\n'},
    ),
    file("an unknown ending", "near.txt", "w1\tw2\n"),
    file("gzip that is none", "near.jsonl.gz", LINE),
    file("gzip cut short", "near.jsonl.gz", gzip.compress(LINE.encode() * 50)[:-12]),
    file("a gzip bomb", "near.jsonl.gz", gzip.compress(b'["' + b"x" * (LONGEST_LINE + 10))),
    file("a header with a column twice", "near.csv", "a,a\n1,2\n"),
    file("a row with a column more", "near.csv", "a,b\n1,2,3\n"),
    file("a quote that is not closed", "near.csv", 'a,b\n"1,2\n'),
    file("Parquet that is none", "near.parquet", b"PAR1 nothing"),
    file("Parquet cut short", "near.parquet", parquet(a=["x"] * 9, b=["y"] * 9)[:-20]),
    file("Parquet with numbers", "near.parquet", parquet(a=[1, 2], b=["x", "y"])),
    file("Parquet without rows", "near.parquet", parquet(a=[], b=[])),
    beir("no queries", "queries.jsonl", None),
    beir("no judgements of the split", "qrels/train.tsv", None),
    beir("a judgement without a score", "qrels/train.tsv", "query-id\tcorpus-id\tscore\nq1\td1\n"),
    beir("a score that is infinite", "qrels/train.tsv", "query-id\tcorpus-id\tscore\nq1\td1\tinf\n"),
    beir("a score that no program can count with", "qrels/train.tsv", "q1\td1\t1\nq2\td2\t1e300\n"),
    beir("judgements of nobody", "qrels/train.tsv", "query-id\tcorpus-id\tscore\nq9\td9\t1\n"),
    beir("judgements without a positive one", "qrels/train.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0\n"),
    beir("an id twice", "corpus.jsonl", '{"_id": "d1", "text": "w1"}\n{"_id": "d1", "text": "w2"}\n'),
    beir("an id that is no value", "corpus.jsonl", '{"_id": null, "text": "w1"}\n'),
    source("a dataset of the hub, and no network", "format: hub, id: nobody/nothing"),
    source("a dataset that brings code", "format: hub, id: ./set", {"set/set.py": "open('pwned', 'w')\n"}),
    source("a library that is not installed", "format: pydocs, library: scikit, split: all"),
    source("a language that is not there", "format: bge_m3, path: data, language: xx"),
    source("a folder without MLDR in it", "format: mldr, path: data, language: en"),
    weights("weights in a list", "[1, 2]"),
    weights("a weight that is not a number", '{"near": NaN, "far": 1}'),
    weights("a weight of 400 digits", f'{{"near": {"9" * 400}, "far": 1}}'),
    weights("a weight of no dataset", '{"nera": 1, "far": 1}'),
]
