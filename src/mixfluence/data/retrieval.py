"""What a model is judged on: queries, a corpus and graded judgements."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import xxhash

from mixfluence.data.rows import RowSet
from mixfluence.errors import DataError


@dataclass(frozen=True)
class RetrievalSet:
    """A retrieval task. Queries without a positive judgement still count, with a score of zero.

    Args:
        name: How tables call it.
        query_ids: One id per query, in the order of `queries`.
        queries: Query texts.
        doc_ids: One id per passage, in the order of `docs`.
        docs: Passage texts, title already joined.
        qrels: Query id -> passage id -> grade; grades of zero and below are judged but not relevant.
        query_prompt: Put before queries instead of the model's own query prompt; None keeps the model's.
        passage_prompt: Likewise for passages.
        notes: What was noted as it was read, each with its name.
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
        if not len(self.query_ids) or not len(self.doc_ids):
            raise DataError(
                f"{self.name}: a retrieval set needs queries and passages, "
                f"found {len(self.query_ids)} and {len(self.doc_ids)}"
            )
        for what, ids, texts in (
            ("queries", self.query_ids, self.queries),
            ("passages", self.doc_ids, self.docs),
        ):
            if len(ids) != len(texts) or len(set(ids)) != len(ids):
                raise DataError(
                    f"{self.name}: {len(texts)} {what} have {len(ids)} ids, {len(set(ids))} of them distinct"
                )

    @property
    def fingerprint(self) -> str:
        """A hash of queries, passages and judgements, by which runs know that they were judged on the same."""
        digest = xxhash.xxh3_128()
        for texts in (self.query_ids, self.queries, self.doc_ids, self.docs):
            for text in texts:
                digest.update(text.encode())
                digest.update(b"\0")
        grades = {query: dict(self.qrels[query]) for query in self.qrels}
        digest.update(json.dumps(grades, sort_keys=True).encode())
        return digest.hexdigest()

    def take_queries(self, positions: Sequence[int]) -> RetrievalSet:
        """Return the same task with only the queries at these positions (the corpus stays whole)."""
        ids = [self.query_ids[i] for i in positions]
        return replace(
            self,
            query_ids=ids,
            queries=[self.queries[i] for i in positions],
            qrels={query: self.qrels[query] for query in ids if query in self.qrels},
        )

    def sample_corpus(self, size: int, seed: int = 0) -> RetrievalSet:
        """Return the same task with every judged passage and random others, `size` passages in all.

        For choosing checkpoints, where searching millions of passages would cost more than training;
        never for reported numbers, which would come out too high.
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
    """Make a retrieval set of pairs: every distinct query against every distinct passage of the dataset.

    A passage is relevant to the queries it is a positive of. For data that comes without a corpus; where
    there is one, its reader gives a harder and more honest task.
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
