"""Samplers that dev sets guide, on English targets and 13 languages: many small runs on one GPU.

`explore` compares settings on dev alone: one half of each dev set guides, the other is scored. `final` reads the test
sets: all of dev guides, the last step is tested. Runs that are in the file of results are skipped.

    python -m reproduction.guided explore DATA --methods fair anchored --seeds 2 --processes 15
    python -m reproduction.guided table
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from reproduction.english.study import JOINT
from reproduction.english.table import interval
from reproduction.package import train_recipe
from reproduction.schema import FOLDER
from reproduction.workers import Job, read_lines, run_jobs

RESULTS = FOLDER / "guided" / "runs.jsonl"
# Targets and pool: the targets' own training sets are in it or out of it; 13 languages start uniformly or from the
# expert's weights.
SETTINGS = ["joint in", "covidqa in", "climatefever in", "cosqa in", "covidqa out", "climatefever out", "cosqa out"]
SETTINGS += ["languages uniform", "languages expert"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["explore", "final", "table"])
    parser.add_argument("data", nargs="?", help="folder with english/NAME and multilingual/NAME")
    methods = yaml.safe_load((FOLDER / "guided" / "methods.yaml").read_text(encoding="utf-8"))
    parser.add_argument("--methods", nargs="*", default=list(methods), choices=list(methods), metavar="NAME")
    parser.add_argument("--settings", nargs="*", default=SETTINGS, choices=SETTINGS, metavar="NAME")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--scratch", type=Path, default=Path("runs/guided"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.stage == "table":
        print("\n".join(tables(read_lines(options.out))))
        return
    jobs = [
        {"stage": options.stage, "method": method, "setting": setting, "seed": seed}
        | {"strategy": methods[method], "options": options}
        for seed in range(options.seeds)
        for setting in options.settings
        for method in options.methods
    ]
    identity = ("stage", "method", "setting", "seed")
    run_jobs(jobs, perform, identity=identity, out=options.out, scratch=options.scratch, processes=options.processes)


def perform(job: Job, folder: Path) -> Job:
    """Train a job and return its results."""
    options = job.pop("options")
    train_recipe(recipe_of(job, folder, options))
    return result_of(folder)


def recipe_of(job: Job, folder: Path, options: argparse.Namespace) -> Any:
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    target, start = job["setting"].split()
    strategy = dict(job["strategy"])
    languages = target == "languages"
    path = FOLDER / "recipes" / "twin-mldr13.yaml" if languages else find_recipe("english13")
    base = load_recipe(path, files_may_be_missing=True)
    targets = list(base.dev) if languages else JOINT if target == "joint" else [target]
    if start == "expert":
        strategy["init"] = base.strategy.model_dump(mode="json")["init"]
    changes = [
        f"defaults.path={options.data}/{'multilingual' if languages else 'english'}/{{name}}",
        f"train={[name for name in base.train if start != 'out' or name not in targets]}",
        f"dev={targets}",
        f"strategy={json.dumps(strategy)}",
        f"model.name={options.model}",
        f"training.steps={options.steps}",
        f"seed={job['seed']}",
        f"output={folder}",
    ]
    if job["stage"] == "final":
        changes += [f"test={targets}", "selection=null"]
    else:
        corpus = 2_000 if languages else 20_000
        changes += ["test={}", f"selection={{every: {options.steps}, dev: halves, corpus: {corpus}}}"]
    return load_recipe(path, changes)


def result_of(folder: Path) -> Job:
    """Return the scores of a run, on test or on the dev halves that did not guide, its weights and its seconds."""
    from mixfluence.runs import read_run

    found = read_run(folder)
    scores = {name: summary["ndcg@10"] for name, summary in found.record["scores"].items()}
    if not scores:
        states = sorted(folder.glob("checkpoints/*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
        history = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"]
        kept = {name: value for line in history for name, value in line.items() if name.endswith("_ndcg@10")}
        scores = {name.removeprefix("eval_").removesuffix("_ndcg@10"): value for name, value in kept.items()}
    weights = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    return {"scores": scores, "weights": weights, "seconds": found.record["seconds"]}


def tables(lines: list[Job]) -> Iterator[str]:
    """Yield a table for each stage: mean NDCG@10 x 100 with 95% t-intervals over seeds."""
    for stage in ("explore", "final"):
        cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in sorted(lines, key=lambda line: line["seed"]):
            if line["stage"] == stage:
                cells[line["method"]][line["setting"]].append(100 * fmean(line["scores"].values()))
        heads = [setting for setting in SETTINGS if any(setting in row for row in cells.values())]
        yield f"{stage}\n\n| | {' | '.join(heads)} |"
        yield "|---" * (len(heads) + 1) + "|"
        for method, row in cells.items():
            yield f"| {method} | {' | '.join(interval(row[head]) if head in row else '' for head in heads)} |"
        yield ""


if __name__ == "__main__":
    main()
