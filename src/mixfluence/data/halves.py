"""A dev set in two halves: one guides sampling, the other selects checkpoints.

Using one dev set for both favours strategies that look at it. The halves are decided by the query's text
alone, so that rows and retrieval sets of the same file are cut the same way on every machine.
"""

from __future__ import annotations

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet
from mixfluence.data.tokenising import text_key
from mixfluence.errors import DataError


def guiding_half(name: str, dev: RowSet) -> RowSet:
    """Return the dev rows that may guide sampling."""
    chosen = [row for row, anchor in enumerate(dev.rows["anchor"]) if _guides(anchor)]
    if not chosen:
        raise DataError(f"{name}: too small to be cut in two halves ({len(dev)} rows)")
    return dev.take(chosen, f"{dev.fingerprint}-guiding")


def selecting_half(dev: RetrievalSet) -> RetrievalSet:
    """Return the dev queries that may select a checkpoint: those that `guiding_half` leaves out."""
    chosen = [place for place, query in enumerate(dev.queries) if not _guides(query)]
    if not chosen:
        raise DataError(f"{dev.name}: too small to be cut in two halves ({len(dev.queries)} queries)")
    return dev.take_queries(chosen)


def _guides(query: str) -> bool:
    return text_key(query) % 2 == 0
