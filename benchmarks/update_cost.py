"""Measured cost of an update against the cost model of `mixfluence plan`, from the traces of finished runs.

Both sides come from one run on one process, so that a busy machine slows both.

    mixfluence train english13 defaults.path='DATA/{name}' dev='[covidqa]' test='[covidqa]' selection=null \
        strategy='{name: inf-dds, init: uniform}' output=runs/cost
    python benchmarks/update_cost.py runs/cost
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from mixfluence.runs import read_run


def step_seconds(trace: list[dict[str, Any]]) -> float:
    """Return the median over log lines of the seconds a training step took."""
    spans = []
    for before, after in pairwise(trace):
        if (steps := after["step"] - before["step"]) and "trained" in after:
            spans.append((after["seconds"] - before["seconds"]) / steps)
    return float(median(spans))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    print("datasets  targets  inner steps  step ms  update s  model s  measured / model  overhead of the run")
    for folder in parser.parse_args().runs:
        run = read_run(folder)
        recipe, trace, probing = run.recipe, run.trace, run.recipe.strategy.probing
        updates = [line["update"] for line in trace if "update" in line]
        assert probing, f"{folder}: {recipe.strategy.name} has no updates"
        assert updates, f"{folder}: the run is too short for an update"
        step, batch = step_seconds(trace), recipe.training.batch_size
        datasets = probing.subset or len(recipe.train)
        relative, dev = (probing.method.batch_size or batch) / batch, sum(updates[0]["rows"].values()) / batch
        expected = step * probing.method.round_cost(datasets, relative, probing.steps, dev, 1)
        measured = fmean(update["seconds"] for update in updates)
        overhead = sum(update["seconds"] for update in updates) / (step * trace[-1]["step"])
        print(
            f"{datasets:8} {len(recipe.dev):8} {probing.steps:12} {1000 * step:8.1f} {measured:9.3f} "
            f"{expected:8.3f} {measured / expected:17.2f} {overhead:20.0%}"
        )


if __name__ == "__main__":
    main()
