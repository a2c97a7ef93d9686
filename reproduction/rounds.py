"""How well few rounds of measurements on few dev rows agree with many, and at what cost.

`run` draws uniformly and measures all datasets every few steps; nothing follows from a round. A file has the gain of
every dev query from a trial step on every dataset. `table` draws rounds and dev rows of the first half of the run at
random, and correlates their influences over datasets with the mean of the other rounds. It needs no model, so that
other estimators can be compared on the same file.

    python -m reproduction.rounds run DATA "covidqa in" --set 'model={name: wordllama}' training.learning_rate=3e-2
    python -m reproduction.rounds table runs/rounds/*.npz
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import mixfluence
from reproduction.guided import SETTINGS, recipe_of

# One array of datasets x queries for each round.
Gains = list[NDArray[np.float64]]
ROWS, ROUNDS, DRAWS = (16, 32, 64, 128, 256), (1, 2, 4, 8), 200


class Recorder(mixfluence.InfDDS):
    """Inf-DDS that measures and keeps its start."""

    # Of the class, because a run works on a copy of its strategy.
    rounds: ClassVar[list[Any]] = []

    def update(self, influences: Any) -> dict[str, Any]:
        """Keep a round."""
        self.rounds.append(influences)
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("data", help="folder with english/NAME and multilingual/NAME")
    runner.add_argument("setting", choices=SETTINGS)
    runner.add_argument("--model", default="minilm")
    runner.add_argument("--steps", type=int, default=400)
    runner.add_argument("--every", type=int, default=8, help="steps between rounds")
    runner.add_argument("--rows", type=int, default=max(ROWS), help="dev rows of each target")
    runner.add_argument("--seed", type=int, default=0)
    runner.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the recipe")
    runner.add_argument("--out", type=Path, default=Path("runs/rounds"), help="folder of runs and files")
    commands.add_parser("table").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "run":
        record(options)
        return
    for path in options.files:
        print("\n".join(table(path)))


def record(options: argparse.Namespace) -> Path:
    """Run a setting and write the gains of its rounds."""
    name = f"{options.setting.replace(' ', '-')}-{options.seed}"
    job = {"stage": "final", "setting": options.setting, "seed": options.seed, "strategy": {"name": "inf-dds"}}
    recipe = recipe_of(job, options.out / name, options)
    probe = mixfluence.Probe(dev_batch_size=options.rows)
    strategy = Recorder(update_every=options.every, freeze_below=0.0, probe=probe)
    Recorder.rounds.clear()
    mixfluence.run(recipe.model_copy(update={"strategy": strategy, "test": {}}))
    path: Path = options.out / f"{name}.npz"
    targets = Recorder.rounds[0].targets
    arrays = {
        f"{number} {target}": found.gains[place]
        for number, found in enumerate(Recorder.rounds)
        for place, target in enumerate(targets)
    }
    np.savez_compressed(path, targets=targets, batch=recipe.training.batch_size, **arrays)
    return path


def table(path: Path) -> Iterator[str]:
    """Yield a table for each target of a file: rows by rounds, each with the correlation and the cost in steps."""
    with np.load(path) as file:
        batch, targets = int(file["batch"]), file["targets"].tolist()
        rounds = (len(file.files) - 2) // len(targets)
        gains = {name: [file[f"{number} {name}"] for number in range(rounds)] for name in targets}
    random = np.random.default_rng(0)
    for name, found in gains.items():
        half = found[: len(found) // 2]
        datasets, most = half[0].shape
        yield f"\n{path.stem}, {name}: {len(half)} rounds of {datasets} datasets on up to {most} rows\n"
        counts = [count for count in ROUNDS if count < len(half)]
        yield f"| rows, by rounds | {' | '.join(map(str, counts))} |"
        yield "|---" * (len(counts) + 1) + "|"
        for rows in ROWS:
            cost = datasets + (datasets + 1) * min(rows, most) / batch / 3
            cells = [f"{agreement(half, count, rows, random):.2f} ({count * cost:.0f})" for count in counts]
            yield f"| {rows} | {' | '.join(cells)} |"


def agreement(gains: Gains, count: int, rows: int, random: np.random.Generator) -> float:
    """Return the mean correlation over datasets of some rounds on some rows with the mean of the other rounds."""
    whole = np.stack([standardised(own) for own in gains])
    found = []
    for _ in range(DRAWS):
        chosen = random.choice(len(gains), count, replace=False)
        few = [standardised(own[:, random.permutation(own.shape[1])[:rows]]) for own in (gains[n] for n in chosen)]
        others = np.delete(whole, chosen, axis=0).mean(axis=0)
        found.append(np.corrcoef(np.mean(few, axis=0), others)[0, 1])
    return float(np.mean(found))


def standardised(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the influences of the datasets relative to their mean, in units of their spread."""
    influences = gains.mean(axis=1) - gains.mean()
    return np.asarray(influences / influences.std())


if __name__ == "__main__":
    main()
