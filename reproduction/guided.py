"""Samplers that dev sets guide, on English targets and 13 languages: many small runs on one GPU.

`explore` compares settings on dev alone: one half of each dev set guides, the other is scored. `final` reads the test
sets: all of dev guides, the last step is tested. Every process trains one run after another, so that libraries are
imported once; results are appended to a file, and runs that are in it are skipped.

    python -m reproduction.guided explore DATA --methods fair anchored --seeds 2 --processes 15
    python -m reproduction.guided table
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.queues import Queue
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from reproduction.english.study import JOINT, SINGLE
from reproduction.english.table import interval
from reproduction.package import train_recipe
from reproduction.schema import FOLDER

RESULTS = FOLDER / "guided" / "runs.jsonl"
# Targets and pool: the targets' own training sets are in it or out of it; 13 languages start uniformly or from the
# expert's weights.
WITHOUT_OWN_SET = [*SINGLE, "insuranceqa", "obliqa"]
SETTINGS = ["joint in", *(f"{name} in" for name in SINGLE), *(f"{name} out" for name in WITHOUT_OWN_SET)]
SETTINGS += ["languages uniform", "languages expert"]
# Samplers that no dev set guides train once on the whole pool, for all targets that have their sets in it.
POOL = "pool in"
UNGUIDED = {"static", "odm", "chameleon", "doremi", "tdro"}
# File -> its name of a method -> the name here.
EARLIER = {
    "english13.jsonl": {"Inf-DDS": "anchored"},
    "english13_methods.jsonl": {
        "uniform": "uniform",
        "proportional": "proportional",
        "static, temperature 5": "temperature 5",
        "target-only, at most 10 epochs": "target-only, at most 10 epochs",
        "multidds, 5e-3, preconditioned": "multidds",
        "crisp, 32 per dataset": "crisp",
        "doge, 0.3, preconditioned": "doge",
    },
}

Job = dict[str, Any]


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
        print("\n".join(tables([*earlier_lines(), *read_lines(options.out)])))
        return
    done = {key_of(line) for line in [*earlier_lines(), *read_lines(options.out)]}
    jobs = [
        {"stage": options.stage, "method": method, "setting": setting, "seed": seed, "strategy": methods[method]}
        for seed in range(options.seeds)
        for method in options.methods
        for setting in settings_of(methods[method], options.settings)
    ]
    run([job for job in jobs if key_of(job) not in done], options)


def settings_of(strategy: Job, settings: list[str]) -> list[str]:
    """Return the settings to run, without those that the method cannot have or that another one includes."""
    if strategy["name"] == "target-only":
        return [setting for setting in settings if not setting.endswith(" out")]
    if strategy["name"] in UNGUIDED:
        return list(dict.fromkeys(POOL if setting.endswith(" in") else setting for setting in settings))
    return settings


def key_of(job: Job) -> tuple[Any, ...]:
    return job["stage"], job["method"], job["setting"], job["seed"]


def read_lines(path: Path) -> list[Job]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def earlier_lines() -> list[Job]:
    """Return the first three seeds of baselines on English targets, which `reproduction.english.study` ran."""
    found = []
    for name, methods in EARLIER.items():
        for line in read_lines(FOLDER / "results" / name):
            if line["method"] in methods and line["steps"] == 400:
                targets = "pool" if line["targets"] == ["all"] else "joint" if line["targets"] == JOINT else None
                setting = f"{targets or line['targets'][0]} {line['own']}"
                method = methods[line["method"]]
                job = {"stage": "final", "method": method, "setting": setting, "seed": line["seed"]}
                found.append({**job, "scores": line["test"], "seconds": line["seconds"]})
    return found


def run(jobs: list[Job], options: argparse.Namespace) -> None:
    """Run jobs in some processes and append a line for each that succeeds."""
    context = multiprocessing.get_context("spawn")
    waiting, finished = context.Queue(), context.Queue()
    for job in [*jobs, *[None] * options.processes]:
        waiting.put(job)
    workers = [
        context.Process(target=work, args=(number, waiting, finished, options)) for number in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    for _ in jobs:
        line = finished.get()
        print(*key_of(line), line.get("error") or f"{100 * fmean(line['scores'].values()):.1f}", flush=True)
        if "error" not in line:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def work(number: int, waiting: Queue[Job | None], finished: Queue[Job], options: argparse.Namespace) -> None:
    """Run jobs until there are none."""
    folder = options.scratch / str(number)
    while (job := waiting.get()) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            train_recipe(recipe_of(job, folder, options))
            finished.put({**job, **result_of(folder)})
        except Exception as error:
            finished.put({**job, "error": f"{type(error).__name__}: {error}"})
        shutil.rmtree(folder, ignore_errors=True)


def recipe_of(job: Job, folder: Path, options: argparse.Namespace) -> Any:
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    target, start = job["setting"].split()
    strategy = dict(job["strategy"])
    languages = target == "languages"
    path = FOLDER / "recipes" / "twin-mldr13.yaml" if languages else find_recipe("english13")
    base = load_recipe(path, files_may_be_missing=True)
    groups = {"languages": list(base.dev), "joint": JOINT, "pool": [*JOINT, "socode"]}
    targets = groups.get(target, [target])
    if strategy["name"] in {"crisp", "chameleon"}:
        strategy["encoder"] = options.model
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


def scores_of(line: Job) -> dict[str, float]:
    """Return the mean score of each setting that a run counts for."""
    scores = line["scores"]
    if line["setting"] != POOL:
        return {line["setting"]: fmean(scores.values())}
    joint = {"joint in": fmean(scores[name] for name in JOINT)}
    return joint | {f"{name} in": scores[name] for name in SINGLE}


def tables(lines: list[Job]) -> Iterator[str]:
    """Yield a table for each stage: mean NDCG@10 x 100 with 95% t-intervals over seeds."""
    for stage in ("explore", "final"):
        cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in sorted(lines, key=lambda line: line["seed"]):
            if line["stage"] == stage:
                for setting, score in scores_of(line).items():
                    cells[line["method"]][setting].append(100 * score)
        heads = [setting for setting in SETTINGS if any(setting in row for row in cells.values())]
        yield f"{stage}\n\n| | {' | '.join(heads)} |"
        yield "|---" * (len(heads) + 1) + "|"
        for method, row in cells.items():
            yield f"| {method} | {' | '.join(interval(row[head]) if head in row else '' for head in heads)} |"
        yield ""


if __name__ == "__main__":
    main()
