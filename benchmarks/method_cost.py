"""What every sampler costs against what its docstring says, in training steps of a static run, all in one go.

Predicted is what `mixfluence plan` says. Measured: seconds of training, measuring, stages and clustering over those of
a static run. The data is that of the recipe `english13`.

    python benchmarks/method_cost.py DATA --target covidqa --steps 200
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

METHODS = ["cooldown", "target-only", "inf-dds", "replay", "multidds", "aioli", "doge", "doremi", "tdro", "crisp"]
PARTS = ("train", "probe", "cluster")


def seconds_of(record: dict[str, Any]) -> float:
    stages = sum(stage["seconds"].get(part, 0.0) for stage in record["stages"].values() for part in PARTS)
    return float(sum(record["seconds"].get(part, 0.0) for part in PARTS) + stages)


def main() -> None:
    from mixfluence.config.files import find_recipe, load_recipe
    from mixfluence.experiment import run
    from mixfluence.planning import plan_run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--target", default="covidqa")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--set", nargs="*", default=[], help="further changes to the recipes, key=value")
    parser.add_argument("--scratch", type=Path, default=Path("runs/method-cost"))
    options = parser.parse_args()
    shutil.rmtree(options.scratch, ignore_errors=True)
    common = [f"defaults.path={options.data}/{{name}}", f"dev=[{options.target}]", "test={}", "selection=null"]
    common += [f"training.steps={options.steps}", *options.set]
    print(f"{'method':12} {'seconds':>8} {'measured':>9} {'predicted':>10} {'memory':>7}", flush=True)
    once = 0.0
    for method in ["static", *options.methods]:
        folder = options.scratch / method
        changes = [*common, f"output={folder}"]
        if method == "replay":
            changes.append(f"strategy.run={options.scratch / 'inf-dds'}")
        recipe = load_recipe(find_recipe("english13" if method == "static" else f"english13-{method}"), changes)
        run(recipe)
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        seconds = seconds_of(record)
        once = once or seconds
        expected = plan_run(recipe).times_static
        memory = record["probing"]["parameter_sizes"]
        print(f"{method:12} {seconds:8.1f} {seconds / once:9.2f} {expected:10.2f} {memory:7.1f}", flush=True)


if __name__ == "__main__":
    main()
