"""The finished cells of `english_study.py final` as a Markdown table, with 95% t-intervals over seeds.

python benchmarks/english_table.py benchmarks/results/english13.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from english_study import JOINT, SINGLE
from scipy.stats import t

Column = tuple[tuple[str, ...], str]
COLUMNS: list[Column] = [((name,), own) for own in ("in", "out") for name in SINGLE] + [(tuple(JOINT), "in")]


def fits(line: dict[str, Any]) -> Iterator[Column]:
    """Yield the columns a run is a figure of: one with the whole pool and no target is one of several."""
    targets, own = tuple(line["targets"]), "in" if line["own"] == "only" else line["own"]
    for names, pool in COLUMNS:
        if pool == own and targets in (names, ("all",)):
            yield names, pool


def interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f} (one seed)"
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):.1f} ± {half:.1f}"


def rows(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    scores: dict[str, dict[Column, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for names, pool in fits(line):
            score = 100 * fmean(line["test"][name] for name in names)
            scores[f"{line['method']}, {line['steps']} steps"][names, pool].append(score)
    heads = [f"{names[0] if len(names) == 1 else 'joint'}, {pool}" for names, pool in COLUMNS]
    yield f"| | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 1) + "|"
    for method, cells in scores.items():
        yield f"| {method} | {' | '.join(interval(cells[c]) if c in cells else '' for c in COLUMNS)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    lines = [json.loads(line) for line in parser.parse_args().results.read_text().splitlines()]
    print("\n".join(rows(line for line in lines if "test" in line)))


if __name__ == "__main__":
    main()
