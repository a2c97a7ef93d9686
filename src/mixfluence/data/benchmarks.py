"""The formats `mteb` and `ir_datasets`: published collections by name, through the packages that know them.

The split that a benchmark reports must neither be trained on nor guide sampling: it is refused outside of `test`.
"""

from __future__ import annotations

from abc import abstractmethod
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

from mixfluence.data.beir import Collection
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet, convert_once
from mixfluence.data.source import SourceSection
from mixfluence.errors import DataError, first_line

TEST = "test"


class BenchmarkSource(SourceSection):
    """A published collection.

    Attributes:
        per: One training row per query, with its best positive, or one per pair of query and positive.
    """

    per: Literal["query", "pair"] = "query"

    def read_rows(self) -> RowSet:
        if self._reported():
            raise DataError(f"{self.location}: the split that the benchmark reports is for test only; choose another")
        options = self._identity() | {"per": self.per}
        return convert_once([], options, lambda facts: self._load().rows(self.per, facts.notes))

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        return self._load().task(name)

    @abstractmethod
    def _reported(self) -> bool:
        """Return whether this is the split that is reported."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return what determines the content."""

    @abstractmethod
    def _load(self) -> Collection:
        """Return the content."""


class MtebSource(BenchmarkSource):
    """A retrieval task of the package `mteb`, such as `FiQA2018` or `NanoNQRetrieval`, downloaded by it.

    Needs `pip install 'mixfluence[mteb]'`.

    Attributes:
        task: Name of the task.
        split: `test` is the split that mteb reports, whatever it is called there.
        language: The subset of a task with several, such as `de`.
    """

    format: Literal["mteb"] = "mteb"
    task: str
    split: str
    language: str | None = None

    def load_task(self) -> Any:
        """Return the task of mteb, without its data."""
        mteb = _import("mteb")
        try:
            task = mteb.get_task(self.task)
        except KeyError as error:
            raise DataError(f"{self.task}: mteb has no such task ({error.args[0]})") from error
        if not hasattr(task, "convert_v1_dataset_format_to_v2"):
            raise DataError(f"{self.task}: expected a retrieval task, found {task.metadata.type}")
        return task

    def subset(self, task: Any) -> str:
        """Return the name that mteb has for the language."""
        subsets = list(task.metadata.hf_subsets)
        if self.language is None and len(subsets) == 1:
            return str(subsets[0])
        if self.language is None or self.language not in subsets:
            raise DataError(f"{self.task}: language: expected one of {', '.join(subsets)}, found {self.language!r}")
        return self.language

    def split_of(self, task: Any) -> str:
        """Return the name that mteb has for the split."""
        reported = list(task.metadata.eval_splits)
        return reported[0] if self.split == TEST and TEST not in reported else self.split

    def _reported(self) -> bool:
        task = self.load_task()
        return self.split_of(task) in task.metadata.eval_splits

    def _identity(self) -> dict[str, Any]:
        facts = {"format": "mteb", "task": self.task, "split": self.split, "language": self.language}
        return facts | {"revision": self.load_task().metadata.revision}

    def _load(self) -> Collection:
        task = self.load_task()
        subset, split = self.subset(task), self.split_of(task)
        task = task.filter_eval_splits([split]).filter_languages(None, hf_subsets=[subset])
        try:
            task.load_data()
            task.convert_v1_dataset_format_to_v2(num_proc=None)
            data = task.dataset[subset][split]
        except Exception as error:  # the hub client, its transport and every loader have their own classes
            raise DataError(f"{self.location}: could not be loaded by mteb ({first_line(error)})") from error
        grades = {(q, d): max(0, int(grade)) for q, own in data["relevant_docs"].items() for d, grade in own.items()}
        queries = {row["id"]: row["text"] for row in data["queries"]}
        passages = {row["id"]: f"{row.get('title') or ''} {row['text']}".strip() for row in data["corpus"]}
        return Collection(self.location, grades, queries, passages)


class IrDatasetsSource(BenchmarkSource):
    """A dataset of the package `ir_datasets`, such as `beir/fiqa/train`, downloaded by it.

    Needs `pip install 'mixfluence[ir-datasets]'`. Ids with a part `test`, such as `antique/test/non-offensive`, are
    for `test` only.

    Attributes:
        id: Id of the dataset, with its split.
    """

    format: Literal["ir_datasets"] = "ir_datasets"
    id: str

    def _reported(self) -> bool:
        return TEST in self.id.split("/")

    def _identity(self) -> dict[str, Any]:
        return {"format": "ir_datasets", "id": self.id, "version": version("ir_datasets")}

    def _load(self) -> Collection:
        ir_datasets = _import("ir_datasets")
        try:
            dataset = ir_datasets.load(self.id)
            judged = [(one.query_id, one.doc_id, one.relevance) for one in dataset.qrels_iter()]
            queries = {query.query_id: query.default_text() for query in dataset.queries_iter()}
            passages = {doc.doc_id: doc.default_text().strip() for doc in dataset.docs_iter()}
        except Exception as error:  # downloads and every file format have their own classes
            raise DataError(f"{self.id}: could not be loaded by ir_datasets ({first_line(error)})") from error
        grades = {(query, doc): max(0, grade) for query, doc, grade in judged}
        asked = {query for query, _ in grades}
        return Collection(self.location, grades, {id: text for id, text in queries.items() if id in asked}, passages)


def _import(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        extra = package.replace("_", "-")
        raise DataError(f"the format {package} needs an extra: pip install 'mixfluence[{extra}]'") from error
