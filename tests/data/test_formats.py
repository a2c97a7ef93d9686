"""The registry of formats and the reading of sources.

- A format is registered under the word that recipes use; its schema loads neither Arrow nor torch.
- Counts that differ from the published ones are logged and do not stop a run.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixfluence.data import source as source_module
from mixfluence.data.beir import BeirSource
from mixfluence.data.formats import FORMATS, read_both, read_rows, read_task
from mixfluence.data.mldr import MldrSource
from mixfluence.data.pairs import PairsSource
from mixfluence.data.source import PublishedSection, SourceSection
from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe


def beir(folder: Path, **published: int) -> BeirSource:
    lines = {
        "corpus.jsonl": [{"_id": f"d{i}", "text": f"passage {i}"} for i in range(5)],
        "queries.jsonl": [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)],
    }
    for name, records in lines.items():
        (folder / name).write_text("\n".join(map(json.dumps, records)))
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\nq0\td1\t1\nq1\td2\t0\nq2\td3\t1")
    return BeirSource(path=folder, split="dev", published=PublishedSection(**published))


def test_other_counts_than_published_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = beir(tmp_path, rows=3, queries=3, judgements=5, passages=6_000)
    assert read_rows(source).notes == (f"{tmp_path} dev: 2 rows, but 3 were published",)
    with caplog.at_level(logging.WARNING, logger="mixfluence.data.formats"):
        task = read_task("tiny", source)
    assert len(task.query_ids) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "tiny: 4 judgements, but 5 were published",
        "tiny: 5 passages, but 6,000 were published",
    ]


@pytest.mark.parametrize("published", [{"rows": 2, "queries": 3, "judgements": 4, "passages": 5}, {}])
def test_the_same_counts_and_unknown_ones_are_not_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, published: dict[str, int]
) -> None:
    source = beir(tmp_path, **published)
    assert read_rows(source).notes == ()
    read_task("tiny", source)
    assert caplog.records == []


def test_notes_of_the_reader_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = beir(tmp_path)
    qrels = tmp_path / "qrels" / "dev.tsv"
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"_id": f"d{i}", "text": "x"}) for i in range(99)))
    qrels.write_text("\n".join([*(f"q0\td{i}\t1" for i in range(99)), "q0\tgone\t1"]))
    task = read_task("tiny", source)
    assert [record.getMessage() for record in caplog.records] == list(task.notes)
    assert "1 of 100 judgements" in task.notes[0]


@pytest.mark.parametrize("format_", ["beir", "pairs"])
def test_rows_and_task_of_a_dev_set_come_from_one_reading_of_its_files(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps([f"a {i}", f"b {i}"]) + "\n" for i in range(3)))
    source: SourceSection = beir(tmp_path, rows=3) if format_ == "beir" else PairsSource(path=pairs)
    opened = Counter[str]()
    read = source_module._lines

    def counting(path: Path, encoding: str | None = None) -> Iterator[str]:
        opened[path.name] += 1
        return read(path, encoding)

    monkeypatch.setattr(source_module, "_lines", counting)
    both = read_both("tiny", source)
    files = {"corpus.jsonl", "queries.jsonl", "dev.tsv"} if format_ == "beir" else {"pairs.jsonl"}
    assert opened == dict.fromkeys(files, 1)
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(tmp_path / "empty-cache"))
    rows, task = read_rows(source), read_task("tiny", source)
    assert (both[0].fingerprint, both[0].notes) == (rows.fingerprint, rows.notes)
    assert both[1] == task


def test_pairs_follow_their_source(tmp_path: Path) -> None:
    path = tmp_path / "msmarco-triplets.jsonl"
    path.write_text(json.dumps({"query": "q", "pos": ["a", "b"], "neg": ["x", "y"]}))
    options: dict[str, Any] = {"path": path}
    assert len(read_rows(PairsSource(**options))) == 2
    (row,) = read_rows(PairsSource(**options, per="query", negatives=1)).rows
    assert (row["positive"], row["negatives"]) == ("a", ["x"])


def test_formats_are_registered_under_their_word() -> None:
    assert {word: format_.model_fields["format"].default for word, format_ in FORMATS.items()} == {
        w: w for w in FORMATS
    }


def test_every_format_has_a_documented_example() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
    examples = [
        yaml.safe_load(text) for text in re.findall(r"^\| `\w+` \| `(\{format: .*?\})` \|", page, re.MULTILINE)
    ]
    assert [example["format"] for example in examples] == list(dict.fromkeys(e["format"] for e in examples))
    assert {example["format"] for example in examples} == FORMATS.keys()
    data = {"name": "x", "model": {"name": "minilm"}, "training": {"steps": 1, "batch_size": 2}}
    data["train"] = {example["format"]: example for example in examples}
    assert len(Recipe.model_validate(data, context={"files_may_be_missing": True}).train) == len(FORMATS)


def test_recipes_are_read_without_heavy_imports() -> None:
    code = "import sys, mixfluence.recipe; print({'torch', 'datasets', 'pyarrow'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "set()"


def test_a_format_without_a_corpus_takes_all_passages_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"query": "q", "pos": ["a", "b"], "neg": ["x"]}))
    task = read_task("pairs", PairsSource(path=path, query_prompt="ask: "))
    assert (task.queries, task.docs, task.query_prompt) == (["q"], ["a", "x", "b"], "ask: ")
    assert task.qrels == {"q0": {"d0": 1, "d2": 1}}


def test_mldr_knows_its_splits(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"split: .*'validation'"):
        MldrSource(path=tmp_path, language="ar", split="validation")
