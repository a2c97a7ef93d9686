"""How well influences that are measured in line agree with trial steps.

Uniform sampling is run twice with the same draws: measured in line, and by rounds of trial steps within each window.
Neither changes the run, so that both measure the same models. Every line has a window and the mean over targets of
correlations over the datasets: of the window with the mean of all trial rounds in it, and of one, two, ... rounds with
the mean of the others. The mean of few rounds is noisy itself, so that no correlation reaches 1.

    python -m reproduction.agreement DATA --targets covidqa cosqa --set training.batch_size=32
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mixfluence
from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.runs import read_run
from reproduction.english.study import JOINT

Matrix = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with english/NAME")
    parser.add_argument("--targets", nargs="*", default=JOINT, metavar="NAME")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--window", type=int, default=40)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--trials", type=int, default=6, help="rounds of trial steps in each window")
    parser.add_argument("--rows", type=int, default=64, help="dev rows of each target")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the recipe")
    parser.add_argument("--scratch", type=Path, default=Path("runs/agreement"))
    options = parser.parse_args()
    in_line = rounds(options, "in-line", options.window, {"name": "in-line"})
    trials = rounds(options, "trial", options.window // options.trials, {"name": "trial"})
    for step, window in in_line.items():
        inside = [matrix for at, matrix in trials.items() if step - options.window < at <= step]
        found = {"step": step, "trials": len(inside), "in line": agreement(window, np.mean(inside, axis=0))}
        for count in range(1, len(inside) // 2 + 1):
            found[f"{count} trials"] = fmean(
                agreement(np.mean(np.roll(inside, turn, axis=0)[:count], axis=0), others(inside, turn, count))
                for turn in range(len(inside))
            )
        print(json.dumps(found), flush=True)


def others(rounds: list[Matrix], turn: int, count: int) -> Matrix:
    return np.asarray(np.mean(np.roll(rounds, turn, axis=0)[count:], axis=0))


def agreement(one: Matrix, other: Matrix) -> float:
    """Return the mean over targets of the correlation over datasets that both have measured."""
    both = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    return fmean(float(np.corrcoef(a, b)[0, 1]) for a, b in zip(one[both].T, other[both].T, strict=True))


def rounds(options: argparse.Namespace, name: str, every: int, probe: dict[str, Any]) -> dict[int, Matrix]:
    """Train uniformly and return the influences of every round, datasets x targets, by its step."""
    # Logits that do not leave the start.
    still = {"name": "anchored", "reach": 1e-30}
    strategy = {"name": "inf-dds", "init": "uniform", "rule": still, "update_every": every, "warmup_steps": every}
    strategy["freeze_below"] = 0
    folder = options.scratch / name
    recipe = load_recipe(
        find_recipe("english13"),
        [
            f"defaults.path={options.data}/english/{{name}}",
            f"dev={options.targets}",
            f"strategy={json.dumps(strategy | {'probe': probe | {'dev_batch_size': options.rows}})}",
            f"model.name={options.model}",
            f"training.steps={options.window * (options.windows + 1)}",
            "training.warmup_steps=10",
            f"output={folder}",
            "selection=null",
            "test={}",
            *options.set,
        ],
    )
    mixfluence.run(recipe)
    updates = {line["step"]: line["update"] for line in read_run(folder).trace if "update" in line}
    return {
        step: np.array(
            [[own.get(dataset, np.nan) for own in update["on_targets"].values()] for dataset in recipe.train]
        )
        for step, update in updates.items()
    }


if __name__ == "__main__":
    main()
