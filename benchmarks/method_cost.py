"""Measured cost of every sampler against its predicted cost, in static runs of as many steps.

The prediction, and memory in parameter sizes, are those of `mixfluence plan`. The measurement is seconds of training,
probing, stages and clustering over those of a static run. The data is that of the recipe `english13`; the settings are
those of its siblings or of a file.

    python benchmarks/method_cost.py DATA --target covidqa --steps 200
    python benchmarks/method_cost.py DATA --methods reproduction/english/chosen.txt --out costs.jsonl
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mixfluence.errors import RecipeError

METHODS = [
    *("cooldown", "target-only", "inf-dds", "replay", "multidds", "aioli", "doge", "doremi", "tdro", "crisp"),
    *("odm", "chameleon", "merge", "regmix"),
]
PARTS = ("train", "probe", "score", "cluster")


class Method(NamedTuple):
    """A sampler: its recipe, changes to it, and the method whose run it replays, if any."""

    recipe: str
    changes: list[str]
    replays: str | None = None


def shipped() -> dict[str, Method]:
    """Return the samplers as the recipes have them."""
    return {name: Method(f"english13-{name}", [], "inf-dds" if name == "replay" else None) for name in METHODS}


def listed(path: Path) -> dict[str, Method]:
    """Return the samplers of a file such as `reproduction/english/chosen.txt`."""
    lines = dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {
        name: Method("english13", [f"strategy={line}"], yaml.safe_load(line).get("run"))
        for name, line in lines.items()
    }


def seconds_of(record: dict[str, Any]) -> float:
    stages = sum(stage["seconds"].get(part, 0.0) for stage in record["stages"].values() for part in PARTS)
    return float(sum(record["seconds"].get(part, 0.0) for part in PARTS) + stages)


def measure(name: str, method: Method, common: list[str], scratch: Path) -> dict[str, Any]:
    """Run a sampler; return its seconds, predicted cost and memory."""
    from mixfluence.experiment import run
    from mixfluence.plan import plan_run
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    folder = scratch / name.replace(" ", "_")
    changes = [*common, *method.changes, f"output={folder}"]
    if method.replays:
        changes.append(f"strategy.run={scratch / method.replays.replace(' ', '_')}")
    recipe = load_recipe(find_recipe(method.recipe), changes)
    run(recipe)
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    plan = plan_run(recipe)
    return {
        "method": name,
        "seconds": seconds_of(record),
        "predicted": plan.times_static,
        "memory": plan.sampler_memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--target", default="covidqa")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--methods", type=Path, help="file of lines: name={strategy as YAML}")
    parser.add_argument("--set", nargs="*", default=[], help="further changes to the recipes, key=value")
    parser.add_argument("--scratch", type=Path, default=Path("runs/method-cost"))
    parser.add_argument("--out", type=Path, help="also write the lines there, as JSON")
    options = parser.parse_args()
    shutil.rmtree(options.scratch, ignore_errors=True)
    common = [f"defaults.path={options.data}/{{name}}", f"dev=[{options.target}]", "test={}", "selection=null"]
    common += [f"training.steps={options.steps}", *options.set]
    methods = {"uniform": Method("english13", ["strategy={name: static, init: uniform}"])}
    methods |= listed(options.methods) if options.methods else shipped()
    print(f"{'method':36} {'seconds':>8} {'measured':>9} {'predicted':>10} {'memory':>7}", flush=True)
    # The first run of a process loads kernels and allocates memory, which must not count for any sampler.
    measure("before", methods["uniform"], common, options.scratch)
    once = 0.0
    for name, method in methods.items():
        try:
            line = measure(name, method, common, options.scratch)
        except RecipeError as error:  # such as a cap on epochs with too few rows of the target
            print(f"{name:36} refused: {error}", flush=True)
            continue
        once = once or line["seconds"]
        line["measured"] = line["seconds"] / once
        numbers = "{seconds:8.1f} {measured:9.2f} {predicted:10.2f} {memory:7.1f}".format(**line)
        print(f"{name:36} {numbers}", flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
