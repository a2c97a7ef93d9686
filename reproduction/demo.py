"""Samplers on the docstrings of two libraries, as in the recipe pydocs, and several seeds.

python -m reproduction.demo --seeds 3
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.runs import Group, read_run
from mixfluence.sweep import Job, run_jobs

SAMPLERS = {
    "proportional": "strategy.init=proportional",
    "uniform": "strategy.init=uniform",
    "own-rows-only": "train={{{target}: {{split: train}}}}",
    "inf-dds": "strategy={{name: inf-dds, init: uniform, update_every: 25}}",
}


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
        for label, changes in changes_of(target).items():
            recipe = load_recipe(find_recipe("pydocs"), changes)
            for seed in range(options.seeds):
                name = f"{target}/{label}/{seed}"
                own = recipe.model_copy(update={"seed": seed, "output": options.output / name})
                groups.setdefault((target, label), []).append(Job(name, own))
    failed = run_jobs([job for jobs in groups.values() for job in jobs])
    for (target, label), jobs in groups.items():
        done = [job for job in jobs if job.name not in failed]
        if done:
            group = Group(tuple(job.name for job in done), tuple(read_run(job.folder) for job in done))
            score = group.scores()[target]
            values = " ".join(f"{value:.2f}" for value in score.values)
            seconds = 3600 * sum(group.hours(on_gpu=False).values())
            print(f"{target:14} {label:14} {score.mean:5.1f}  sd {score.spread or 0:.2f}  {values}  {seconds:.0f} s")


def changes_of(target: str) -> dict[str, list[str]]:
    """Return the changes to the recipe for each sampler: the target's own few rows, and all of other libraries."""
    libraries = load_recipe(find_recipe("pydocs")).train
    splits = {library: {"split": "train" if library == target else "all"} for library in libraries}
    changes = [f"train={splits}", f"dev=[{target}]", f"test=[{target}]"]
    return {label: [*changes, change.format(target=target)] for label, change in SAMPLERS.items()}


if __name__ == "__main__":
    main()
