"""Training queries that are also test queries: found before training, dropped or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet
from mixfluence.errors import DataError

EXAMPLES = 5


@dataclass(frozen=True)
class Overlap:
    """Rows of one training dataset whose anchor is a test query, up to case and spacing."""

    dataset: str
    rows: tuple[int, ...]
    anchors: tuple[str, ...]

    def __str__(self) -> str:
        shown = "; ".join(map(repr, self.anchors[:EXAMPLES]))
        return f"{self.dataset}: {len(self.rows)} training rows ask a test query ({shown})"


def find_overlap(mixture: Mixture, test_queries: Iterable[str]) -> list[Overlap]:
    """Return, for each dataset that has any, the rows whose anchor is one of the test queries."""
    forbidden = {_plain(query) for query in test_queries}
    if not forbidden:
        return []
    found = []
    for name, dataset in mixture.items():
        anchors = dataset.rows["anchor"]
        rows = tuple(row for row, anchor in enumerate(anchors) if _plain(anchor) in forbidden)
        if rows:
            found.append(Overlap(name, rows, tuple(anchors[row] for row in rows)))
    return found


def without_overlap(
    mixture: Mixture, test_queries: Mapping[str, Iterable[str]], rule: Literal["drop", "refuse"]
) -> tuple[Mixture, list[Overlap]]:
    """Return the mixture without rows that ask a test query, and what was taken out.

    Args:
        mixture: The training pool.
        test_queries: Queries of each test set.
        rule: Take such rows out, or refuse to go on.
    """
    overlaps = find_overlap(mixture, (query for queries in test_queries.values() for query in queries))
    if overlaps and rule == "refuse":
        raise DataError("\n".join(map(str, overlaps)))
    kept = dict(mixture)
    for overlap in overlaps:
        kept[overlap.dataset] = _without(overlap.dataset, kept[overlap.dataset], overlap.rows)
    return Mixture(kept), overlaps


def _without(name: str, dataset: RowSet, rows: tuple[int, ...]) -> RowSet:
    keep = np.delete(np.arange(len(dataset)), rows)
    if not len(keep):
        raise DataError(f"{name}: every training row asks a test query, nothing is left to train on")
    # The kept rows are a function of the content and of the rows left out, so they name the result.
    left_out = xxhash.xxh3_64_hexdigest(np.array(rows, np.int64).tobytes())
    return dataset.take(keep.tolist(), f"{dataset.fingerprint}-without-{left_out}")


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
