"""Prints the results of `study final` as a Markdown table, with 95% t-intervals over seeds.

python -m reproduction.english.table reproduction/results/english13.jsonl
python -m reproduction.english.table reproduction/results/english13_methods.jsonl --costs costs.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

from reproduction.english.study import JOINT, SINGLE

Column = tuple[tuple[str, ...], str]
COLUMNS: list[Column] = [((name,), own) for own in ("in", "out") for name in SINGLE] + [(tuple(JOINT), "in")]
# Fields that benchmarks/method_cost.py writes: two in units of a static run, the last in copies of the parameters.
COSTS = ["measured", "predicted", "memory"]


def fits(line: dict[str, Any]) -> Iterator[Column]:
    """Yield the columns of a run; a run on the whole pool without a target counts for several."""
    targets, own = tuple(line["targets"]), "in" if line["own"] == "only" else line["own"]
    for names, pool in COLUMNS:
        if pool == own and targets in (names, ("all",)):
            yield names, pool


def interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f} (one seed)"
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):.1f} ± {half:.1f}"


def rows(lines: Iterable[dict[str, Any]], costs: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the table, a line for each method and number of steps.

    Args:
        lines: Results of finished runs.
        costs: Method -> measurements of `benchmarks/method_cost.py`.
    """
    scores: dict[tuple[str, int], dict[Column, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for names, pool in fits(line):
            score = 100 * fmean(line["test"][name] for name in names)
            scores[line["method"], line["steps"]][names, pool].append(score)
    heads = [f"{names[0] if len(names) == 1 else 'joint'}, {pool}" for names, pool in COLUMNS]
    heads += COSTS if costs else []
    yield f"| | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 1) + "|"
    for (method, steps), cells in scores.items():
        values = [interval(cells[column]) if column in cells else "" for column in COLUMNS]
        if costs:
            values += [f"{costs[method][name]:.1f}" if method in costs else "" for name in COSTS]
        yield f"| {method}, {steps} steps | {' | '.join(values)} |"


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--costs", type=Path, help="output of benchmarks/method_cost.py")
    options = parser.parse_args()
    costs = {line["method"]: line for line in read_lines(options.costs)} if options.costs else {}
    print("\n".join(rows((line for line in read_lines(options.results) if "test" in line), costs)))


if __name__ == "__main__":
    main()
