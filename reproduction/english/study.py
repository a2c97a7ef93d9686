"""Samplers on thirteen English domains.

`explore` compares settings on dev alone: one half of each target's dev set guides, the other is scored. `final` reads
the test sets once: all of dev guides, the last step is tested. Results are appended to a file, one line per run, and
runs that are in it are skipped.

    python -m reproduction.english.study explore DATA --methods reproduction/english/settings.txt --processes 8
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.runs import read_run
from mixfluence.sweep import Job, State, run_jobs

SINGLE = ["covidqa", "climatefever", "cosqa", "socode"]
JOINT = ["covidqa", "cosqa", "climatefever", "insuranceqa", "obliqa"]
STATIC = {
    "proportional": "{name: static, init: proportional}",
    "uniform": "{name: static, init: uniform}",
}
# Samplers without dev sets: one run with the whole pool counts for every target.
UNGUIDED = {"static", "cooldown", "doremi", "tdro"}

Target = tuple[tuple[str, ...], str]


@dataclass(frozen=True)
class Cell:
    """One run: a sampler, its targets, whether their training sets are in the pool (in, out, only), and a seed."""

    method: str
    strategy: str
    targets: tuple[str, ...]
    own: str
    seed: int
    steps: int

    @property
    def key(self) -> str:
        """The name of the run in the results."""
        return f"{self.method} {'+'.join(self.targets)} {self.own} {self.seed} {self.steps}"

    @property
    def is_replay(self) -> bool:
        """Whether it needs the result of another run."""
        return bool(yaml.safe_load(self.strategy)["name"] == "replay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["explore", "final"])
    parser.add_argument("data")
    parser.add_argument("--methods", type=Path, required=True, help="file of lines: name={strategy as YAML}")
    parser.add_argument(
        "--targets", nargs="*", default=["covidqa:in", "covidqa:out"], help="explore: name+name:in|out"
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--set", nargs="*", default=[], help="further changes to the recipe, key=value")
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--scratch", type=Path, default=Path("runs/english"))
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--longer", type=int, default=0, help="also run the static samplers for this many steps")
    parser.add_argument("--only", default="", help="pattern of keys: method targets own seed steps")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("mixfluence").setLevel(logging.INFO)
    known = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    done = {line["key"] for line in map(json.loads, known) if "error" not in line}
    todo = [cell for cell in grid(options) if cell.key not in done and re.search(options.only, cell.key)]
    # Chunks limit the disk space of checkpoints, which are kept until a run is collected.
    size = 4 * options.processes
    for replays in (False, True):
        wave = [cell for cell in todo if cell.is_replay is replays]
        for start in range(0, len(wave), size):
            run(wave[start : start + size], options)


def run(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Run cells and append their results."""
    jobs = [job_of(cell, options) for cell in cells]
    run_jobs(jobs, processes=options.processes, keep_models=True)
    for cell, job in zip(cells, jobs, strict=True):
        if job.state() is State.FINISHED:
            line = result_of(cell, job.folder)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            for folder in (path for path in job.folder.iterdir() if path.is_dir()):
                shutil.rmtree(folder)


def job_of(cell: Cell, options: argparse.Namespace) -> Job:
    names = [] if cell.targets == ("all",) else list(cell.targets)
    domains = list(load_recipe(find_recipe("english13"), files_may_be_missing=True).train)
    pool = {"in": domains, "out": [name for name in domains if name not in names], "only": names}[cell.own]
    changes = [
        f"defaults.path={options.data}/{{name}}",
        f"model.name={options.model}",
        f"train={pool}",
        f"dev={names or domains}",
        f"strategy={strategy_of(cell, options)}",
        f"seed={cell.seed}",
        f"training.steps={cell.steps}",
    ]
    if options.stage == "explore":
        changes += ["test={}", f"selection={{every: {cell.steps}, dev: halves, corpus: 20000}}"]
    else:
        changes += [f"test={names or sorted({*SINGLE, *JOINT})}", "selection=null"]
    recipe = load_recipe(find_recipe("english13"), [*changes, *options.set])
    return Job(cell.key, recipe.model_copy(update={"output": folder_of(cell.key, options)}))


def folder_of(key: str, options: argparse.Namespace) -> Path:
    return Path(options.scratch) / key.replace(" ", "_")


def strategy_of(cell: Cell, options: argparse.Namespace) -> str:
    """Return the strategy as JSON, with CRISP's encoder and the run folder of a replay filled in."""
    strategy = yaml.safe_load(cell.strategy)
    if strategy["name"] == "crisp":
        strategy["encoder"] = options.model
    elif strategy["name"] == "replay":
        replayed = cell.key.replace(cell.method, strategy["run"], 1)
        strategy["run"] = str(folder_of(replayed, options))
    else:
        return cell.strategy
    return json.dumps(strategy)


def result_of(cell: Cell, folder: Path) -> dict[str, Any]:
    """Return the line of a finished run."""
    found = read_run(folder)
    updates = [
        line["update"] | {"step": line["step"], "weights": line["weights"]} for line in found.trace if "update" in line
    ]
    states = sorted(folder.glob("checkpoints/*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    history = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"] if states else []
    return {
        "key": cell.key,
        "method": cell.method,
        "strategy": cell.strategy,
        "targets": cell.targets,
        "own": cell.own,
        "seed": cell.seed,
        "steps": cell.steps,
        "dev": {name: value for line in history for name, value in line.items() if "ndcg@10" in name},
        "test": {name: summary["ndcg@10"] for name, summary in found.record["scores"].items()},
        "seconds": found.record["seconds"],
        "probing": sum(update["seconds"] for update in updates),
        "updates": updates,
    }


def read_methods(path: Path) -> dict[str, str]:
    """Return the strategies of a file of lines `name={strategy as YAML}`."""
    return dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def grid(options: argparse.Namespace) -> list[Cell]:
    """Return all runs of a stage, whole seeds first."""
    methods = read_methods(options.methods)
    if options.stage == "explore":
        targets = [(tuple(names.split("+")), own) for names, own in (text.split(":") for text in options.targets)]
        return list(_cells(methods, targets, options))
    single: list[Target] = [((name,), own) for name in SINGLE for own in ("in", "out")]
    pools: list[Target] = [(("all",), "in"), *((names, own) for names, own in single if own == "out")]
    alone: list[Target] = [*(((name,), "only") for name in SINGLE), (tuple(JOINT), "only")]
    samplers = {name: yaml.safe_load(line)["name"] for name, line in methods.items()}
    guided = {name: line for name, line in methods.items() if samplers[name] not in UNGUIDED}
    unguided = {name: line for name, line in methods.items() if samplers[name] in UNGUIDED}
    adaptive = [*_cells(guided, [*single, (tuple(JOINT), "in")], options), *_cells(unguided, pools, options)]
    # Without the targets' own sets, target-only has nothing to draw.
    chosen = [cell for cell in adaptive if cell.own == "in" or samplers[cell.method] != "target-only"]
    chosen += _cells(STATIC, pools, options)
    chosen += _cells({"own set only": STATIC["uniform"]}, alone, options)
    if options.longer:
        longer = argparse.Namespace(seeds=options.seeds, steps=options.longer)
        chosen += _cells({f"{name}, same compute": line for name, line in STATIC.items()}, pools, longer)
    return sorted(chosen, key=lambda cell: cell.seed)


def _cells(methods: dict[str, str], targets: Sequence[Target], options: argparse.Namespace) -> Iterator[Cell]:
    for seed in range(options.seeds):
        for method, strategy in methods.items():
            for names, own in targets:
                yield Cell(method, strategy, names, own, seed, options.steps)


if __name__ == "__main__":
    main()
