"""Collections by name, through mteb and ir_datasets.

- Rows and tasks are those of the package; ids, titles and grades are kept.
- The split that a benchmark reports is refused as training or dev data, whatever it is called.
- Scores are also written in mteb's result format.

Tasks are local: tests have no network. Where a package is not installed, a stand-in with the interface that is used
takes its place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from mixfluence.data import benchmarks
from mixfluence.data.benchmarks import IrDatasetsSource, MtebSource
from mixfluence.data.formats import read_rows, read_task
from mixfluence.errors import DataError
from tests.test_cli import mixfluence_here

CORPUS = [{"id": f"d{i}", "title": "", "text": f"w{i} w{i + 1} w{i + 2}"} for i in range(12)]
CORPUS[0]["title"] = "w100"
QRELS = {
    "train": {"q0": {"d0": 1}, "q1": {"d1": 1, "d2": 2}},
    "test": {"q2": {"d3": 1}, "q3": {"d4": 1, "d5": 0}},
}


def split_data(split: str) -> dict[str, Any]:
    queries = [{"id": id, "text": f"w{id[1:]} w9"} for id in QRELS[split]]
    return {
        "corpus": Dataset.from_list(CORPUS),
        "queries": Dataset.from_list(queries),
        "relevant_docs": QRELS[split],
        "top_ranked": None,
    }


def local_task(name: str, reported: list[str], languages: list[str]) -> Callable[[], Any]:
    """Return a task of mteb whose data needs no download."""
    subsets = languages or ["default"]
    if find_spec("mteb") is None:
        return lambda: _StandInTask(name, reported, subsets)
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Local(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=name,
            description="A task for tests.",
            dataset={"path": "nobody/nothing", "revision": "1"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=reported,
            eval_langs={subset: ["eng-Latn"] for subset in subsets} if languages else ["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, *_: Any, **__: Any) -> None:
            self.dataset = {s: {split: split_data(split) for split in self.eval_splits} for s in self.hf_subsets}
            self.data_loaded = True

    return Local


class _StandInTask:
    def __init__(self, name: str, reported: list[str], subsets: list[str]) -> None:
        kind = {"name": name, "type": "Retrieval", "revision": "1"}
        self.metadata = SimpleNamespace(eval_splits=reported, hf_subsets=subsets, **kind)
        self.splits, self.subsets = reported, subsets
        self.dataset: dict[str, Any] = {}

    def filter_eval_splits(self, splits: list[str]) -> _StandInTask:
        self.splits = splits
        return self

    def filter_languages(self, _: None, hf_subsets: list[str]) -> _StandInTask:
        self.subsets = hf_subsets
        return self

    def load_data(self) -> None:
        self.dataset = {subset: {split: split_data(split) for split in self.splits} for subset in self.subsets}

    def convert_v1_dataset_format_to_v2(self, num_proc: None) -> None:
        pass


class _StandInResult:
    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    @classmethod
    def from_task_results(cls, task: Any, scores: Any, evaluation_time: float) -> _StandInResult:
        flat = {split: [own | {"hf_subset": s} for s, own in found.items()] for split, found in scores.items()}
        return cls(task_name=task.metadata.name, scores=flat, evaluation_time=evaluation_time)

    def to_disk(self, path: Path) -> None:
        path.write_text(json.dumps(self.facts))


@pytest.fixture
def mteb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, with the tasks TinyQA, TinyNano (which reports `train`) and TinyMany (languages de and fr)."""
    tasks = {
        "TinyQA": local_task("TinyQA", ["test"], []),
        "TinyNano": local_task("TinyNano", ["train"], []),
        "TinyMany": local_task("TinyMany", ["test"], ["de", "fr"]),
    }
    if find_spec("mteb") is not None:
        for name, task in tasks.items():
            monkeypatch.setitem(vars(import_module("mteb.get_tasks"))["_TASKS_REGISTRY"], name, task)
        yield
        return
    package, results = ModuleType("mteb"), ModuleType("mteb.results")
    vars(package)["get_task"] = lambda name: tasks[name]()
    vars(results)["TaskResult"] = _StandInResult
    monkeypatch.setitem(sys.modules, "mteb", package)
    monkeypatch.setitem(sys.modules, "mteb.results", results)
    yield


@pytest.mark.usefixtures("mteb")
def test_rows_of_a_task_have_the_best_positive_of_each_query() -> None:
    rows = read_rows(MtebSource(task="TinyQA", split="train")).rows
    assert list(zip(rows["anchor"], rows["positive"], strict=True)) == [
        ("w0 w9", "w100 w0 w1 w2"),
        ("w1 w9", "w2 w3 w4"),
    ]
    assert len(read_rows(MtebSource(task="TinyQA", split="train", per="pair"))) == 3


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize(("task", "language"), [("TinyQA", None), ("TinyMany", "fr")])
def test_a_task_has_queries_corpus_and_grades(task: str, language: str | None) -> None:
    found = read_task("tiny", MtebSource(task=task, split="test", language=language))
    assert found.counts == {"queries": 2, "judgements": 3, "passages": 12}
    assert {query: dict(own) for query, own in found.qrels.items()} == QRELS["test"]
    assert found.docs[0] == "w100 w0 w1 w2"


@pytest.mark.usefixtures("mteb")
def test_test_is_the_split_that_the_benchmark_reports() -> None:
    found = read_task("tiny", MtebSource(task="TinyNano", split="test"))
    assert {query: dict(own) for query, own in found.qrels.items()} == QRELS["train"]


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize(("task", "split"), [("TinyQA", "test"), ("TinyNano", "train"), ("TinyNano", "test")])
def test_the_reported_split_guides_nothing(task: str, split: str) -> None:
    with pytest.raises(DataError, match=f"{task} {split}: the split that the benchmark reports"):
        read_rows(MtebSource(task=task, split=split))


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize("language", [None, "es"])
def test_a_task_of_several_languages_needs_one_of_them(language: str | None) -> None:
    with pytest.raises(DataError, match=r"TinyMany: language: .*de, fr"):
        read_task("tiny", MtebSource(task="TinyMany", split="test", language=language))


@pytest.mark.usefixtures("mteb")
def test_an_unknown_task_is_named() -> None:
    with pytest.raises(DataError, match="TinyQB: mteb has no such task"):
        read_task("tiny", MtebSource(task="TinyQB", split="test"))


@pytest.mark.usefixtures("mteb")
def test_what_cannot_be_loaded_is_one_line() -> None:
    with pytest.raises(DataError, match="TinyQA dev: could not be loaded by mteb") as caught:
        read_rows(MtebSource(task="TinyQA", split="dev"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["mteb", "ir_datasets"])
def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    sources = {"mteb": MtebSource(task="TinyQA", split="train"), "ir_datasets": IrDatasetsSource(id="tiny/train")}
    with pytest.raises(DataError, match=rf"pip install 'mixfluence\[{package.replace('_', '-')}\]'"):
        sources[package].read_task("tiny")


@pytest.mark.usefixtures("mteb")
def test_evaluate_writes_results_of_mteb(tmp_path: Path, make_static: Callable[[], SentenceTransformer]) -> None:
    make_static().save(str(tmp_path / "encoder"))
    words = ["evaluate", "encoder", "--mteb", "TinyQA", "--mteb", "TinyMany:de", "--to", "scores"]
    result = mixfluence_here(*words, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "TinyMany:de" in result.stdout
    written = json.loads((tmp_path / "scores" / "encoder" / "eval" / "mteb" / "TinyQA.json").read_text())
    (scores,) = written["scores"]["test"]
    assert (written["task_name"], scores["hf_subset"]) == ("TinyQA", "default")
    record = json.loads((tmp_path / "scores" / "encoder" / "record.json").read_text())
    assert scores["main_score"] == pytest.approx(record["scores"]["TinyQA"]["ndcg@10"], abs=1e-5)
    assert (tmp_path / "scores" / "encoder" / "eval" / "mteb" / "TinyMany-de.json").is_file()


@pytest.fixture
def ir_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, with the datasets tiny/train and tiny/test from files."""
    (tmp_path / "docs.tsv").write_text("".join(f"{d['id']}\t{d['text']}\n" for d in CORPUS))
    (tmp_path / "queries.tsv").write_text("".join(f"q{i}\tw{i} w9\n" for i in range(4)))
    for split, judged in QRELS.items():
        lines = [f"{query} 0 {doc} {grade}\n" for query, own in judged.items() for doc, grade in own.items()]
        (tmp_path / f"{split}.qrels").write_text("".join(lines))
    if find_spec("ir_datasets") is not None:
        import ir_datasets as package

        for split in QRELS:
            tables = {"docs_tsv": tmp_path / "docs.tsv", "queries_tsv": tmp_path / "queries.tsv"}
            paths = {name: str(path) for name, path in (tables | {"qrels_trec": tmp_path / f"{split}.qrels"}).items()}
            monkeypatch.setitem(package.registry._registered, f"tiny/{split}", package.create_dataset(**paths))
        return
    stand_in = ModuleType("ir_datasets")
    vars(stand_in)["load"] = lambda id: _StandInDataset(tmp_path, id)
    monkeypatch.setitem(sys.modules, "ir_datasets", stand_in)
    monkeypatch.setattr(benchmarks, "version", lambda package: "0")


class _StandInDataset:
    def __init__(self, folder: Path, id: str) -> None:
        self._folder, self._split = folder, id.removeprefix("tiny/")

    def docs_iter(self) -> Iterator[Any]:
        return self._texts("docs.tsv", "doc_id")

    def queries_iter(self) -> Iterator[Any]:
        return self._texts("queries.tsv", "query_id")

    def qrels_iter(self) -> Iterator[Any]:
        for line in (self._folder / f"{self._split}.qrels").read_text().splitlines():
            query, _, doc, grade = line.split()
            yield SimpleNamespace(query_id=query, doc_id=doc, relevance=int(grade))

    def _texts(self, file: str, key: str) -> Iterator[Any]:
        for line in (self._folder / file).read_text().splitlines():
            id, text = line.split("\t")
            yield SimpleNamespace(**{key: id}, default_text=lambda text=text: text)


@pytest.mark.usefixtures("ir_datasets")
def test_datasets_by_id() -> None:
    rows = read_rows(IrDatasetsSource(id="tiny/train", per="pair")).rows
    assert list(rows["positive"]) == ["w0 w1 w2", "w1 w2 w3", "w2 w3 w4"]
    found = read_task("tiny", IrDatasetsSource(id="tiny/test"))
    assert found.counts == {"queries": 2, "judgements": 3, "passages": 12}
    assert list(found.queries) == ["w2 w9", "w3 w9"]
    for reported in ("tiny/test", "tiny/test/small"):
        with pytest.raises(DataError, match=f"{reported}: the split that the benchmark reports"):
            read_rows(IrDatasetsSource(id=reported))
    with pytest.raises(DataError, match="tiny/absent: could not be loaded by ir_datasets"):
        read_task("tiny", IrDatasetsSource(id="tiny/absent"))
