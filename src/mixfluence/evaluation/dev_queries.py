"""How each query of a dev set fared, with its texts: for readers, who learn more from examples than from means."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from mixfluence.errors import DataError
from mixfluence.files import write_text

_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class DevQuery:
    """One dev query, ranked against the positives of all dev queries that were looked at.

    Args:
        query: Its text. All texts are cut to a few hundred characters.
        positive: The passage that answers it; of several the one that was ranked highest.
        other: The passage ranked highest of those that do not answer it; empty if all do.
        rank: The place of `positive`, from 1.
        among: How many passages were ranked.
        margin: The cosine of `positive` less that of `other`; above 0 where the rank is 1.
        ndcg: NDCG@10, from 0 to 1.
    """

    query: str
    positive: str
    other: str
    rank: int
    among: int
    margin: float
    ndcg: float


def write_dev_queries(dataset: str, queries: Sequence[DevQuery], folder: Path) -> Path:
    """Write `<folder>/<dataset>.jsonl`, one line per query, and return that path.

    The name is percent-encoded, so that any dataset name stays inside the folder, and the file appears
    whole or not at all.
    """
    path = folder / (quote(dataset, safe="") + _SUFFIX)
    lines = (json.dumps(asdict(query), ensure_ascii=False) + "\n" for query in queries)
    write_text(path, "".join(lines))
    return path


def read_dev_queries(path: Path) -> tuple[str, list[DevQuery]]:
    """Read a file of `write_dev_queries`: the name of its dev set, and the queries in the order of its rows.

    Raises:
        DataError: If it cannot be read, or a line is not what was written.
    """
    if not path.is_file():
        raise DataError(f"{path}: cannot be read (not a file)")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    queries = [_parse(path, number, line) for number, line in enumerate(lines, start=1) if line]
    if not queries:
        raise DataError(f"{path}: holds no queries")
    return unquote(path.name.removesuffix(_SUFFIX)), queries


def _parse(path: Path, number: int, line: str) -> DevQuery:
    try:
        row = json.loads(line)
        query, positive, other = (str(row[name]) for name in ("query", "positive", "other"))
        rank, among, margin, ndcg = int(row["rank"]), int(row["among"]), float(row["margin"]), float(row["ndcg"])
        if not (math.isfinite(margin) and 0 <= ndcg <= 1):
            raise ValueError(f"a margin of {margin} and an NDCG of {ndcg}")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        raise DataError(f"{path}:{number}: not a line of dev queries ({problem!r})") from problem
    return DevQuery(query, positive, other, rank, among, margin, ndcg)
