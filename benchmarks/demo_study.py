"""The demo's samplers on two libraries and several seeds: the table of docs/RESULTS.md.

python benchmarks/demo_study.py --seeds 3
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from statistics import fmean, stdev

from mixfluence.cli.demo import SAMPLERS, pool_changes
from mixfluence.experiment import run
from mixfluence.recipe_yaml import find_recipe, load_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="*", default=["scikit-learn", "pandas"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=Path("runs/demo-study"))
    options = parser.parse_args()
    for target in options.targets:
        for label, change in SAMPLERS.items():
            scores, seconds = [], []
            for seed in range(options.seeds):
                shutil.rmtree(options.scratch, ignore_errors=True)
                own = [change.format(target=target), f"seed={seed}", f"output={options.scratch}"]
                recipe = load_recipe(find_recipe("pydocs"), [*pool_changes(target), *own])
                scores.append(100 * run(recipe)[target].mean("ndcg@10"))
                spent = json.loads((options.scratch / "record.json").read_text())["seconds"]
                seconds.append(spent["train"] + spent["probe"])
            spread = stdev(scores) if options.seeds > 1 else 0.0
            print(
                f"{target:14} {label:14} {fmean(scores):5.1f}  sd {spread:.2f}  "
                f"{' '.join(f'{score:.2f}' for score in scores)}  {fmean(seconds):.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
