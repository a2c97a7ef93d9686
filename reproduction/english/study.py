"""Samplers side by side on thirteen English domains: the study behind docs/RESULTS.md.

`explore` compares settings of Inf-DDS on dev alone: one half of each target's dev set guides, the other is scored.
`final` touches the test sets once: all of dev guides, the last step is tested. Cells of the grid run side by side in
several processes on one device, each cell through `experiment.run`; finished cells are skipped when called again.

    python benchmarks/english_study.py explore DATA --methods benchmarks/english_settings.txt --processes 8
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

SINGLE = ["covidqa", "climatefever", "cosqa", "socode"]
JOINT = ["covidqa", "cosqa", "climatefever", "insuranceqa", "obliqa"]
STATIC = {
    "proportional": "{name: static, init: proportional}",
    "uniform": "{name: static, init: uniform}",
}
# Samplers that look at no dev set, so that one run with the whole pool is a run for every target.
UNGUIDED = {"static", "cooldown", "doremi", "tdro"}
# What is left of a finished run: a replay reads it.
KEPT = {"weights.json", "trace.jsonl"}
FAILED = "failed"


class Cell(NamedTuple):
    """One run: a sampler, the targets, whether their own training sets are in the pool, and a seed."""

    method: str
    strategy: str
    targets: tuple[str, ...]
    own: str
    seed: int
    steps: int

    @property
    def key(self) -> str:
        """What tells the cell from all others."""
        return f"{self.method} {'+'.join(self.targets)} {self.own} {self.seed} {self.steps}"

    def folder(self, scratch: str) -> Path:
        """Return where it runs."""
        return Path(scratch) / self.key.replace(" ", "_")


def cells(
    methods: dict[str, str], targets: list[tuple[tuple[str, ...], str]], options: argparse.Namespace
) -> Iterator[Cell]:
    for seed in range(options.seeds):
        for method, strategy in methods.items():
            for names, own in targets:
                yield Cell(method, strategy, names, own, seed, options.steps)


def work(queue: Any, results: Any, options: argparse.Namespace) -> None:
    """Run cells until the queue is empty."""
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    import torch

    torch.set_num_threads(1)
    while (cell := queue.get()) is not None:
        if time.time() > options.deadline:
            continue
        try:
            results.put(run_cell(cell, options))
        except Exception as error:  # one bad cell must not end the study
            (cell.folder(options.scratch) / FAILED).touch()
            results.put({"key": cell.key, "error": f"{type(error).__name__}: {error}"})
    results.put(None)


def run_cell(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    from transformers import TrainerCallback

    from mixfluence.experiment import run
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    class Keep(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.scores: dict[str, float] = {}

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
            self.scores |= {name: value for name, value in metrics.items() if "ndcg@10" in name}

    folder = cell.folder(options.scratch)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = [] if cell.targets == ("all",) else list(cell.targets)
    changes = [*recipe_changes(cell, names, options), *options.set, f"output={folder}"]
    recipe = load_recipe(find_recipe("english13"), changes)
    started = time.time()
    keep = Keep()
    scores = run(recipe, callbacks=[keep])
    trace = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    updates = [
        line["update"] | {"step": line["step"], "weights": line["weights"]} for line in trace if "update" in line
    ]
    record = json.loads((folder / "record.json").read_text())
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()
    return {
        "key": cell.key,
        "method": cell.method,
        "strategy": cell.strategy,
        "targets": cell.targets,
        "own": cell.own,
        "seed": cell.seed,
        "steps": cell.steps,
        "dev": keep.scores,
        "test": {name: score.summary()["ndcg@10"] for name, score in scores.items()},
        "seconds": record["seconds"],
        "wall": time.time() - started,
        "probing": sum(update["seconds"] for update in updates),
        "updates": updates,
    }


def strategy_of(cell: Cell, options: argparse.Namespace) -> str:
    """Return the strategy with what only this machine knows: CRISP's encoder, and the folder that a replay replays."""
    strategy = yaml.safe_load(cell.strategy)
    if strategy["name"] == "crisp":
        strategy["encoder"] = options.model
    elif strategy["name"] == "replay":
        strategy["run"] = str(finished(cell._replace(method=strategy["run"]).folder(options.scratch)))
    else:
        return cell.strategy
    return yaml.safe_dump(strategy, default_flow_style=True, width=1000).strip()


def finished(folder: Path) -> Path:
    """Return the folder of another cell once its run is over."""
    while not (folder / "weights.json").exists():
        if (folder / FAILED).exists():
            raise FileNotFoundError(f"{folder}: failed, so there is nothing to replay")
        time.sleep(1)
    return folder


def recipe_changes(cell: Cell, names: list[str], options: argparse.Namespace) -> list[str]:
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    domains = list(load_recipe(find_recipe("english13"), files_may_be_missing=True).train)
    pool = {"in": domains, "out": [d for d in domains if d not in names], "only": names}[cell.own]
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
        return [*changes, "test={}", f"selection={{every: {cell.steps}, dev: halves, corpus: 20000}}"]
    return [*changes, f"test={names or sorted({*SINGLE, *JOINT})}", "selection=null"]


def read_methods(path: Path) -> dict[str, str]:
    """Return the strategies of a file of lines `name={strategy as YAML}`."""
    return dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def grid(options: argparse.Namespace) -> list[Cell]:
    methods = read_methods(options.methods)
    single = [((name,), own) for name in SINGLE for own in ("in", "out")]
    if options.stage == "explore":
        targets = [(tuple(t.split(":")[0].split("+")), t.split(":")[1]) for t in options.targets]
        return list(cells(methods, targets, options))
    joint = [(tuple(JOINT), "in")]
    pools: list[tuple[tuple[str, ...], str]] = [
        (("all",), "in"),
        *((names, own) for names, own in single if own == "out"),
    ]
    unguided = {name: line for name, line in methods.items() if yaml.safe_load(line)["name"] in UNGUIDED}
    guided = {name: line for name, line in methods.items() if name not in unguided}
    adaptive = [*cells(guided, single + joint, options), *cells(unguided, pools, options)]
    static = cells(STATIC, pools, options)
    alone = cells(
        {"own set only": STATIC["uniform"]}, [((n,), "only") for n in SINGLE] + [(tuple(JOINT), "only")], options
    )
    # Without the targets' own sets there is nothing that target-only could draw.
    adaptive = [
        cell for cell in adaptive if cell.own == "in" or yaml.safe_load(cell.strategy)["name"] != "target-only"
    ]
    chosen = [*adaptive, *static, *alone]
    if options.longer:
        again = [cell for cell in chosen if cell.method in STATIC]
        chosen += [cell._replace(steps=options.longer, method=f"{cell.method}, same compute") for cell in again]
    return sorted(chosen, key=lambda cell: cell.seed)  # a study that is cut short has whole seeds


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
    parser.add_argument("--out", default="results.jsonl")
    parser.add_argument("--scratch", default="/tmp/study")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--longer", type=int, default=0, help="also run the static samplers for this many steps")
    parser.add_argument("--only", default="", help="pattern of keys: method targets own seed steps")
    parser.add_argument("--limit", type=float, default=1e9, help="start no cell after this many seconds")
    options = parser.parse_args()
    options.deadline = time.time() + options.limit
    out = Path(options.out)
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {line["key"] for line in known if "error" not in line}
    todo = [cell for cell in grid(options) if cell.key not in done and re.search(options.only, cell.key)]
    print(f"{len(todo)} cells to run, {len(done)} done", flush=True)
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    for cell in [*todo, *[None] * options.processes]:
        queue.put(cell)
    workers = [context.Process(target=work, args=(queue, results, options)) for _ in range(options.processes)]
    for worker in workers:
        worker.start()
    running = len(workers)
    while running:
        line = results.get()
        if line is None:
            running -= 1
            continue
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        short = {name: line.get(name) for name in ("key", "dev", "test", "probing", "wall", "error") if line.get(name)}
        print(json.dumps(short), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
