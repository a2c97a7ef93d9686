"""Retrieval tasks: queries, a corpus and graded judgements; and dev sets split in two halves.

One half guides sampling, the other selects checkpoints: a dev set used for both favours strategies that train on it.
The half of a query depends on its text alone, so rows and tasks of a file are split the same way on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import xxhash

from mixfluence.data.rows import RowSet, text_key
from mixfluence.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

    from mixfluence.strategies import Scoring

# Measures take memory for every grade up to the largest, and fail below zero.
LARGEST_GRADE = 1_000


@dataclass(frozen=True)
class RetrievalSet:
    """A retrieval task. Queries without a positive judgement still count, with a score of zero.

    Ids are in the order of the texts, `qrels` is query id -> passage id -> grade (zero is not relevant). A prompt of
    None is the model's own.
    """

    name: str
    query_ids: Sequence[str]
    queries: Sequence[str]
    doc_ids: Sequence[str]
    docs: Sequence[str]
    qrels: Mapping[str, Mapping[str, int]]
    query_prompt: str | None = None
    passage_prompt: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sides = {"queries": (self.query_ids, self.queries), "passages": (self.doc_ids, self.docs)}
        for what, (ids, texts) in sides.items():
            if not 0 < len(texts) == len(ids) == len(set(ids)):
                raise DataError(f"{self.name}: found {len(texts)} {what} with {len(set(ids))} distinct ids")

        for query, grades in self.qrels.items():
            if outside := [grade for grade in grades.values() if not 0 <= grade <= LARGEST_GRADE]:
                raise DataError(f"{self.name}: found the grade {outside[0]} of query {query!r}, expected 0 to 1,000")

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of queries, judgements and passages."""
        judgements = sum(map(len, self.qrels.values()))
        return {"queries": len(self.query_ids), "judgements": judgements, "passages": len(self.doc_ids)}

    @property
    def fingerprint(self) -> str:
        """A hash of queries, passages and judgements: equal for runs that were tested on the same task."""
        digest = xxhash.xxh3_128()
        for texts in (self.query_ids, self.queries, self.doc_ids, self.docs):
            for text in texts:
                digest.update(text.encode())
                digest.update(b"\0")
        grades = {query: dict(judged) for query, judged in self.qrels.items()}
        digest.update(json.dumps(grades, sort_keys=True).encode())
        return digest.hexdigest()

    def take_queries(self, positions: Sequence[int]) -> RetrievalSet:
        """Return the same task with only the queries at these positions and the whole corpus."""
        ids = [self.query_ids[i] for i in positions]
        return replace(
            self,
            query_ids=ids,
            queries=[self.queries[i] for i in positions],
            qrels={query: self.qrels[query] for query in ids if query in self.qrels},
        )

    def sample_corpus(self, size: int) -> RetrievalSet:
        """Return the task with judged passages and random others: to select checkpoints, not for reported scores."""
        if len(self.doc_ids) <= size:
            return self
        judged = {doc for grades in self.qrels.values() for doc in grades}
        keep = [i for i, doc in enumerate(self.doc_ids) if doc in judged]
        others = [i for i, doc in enumerate(self.doc_ids) if doc not in judged]
        keep += random.Random(0).sample(others, max(0, min(size - len(keep), len(others))))
        keep.sort()
        return replace(self, doc_ids=[self.doc_ids[i] for i in keep], docs=[self.docs[i] for i in keep])


def retrieval_from_texts(
    name: str, positives: Mapping[str, Iterable[str]], passages: Iterable[str], notes: Sequence[str] = ()
) -> RetrievalSet:
    """Return a task of queries with their positives, against these passages and all positives."""
    docs = dict.fromkeys([*passages, *chain.from_iterable(positives.values())])
    ids = {text: f"d{place}" for place, text in enumerate(docs)}
    qrels = {f"q{place}": {ids[text]: 1 for text in own} for place, own in enumerate(positives.values())}
    return RetrievalSet(name, list(qrels), list(positives), list(ids.values()), list(ids), qrels, notes=tuple(notes))


def retrieval_from_rows(name: str, dataset: RowSet, others: Iterable[str] = ()) -> RetrievalSet:
    """Return a task of pairs: every query against every passage and other texts."""
    columns = zip(dataset.rows["positive"], dataset.rows["negatives"], strict=True)
    passages = [text for positive, negatives in columns for text in (positive, *negatives)]
    return retrieval_from_texts(name, positives_of(dataset.rows), [*passages, *others])


def positives_of(rows: Dataset) -> dict[str, list[str]]:
    """Return the positives of each query."""
    found: dict[str, list[str]] = {}
    for anchor, positive in zip(rows["anchor"], rows["positive"], strict=True):
        found.setdefault(anchor, []).append(positive)
    return found


def guiding_half(name: str, dev: RowSet) -> RowSet:
    """Return the dev rows that may guide sampling."""
    return dev.take(_half(name, dev.rows["anchor"], guides=True), f"{dev.fingerprint}-guiding")


def selecting_half(dev: RetrievalSet) -> RetrievalSet:
    """Return the dev queries that may select a checkpoint: those that `guiding_half` leaves out."""
    return dev.take_queries(_half(dev.name, dev.queries, guides=False))


def scoring_samples(dev: Sequence[RetrievalSet], scoring: Scoring, *, halves: bool) -> list[RetrievalSet]:
    """Return small tasks to compare models by: of the queries that may guide, if halves are kept apart."""
    samples = []
    for task in dev:
        most, passages = scoring.shares(len(dev))
        chosen = _half(task.name, task.queries, guides=True) if halves else list(range(len(task.queries)))
        chosen = sorted(random.Random(0).sample(chosen, min(most, len(chosen))))
        samples.append(task.take_queries(chosen).sample_corpus(passages))
    return samples


def _half(name: str, queries: Sequence[str], *, guides: bool) -> list[int]:
    chosen = [place for place, query in enumerate(queries) if (text_key(query) % 2 == 0) == guides]
    if not chosen:
        raise DataError(f"{name}: too small to be split in two halves ({len(queries)} queries)")
    return chosen
