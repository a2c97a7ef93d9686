"""Samplers that dev sets guide, on English targets and 13 languages: many small runs on one GPU.

`explore` compares settings on dev alone: one half of each dev set guides, the other is scored. `final` reads the test
sets: all of dev guides, the last step is tested. Every process trains one run after another, so that libraries are
imported once; results are appended to a file, and runs that are in it are skipped. Seconds and memory of a line are
those of all its runs: proxies, experts, and the runs of a `merge_of`.

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

from reproduction.english.study import JOINT
from reproduction.english.table import interval
from reproduction.package import merge_and_score, peak_memory, score_model, train_recipe
from reproduction.schema import FOLDER

RESULTS = FOLDER / "guided" / "runs.jsonl"
# Targets and pool: the targets' own training sets are in it or out of it; 13 languages start uniformly or from the
# expert's weights.
SETTINGS = ["joint in", "covidqa in", "climatefever in", "cosqa in", "covidqa out", "climatefever out", "cosqa out"]
SETTINGS += ["languages uniform", "languages expert"]

# Parts of a run's seconds that depend on the sampler; "stages" are proxies and experts.
COST = ("train", "probe", "stages", "cluster", "select")
# A merge of finished runs, in place of a sampler.
MERGE_OF = "merge_of"

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
        print("\n".join(tables(read_lines(options.out))))
        return
    done = {key_of(line) for line in read_lines(options.out)}
    jobs = [
        {"stage": options.stage, "method": method, "setting": setting, "seed": seed, "strategy": methods[method]}
        for seed in range(options.seeds)
        for setting in options.settings
        for method in options.methods
        if applies(methods[method], setting)
    ]
    run([job for job in jobs if key_of(job) not in done], options)


def key_of(job: Job) -> tuple[Any, ...]:
    return job["stage"], job["method"], job["setting"], job["seed"]


def applies(strategy: Job, setting: str) -> bool:
    """Return whether a method has a run of its own in a setting: the expert's weights replace uniform ones alone."""
    return not setting.endswith("expert") or strategy.get("init") == "uniform"


def read_lines(path: Path) -> list[Job]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


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
            finished.put({**job, **result_of_job(job, folder, options), "memory": peak_memory()})
        except Exception as error:
            finished.put({**job, "error": f"{type(error).__name__}: {error}"})
        shutil.rmtree(folder, ignore_errors=True)


def result_of_job(job: Job, folder: Path, options: argparse.Namespace) -> Job:
    """Train a job, or the runs that it merges, and return its result."""
    if MERGE_OF not in job["strategy"]:
        recipe = recipe_of(job, folder, options)
        train_recipe(recipe)
        return result_of(folder)
    results, folders = [], []
    for number, strategy in enumerate(job["strategy"][MERGE_OF]):
        folders.append(folder / f"run-{number}")
        recipe = recipe_of({**job, "strategy": strategy}, folders[-1], options)
        train_recipe(recipe)
        results.append(result_of(folders[-1]))
    scores, weights, spent = merge_and_score(folders, recipe, folder / "merged")
    seconds = {part: sum(result["seconds"].get(part, 0) for result in results) for part in results[0]["seconds"]}
    return {"scores": scores, "weights": weights, "seconds": seconds | {"probe": seconds["probe"] + spent}}


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
    states = sorted(folder.glob("checkpoints/*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    if not scores and states:
        history = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"]
        kept = {name: value for line in history for name, value in line.items() if name.endswith("_ndcg@10")}
        scores = {name.removeprefix("eval_").removesuffix("_ndcg@10"): value for name, value in kept.items()}
    elif not scores:
        # A merged model has no checkpoints.
        scores = score_model(found.recipe, folder)
    seconds: dict[str, float] = defaultdict(float)
    for part, spent in found.record["seconds"].items():
        seconds["stages" if part.startswith("stage ") else part] += spent
    return {"scores": scores, "weights": found.weights, "seconds": seconds}


def tables(lines: list[Job]) -> Iterator[str]:
    """Yield a table for each stage: mean NDCG@10 x 100 with 95% t-intervals over seeds, and cost by method."""
    for stage in ("explore", "final"):
        cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        costs: dict[str, dict[tuple[Any, ...], float]] = defaultdict(dict)
        for line in sorted(lines, key=lambda line: line["seed"]):
            if line["stage"] == stage:
                cells[line["method"]][line["setting"]].append(100 * fmean(line["scores"].values()))
                spent = sum(line["seconds"].get(part, 0) for part in COST)
                costs[line["method"]][line["setting"], line["seed"]] = spent
        heads = [setting for setting in SETTINGS if any(setting in row for row in cells.values())]
        yield f"{stage}\n\n| | {' | '.join(heads)} | cost |"
        yield "|---" * (len(heads) + 2) + "|"
        for method, row in cells.items():
            scores = [interval(row[head]) if head in row else "" for head in heads]
            yield f"| {method} | {' | '.join(scores)} | {relative_cost(costs[method], costs['uniform'])} |"
        yield ""


def relative_cost(own: dict[tuple[Any, ...], float], uniform: dict[tuple[Any, ...], float]) -> str:
    """Return the time of a method in units of uniform sampling, over the runs that both have."""
    shared = own.keys() & uniform.keys()
    return f"{sum(own[key] for key in shared) / sum(uniform[key] for key in shared):.1f}" if shared else ""


if __name__ == "__main__":
    main()
