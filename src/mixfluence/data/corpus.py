"""The format `corpus`: training pairs from bare documents, and labelled queries of the same documents.

Each kind of pair is a training set of its own, so that a sampler can tell which of them helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

import xxhash
from pydantic import model_validator

from mixfluence.data.documents import PAIRS, Document, Kind, Split, document_files, read_documents, take_split
from mixfluence.data.pairs import RecordReader
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Facts, Row, RowSet, convert_once
from mixfluence.data.source import ExistingPath, FileSource, Record, note_dropped, read_records
from mixfluence.errors import DataError
from mixfluence.schema import Count, WholeNumber, short

# Columns of labelled queries that have ids of documents.
REFERENCES = ("doc_id", "doc_ids", "docid", "document_id", "corpus_id", "corpus-id")


class CorpusSource(FileSource):
    """Pairs made from documents, or labelled queries of them.

    `path` is a file of records with `text` and perhaps `title` (jsonl, json, csv, tsv or parquet), or a folder of text
    and Markdown files. The splits `dev` and `test` are the pairs of a tenth of the documents each, at most 1,000, by a
    hash of their text; `train` is the rest, and `all` everything. Of labelled queries, half are `dev` and half `test`.
    The passages of a task are those of all documents.

    Attributes:
        kind: What the query of a pair is: the `title`, the `first-sentence`, a random `crop` of each passage, the
            `heading` of a section after the title, or labelled (`queries`). The passage is the rest, or the section.
        queries: A file of labelled queries as in the format pairs. The positive is the text of a document; a column
            `doc_id` or `doc_ids` has ids of documents instead.
        words: The most words of a passage. A long document has several, of which all are cropped and the first is used
            for the other kinds.
        seed: Determines the crops.
    """

    format: Literal["corpus"] = "corpus"
    kind: Kind | Literal["queries"]
    split: Split
    queries: ExistingPath | None = None
    words: Count = 200
    seed: WholeNumber = 0

    @model_validator(mode="after")
    def _labelled_queries(self) -> Self:
        if self.kind == "queries":
            if self.queries is None:
                raise ValueError("queries: the kind 'queries' needs a file of labelled queries")
            if self.split == "train":
                raise ValueError("split: labelled queries are dev and test; train on others with the format pairs")
        return self

    @property
    def on_disk(self) -> bool:
        return super().on_disk and (self.queries is None or self.queries.exists())

    def read_rows(self) -> RowSet:
        files = document_files(self.path)
        if self.queries and self.kind == "queries":
            files.append(self.queries)
        options = self.model_dump(mode="json", include={"format", "kind", "split", "words", "seed"})
        return convert_once(files, options, self._rows)

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        notes: tuple[str, ...] = ()
        if self.kind == "queries":
            facts, documents = Facts(), read_documents(self.path)
            labelled = self._labelled(documents, facts)
            texts = [document.whole for document in documents if document.whole]
            notes = tuple(f"{name}: {note}" for note in facts.notes)
        else:
            labelled = {}
            for row in self.read_rows().rows:
                labelled.setdefault(row["anchor"], []).append(row["positive"])
            texts = list(self.model_copy(update={"split": "all"}).read_rows().rows["positive"])
        # Labelled positives that are the text of no document can only be found if they are added.
        texts = list(dict.fromkeys([*texts, *(text for positives in labelled.values() for text in positives)]))
        ids = {text: f"d{place}" for place, text in enumerate(texts)}
        qrels = {f"q{place}": {ids[text]: 1 for text in own} for place, own in enumerate(labelled.values())}
        return RetrievalSet(name, list(qrels), list(labelled), list(ids.values()), texts, qrels, notes=notes)

    def _rows(self, facts: Facts) -> Iterator[Row]:
        documents = read_documents(self.path)
        if self.kind == "queries":
            yield from (Row(query, texts[0]) for query, texts in self._labelled(documents, facts).items())
            return
        make, lack = PAIRS[self.kind]
        chosen = take_split(documents, self.split)
        without = []
        for document in chosen:
            rows = list(make(document, self.words, self.seed))
            without += [] if rows else [f"'{document.id}'"]
            yield from rows
        if len(without) == len(chosen):
            raise DataError(f"{self.path}: no pairs of the kind '{self.kind}': found only documents {lack}")
        note_dropped(facts.notes, self.path, f"documents {lack}", without, len(chosen))

    def _labelled(self, documents: Sequence[Document], facts: Facts) -> dict[str, list[str]]:
        """Return the labelled queries of the split with the texts of the documents that answer them."""
        assert self.queries is not None  # checked when the recipe was read
        by_id = {document.id: document.whole for document in documents}
        known = {text: document.whole for document in documents for text in (document.text, document.whole)}
        found: dict[str, list[str]] = {}
        unknown = []
        for row in RecordReader(str(self.queries)).read([_with_texts(self.queries, by_id)], facts):
            text = known.get(row.positive.strip())
            unknown += [] if text else [short(row.anchor)]
            found.setdefault(row.anchor, []).append(text or row.positive)
        if unknown:
            what = "positives are the text of no document and were added to the passages"
            facts.notes.append(f"{self.queries}: {len(unknown)} {what}, such as that of {unknown[0]}")
        if len(found) < 2:
            raise DataError(f"{self.queries}: {len(found)} queries are too few to be split into dev and test")
        order = sorted(found, key=lambda query: xxhash.xxh3_128_hexdigest(query.encode()))
        half = len(order) // 2
        chosen = set({"dev": order[:half], "test": order[half:]}.get(self.split, order))
        return {query: texts for query, texts in found.items() if query in chosen}


def _with_texts(file: Path, documents: dict[str, str]) -> Iterator[Record]:
    """Yield labelled queries with texts in place of the ids of documents."""
    for where, record in read_records(file):
        column = next((name for name in REFERENCES if name in record), None) if isinstance(record, dict) else None
        if column is None:
            yield where, record
            continue
        ids = record[column] if isinstance(record[column], list) else [record[column]]
        if unknown := [id for id in ids if str(id) not in documents]:
            raise DataError(f"{where}: found {short(unknown[0])} as '{column}', expected the id of a document")
        others = {name: value for name, value in record.items() if name != column}
        yield where, others | {"positive": [documents[str(id)] for id in ids]}
