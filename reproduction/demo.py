"""The demo's samplers on two libraries and several seeds.

python -m reproduction.demo --seeds 3
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from statistics import fmean, stdev

from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.sweep import Job, run_jobs
from reproduction.package import RECORD_FILE, demo_changes, read_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="*", default=["scikit-learn", "pandas"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/demo-study"))
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("mixfluence").setLevel(logging.INFO)
    groups: dict[tuple[str, str], list[Job]] = {}
    for target in options.targets:
        for label, changes in demo_changes(target).items():
            recipe = load_recipe(find_recipe("pydocs"), changes)
            for seed in range(options.seeds):
                name = f"{target}/{label}/{seed}"
                own = recipe.model_copy(update={"seed": seed, "output": options.output / name})
                groups.setdefault((target, label), []).append(Job(name, own))
    failed = run_jobs([job for jobs in groups.values() for job in jobs])
    for (target, label), jobs in groups.items():
        records = [read_record(job.folder / RECORD_FILE) for job in jobs if job.name not in failed]
        scores = [100 * record["scores"][target]["ndcg@10"] for record in records]
        seconds = [record["seconds"]["train"] + record["seconds"]["probe"] for record in records]
        if scores:
            spread = stdev(scores) if len(scores) > 1 else 0.0
            values = " ".join(f"{score:.2f}" for score in scores)
            print(f"{target:14} {label:14} {fmean(scores):5.1f}  sd {spread:.2f}  {values}  {fmean(seconds):.0f} s")


if __name__ == "__main__":
    main()
