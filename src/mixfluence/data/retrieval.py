"""Retrieval tasks: queries, a corpus and graded judgements; and dev sets split in two halves.

One half guides sampling, the other selects checkpoints: a dev set used for both favours strategies that train on it.
The half of a query depends on its text alone, so rows and tasks of a file are split the same way on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import xxhash

from mixfluence.data.rows import RowSet, text_key
from mixfluence.errors import DataError


@dataclass(frozen=True)
class RetrievalSet:
    """A retrieval task. Queries without a positive judgement still count, with a score of zero.

    Args:
        name: Its name in tables.
        query_ids: Their ids, in the order of `queries`.
        queries: The texts of queries.
        doc_ids: Their ids, in the order of `docs`.
        docs: The texts of passages, with titles prepended.
        qrels: Query id -> passage id -> grade; grades of zero and below are judged but not relevant.
        query_prompt: Prepended to queries; None for the model's own prompt.
        passage_prompt: Prepended to passages; None for the model's own prompt.
        notes: The reader's notes, each with the task's name.
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
            if not len(texts):
                raise DataError(f"{self.name}: a retrieval task needs queries and passages, found no {what}")
            if not len(texts) == len(ids) == len(set(ids)):
                raise DataError(f"{self.name}: {len(texts)} {what} have {len(set(ids))} distinct ids")

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

    def sample_corpus(self, size: int, seed: int = 0) -> RetrievalSet:
        """Return the same task with every judged passage and random others, `size` passages in all.

        For selecting checkpoints, where searching millions of passages would cost more than training. Never for
        reported scores, which would be too high.
        """
        if len(self.doc_ids) <= size:
            return self
        judged = {doc for grades in self.qrels.values() for doc in grades}
        keep = [i for i, doc in enumerate(self.doc_ids) if doc in judged]
        others = [i for i, doc in enumerate(self.doc_ids) if doc not in judged]
        keep += random.Random(seed).sample(others, max(0, min(size - len(keep), len(others))))
        keep.sort()
        return replace(self, doc_ids=[self.doc_ids[i] for i in keep], docs=[self.docs[i] for i in keep])


def retrieval_from_rows(name: str, dataset: RowSet) -> RetrievalSet:
    """Return a task of pairs: every distinct query against every distinct passage of the dataset.

    A passage is relevant to the queries that it is a positive of. A format with a corpus gives a harder and more
    realistic task.
    """
    docs: dict[str, str] = {}
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for row in dataset.rows:
        for text in (row["positive"], *row["negatives"]):
            docs.setdefault(text, f"d{len(docs)}")
        query = queries.setdefault(row["anchor"], f"q{len(queries)}")
        qrels.setdefault(query, {})[docs[row["positive"]]] = 1
    return RetrievalSet(name, list(queries.values()), list(queries), list(docs.values()), list(docs), qrels)


def guiding_half(name: str, dev: RowSet) -> RowSet:
    """Return the dev rows that may guide sampling."""
    chosen = [row for row, anchor in enumerate(dev.rows["anchor"]) if _guides(anchor)]
    if not chosen:
        raise DataError(f"{name}: too small to be split in two halves ({len(dev)} rows)")
    return dev.take(chosen, f"{dev.fingerprint}-guiding")


def selecting_half(dev: RetrievalSet) -> RetrievalSet:
    """Return the dev queries that may select a checkpoint: those that `guiding_half` leaves out."""
    chosen = [place for place, query in enumerate(dev.queries) if not _guides(query)]
    if not chosen:
        raise DataError(f"{dev.name}: too small to be split in two halves ({len(dev.queries)} queries)")
    return dev.take_queries(chosen)


def scoring_sample(dev: RetrievalSet, queries: int, passages: int, *, halves: bool) -> RetrievalSet:
    """Return a small task to compare models by: of the queries that may guide, if halves are kept apart."""
    chosen = [place for place, query in enumerate(dev.queries) if _guides(query) or not halves]
    if not chosen:
        raise DataError(f"{dev.name}: too small to be split in two halves ({len(dev.queries)} queries)")
    chosen = sorted(random.Random(0).sample(chosen, min(queries, len(chosen))))
    return dev.take_queries(chosen).sample_corpus(passages)


def _guides(query: str) -> bool:
    return text_key(query) % 2 == 0
