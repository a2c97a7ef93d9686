"""What an update of Inf-DDS costs against what the cost model says, from the traces of finished runs.

The model: datasets x inner steps training steps of the probe's batch, and (datasets + 1) looks at every dev batch, a
look being a third of a training step of as many rows. Both sides come from one run, so that a busy machine slows both.

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

from mixfluence.config.strategy import InfDDSSection

from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_trace


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
    for run in parser.parse_args().runs:
        recipe = load_recipe(run / "recipe.yaml", files_may_be_missing=True)
        strategy, trace = recipe.strategy, read_trace(run / "trace.jsonl")
        assert isinstance(strategy, InfDDSSection), f"{run}: not a run of inf-dds"
        updates = [line["update"] for line in trace if "update" in line]
        step = step_seconds(trace)
        batch = recipe.training.batch_size
        datasets = strategy.subset or len(recipe.train)
        probes = datasets * strategy.inner_steps * (strategy.probe.batch_size or batch) / batch
        looks = (datasets + 1) * sum(updates[0]["rows"].values()) / batch / 3
        expected, measured = (probes + looks) * step, fmean(update["seconds"] for update in updates)
        overhead = sum(update["seconds"] for update in updates) / (step * trace[-1]["step"])
        print(
            f"{datasets:8} {len(recipe.dev):8} {strategy.inner_steps:12} {1000 * step:8.1f} {measured:9.3f} "
            f"{expected:8.3f} {measured / expected:17.2f} {overhead:20.0%}"
        )


if __name__ == "__main__":
    main()
