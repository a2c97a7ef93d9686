"""The dev queries a reader wants to see: those a model answers best, and those it answers worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from mixfluence.evaluation.dev_queries import DevQuery

MOST_QUERIES = 10
# Texts of many runs are cut shorter, so that all of them together make a page of a few megabytes.
SHORTEST_TEXT, LONGEST_TEXT, ALL_CHARACTERS = 50, 240, 500_000


@dataclass(frozen=True)
class Extremes:
    """A dev set by its ends.

    Attributes:
        looked_at: How many queries there are in all.
        ndcg: Their mean NDCG@10 in points.
        best: The ten best, the best first; of fewer than twenty queries half of them.
        worst: The ten worst, the worst first; none that is among the best.
    """

    looked_at: int
    ndcg: float
    best: list[DevQuery]
    worst: list[DevQuery]


def longest_text(sets: int) -> int:
    """Return how many characters a text may have on a page with the ends of this many dev sets."""
    texts = 3 * 2 * MOST_QUERIES * max(sets, 1)
    return max(SHORTEST_TEXT, min(LONGEST_TEXT, ALL_CHARACTERS // texts))


def extremes(queries: Sequence[DevQuery], longest: int) -> Extremes:
    """Return the ends of a dev set, by rank and, where ranks are equal, by the margin over the best wrong passage."""
    order = sorted(queries, key=lambda query: (query.rank, -query.margin))
    half = (len(order) + 1) // 2
    best, rest = order[:half], order[half:]
    return Extremes(
        looked_at=len(order),
        ndcg=100 * fmean(query.ndcg for query in order),
        best=[_shortened(query, longest) for query in best[:MOST_QUERIES]],
        worst=[_shortened(query, longest) for query in rest[::-1][:MOST_QUERIES]],
    )


def _shortened(query: DevQuery, longest: int) -> DevQuery:
    def cut(text: str) -> str:
        return text if len(text) <= longest else f"{text[:longest].rstrip(' …')}…"

    return replace(query, query=cut(query.query), positive=cut(query.positive), other=cut(query.other))
