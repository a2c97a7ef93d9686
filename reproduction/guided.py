"""Samplers that dev sets guide, on English targets and 13 languages: many small runs on one GPU.

`explore` compares settings on dev alone: one half of each dev set guides, the other is scored. `final` reads the test
sets: all of dev guides, the last step is tested. Runs that are in the file of results are skipped. Seconds and memory
of a line are those of all its runs: proxies, experts, and the runs of a `merge_of`.

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
from scipy.stats import ttest_1samp

import mixfluence
from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.runs import MEASURE, MODEL_FOLDER, Stopwatch, read_run
from reproduction.english.study import JOINT, SINGLE
from reproduction.english.table import interval
from reproduction.schema import FOLDER
from reproduction.workers import IDENTITY, Job, peak_memory, read_lines, read_options, run_jobs, study_parser

RESULTS = FOLDER / "guided" / "runs.jsonl"
# Targets and pool: the targets' own training sets are in it or out of it; 13 languages start uniformly or from the
# expert's weights.
WITHOUT_OWN_SET = [*SINGLE, "insuranceqa", "obliqa"]
SETTINGS = ["joint in", *(f"{name} in" for name in SINGLE), *(f"{name} out" for name in WITHOUT_OWN_SET)]
SETTINGS += ["languages uniform", "languages expert"]
# Samplers that no dev set guides train once on the whole pool, for all targets that have their sets in it.
POOL = "pool in"
UNGUIDED = {"static", "odm", "chameleon", "doremi", "tdro"}
# Settings whose mean is of interest.
GROUPS = {
    "five targets together": ["joint in"],
    "four targets": [f"{name} in" for name in SINGLE],
    "six targets without own sets": [f"{name} out" for name in WITHOUT_OWN_SET],
    "13 languages": ["languages uniform"],
}
# Inf-DDS as it was by default; with one target it still is.
DEFAULT = "inf-dds"
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
# Rows of the study `start-mldr` -> the name here. Its MultiDDS has the paper's settings.
EARLIER_LANGUAGES = {"crisp-32": "crisp", "multidds-uniform": "multidds, the paper's settings"}

# Parts of a run's seconds that depend on the sampler; "stages" are proxies and experts.
COST = ("train", "probe", "stages", "cluster", "select")
# A merge of finished runs, in place of a sampler.
MERGE_OF = "merge_of"


def main() -> None:
    parser = study_parser(__doc__, ["explore", "final"], name="guided", out=RESULTS)
    methods = yaml.safe_load((FOLDER / "guided" / "methods.yaml").read_text(encoding="utf-8"))
    parser.add_argument("--methods", nargs="*", default=list(methods), choices=list(methods), metavar="NAME")
    parser.add_argument("--settings", nargs="*", default=SETTINGS, choices=SETTINGS, metavar="NAME")
    options = read_options(parser)
    if options.stage == "table":
        lines = {key_of(line): line for line in [*earlier_lines(), *read_lines(options.out)]}
        print("\n".join(tables(list(lines.values()))))
        return
    # Another file of results is a study of its own.
    done = {key_of(line) for line in earlier_lines()} if options.out == RESULTS else set()
    jobs = [
        {"stage": options.stage, "method": method, "setting": setting, "seed": seed, "strategy": methods[method]}
        for seed in range(options.seeds)
        for method in options.methods
        for setting in settings_of(methods[method], options.settings)
    ]
    run_jobs([job for job in jobs if key_of(job) not in done], perform, options)


def settings_of(strategy: Job, settings: list[str]) -> list[str]:
    """Return the settings to run, without those that the method cannot have or that another one includes."""
    name = strategy.get("name")
    if strategy.get("init") != "uniform":
        # The expert's weights replace uniform ones.
        settings = [setting for setting in settings if not setting.endswith(" expert")]
    if name == "target-only":
        settings = [setting for setting in settings if not setting.endswith(" out")]
    if name in UNGUIDED:
        settings = list(dict.fromkeys(POOL if setting.endswith(" in") else setting for setting in settings))
    return settings


def key_of(job: Job) -> tuple[Any, ...]:
    return tuple(job[name] for name in IDENTITY)


def earlier_lines() -> list[Job]:
    """Return three seeds of baselines, which `reproduction.english.study` and the study `start-mldr` ran."""
    found = []
    for name, methods in EARLIER.items():
        for line in read_lines(FOLDER / "results" / name):
            if line["method"] in methods and line["steps"] == 400:
                targets = "pool" if line["targets"] == ["all"] else "joint" if line["targets"] == JOINT else None
                setting = f"{targets or line['targets'][0]} {line['own']}"
                method = methods[line["method"]]
                job = {"stage": "final", "method": method, "setting": setting, "seed": line["seed"]}
                found.append({**job, "scores": line["test"], "seconds": line["seconds"]})
    for line in read_lines(FOLDER / "results" / "twins.jsonl"):
        if line["setting"] == "twin-mldr13" and line["row"] in EARLIER_LANGUAGES:
            method = EARLIER_LANGUAGES[line["row"]]
            job = {"stage": "final", "method": method, "setting": "languages uniform", "seed": line["seed"]}
            scores = {name: score / 100 for name, score in line["ndcg@10"].items()}
            found.append({**job, "scores": scores, "seconds": line["seconds"]})
    return found


def perform(options: argparse.Namespace, job: Job, folder: Path) -> Job:
    """Run a job and return its results."""
    return {**result_of_job(job, folder, options), "memory": peak_memory()}


def result_of_job(job: Job, folder: Path, options: argparse.Namespace) -> Job:
    """Train a job, or the runs that it merges, and return its result."""
    if MERGE_OF not in job["strategy"]:
        recipe = recipe_of(job, folder, options)
        mixfluence.run(recipe)
        return result_of(folder)
    results, folders = [], []
    for number, strategy in enumerate(job["strategy"][MERGE_OF]):
        folders.append(folder / f"run-{number}")
        recipe = recipe_of({**job, "strategy": strategy}, folders[-1], options)
        mixfluence.run(recipe)
        results.append(result_of(folders[-1]))
    watch = Stopwatch()
    with watch("merge"):
        merged = mixfluence.merge_runs(
            [read_run(own) for own in folders], mixfluence.Merge(), recipe, folder / "merged"
        )
    seconds = {part: sum(result["seconds"].get(part, 0) for result in results) for part in results[0]["seconds"]}
    seconds["probe"] += watch.seconds["merge"]
    return {"scores": score_model(recipe, folder / "merged"), "weights": merged.weights, "seconds": seconds}


def recipe_of(job: Job, folder: Path, options: argparse.Namespace) -> Any:
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
    return load_recipe(path, [*changes, *options.set])


def result_of(folder: Path) -> Job:
    """Return what a line keeps of a run; scores are of test, or of the dev halves that did not guide."""
    found = read_run(folder)
    scores = {name: summary["ndcg@10"] for name, summary in found.record["scores"].items()}
    states = sorted(folder.glob("checkpoints/*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    if not scores and states:
        history = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"]
        kept = {name: value for line in history for name, value in line.items()}
        scores = {name: kept[f"eval_{name}_ndcg@10"] for name in found.recipe.dev}
    elif not scores:
        # A merged model has no checkpoints.
        scores = score_model(found.recipe, folder)
    seconds: dict[str, float] = defaultdict(float)
    for part, spent in found.record["seconds"].items():
        seconds["stages" if part.startswith("stage ") else part] += spent
    return {"scores": scores, "weights": found.weights, "seconds": seconds}


def score_model(recipe: Any, folder: Path) -> dict[str, float]:
    """Return NDCG@10 of the model in a run folder, on the test sets or, if there are none, as checkpoints are."""
    data = mixfluence.read_data(recipe)
    saved = recipe.model.model_copy(update={"name": str(folder / MODEL_FOLDER), "revision": None})
    model, size = mixfluence.load_encoder(**saved.model_dump()), recipe.evaluation.batch_size
    tasks = list(data.test.values()) or data.selection
    return {task.name: mixfluence.evaluate(model, task, batch_size=size).mean(MEASURE) for task in tasks}


def scores_of(line: Job) -> dict[str, float]:
    """Return the mean score of each setting that a run counts for."""
    scores = line["scores"]
    if line["setting"] != POOL:
        return {line["setting"]: fmean(scores.values())}
    joint = {"joint in": fmean(scores[name] for name in JOINT)}
    return joint | {f"{name} in": scores[name] for name in SINGLE}


def tables(lines: list[Job]) -> Iterator[str]:
    """Yield a table for each stage: mean NDCG@10 x 100 with 95% t-intervals over seeds, and cost by method."""
    for stage in ("explore", "final"):
        cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        costs: dict[str, dict[tuple[Any, ...], float]] = defaultdict(dict)
        for line in sorted(lines, key=lambda line: line["seed"]):
            if line["stage"] == stage:
                spent = sum(line["seconds"].get(part, 0) for part in COST)
                for setting, score in scores_of(line).items():
                    cells[line["method"]][setting].append(100 * score)
                    costs[line["method"]][setting, line["seed"]] = spent
        heads = [setting for setting in SETTINGS if any(setting in row for row in cells.values())]
        yield f"{stage}\n\n| | {' | '.join(heads)} | cost |"
        yield "|---" * (len(heads) + 2) + "|"
        for method, row in cells.items():
            scores = [interval(row[head]) if head in row else "" for head in heads]
            yield f"| {method} | {' | '.join(scores)} | {relative_cost(costs[method], costs['uniform'])} |"
        yield ""
    yield from summary([line for line in lines if line["stage"] == "final"])


def summary(lines: list[Job]) -> Iterator[str]:
    """Yield the means of groups of targets over seeds, and how far Inf-DDS is ahead, paired over targets and seeds."""
    cells: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for line in lines:
        for setting, score in scores_of(line).items():
            cells[line["method"]][setting, line["seed"]] = 100 * score
    yield f"| | {' | '.join(GROUPS)} | Inf-DDS is ahead by |"
    yield "|---" * (len(GROUPS) + 2) + "|"
    for method, own in cells.items():
        shown = [group_mean(own, settings) for settings in GROUPS.values()]
        shared = own.keys() & cells.get(DEFAULT, {}).keys()
        ahead = [cells[DEFAULT][cell] - own[cell] for cell in shared]
        test = ""
        if len(ahead) > 2 and any(ahead):
            test = f"{fmean(ahead):+.1f} (p = {ttest_1samp(ahead, 0).pvalue:.1g}, {len(ahead)})"
        yield f"| {method} | {' | '.join(shown)} | {test} |"


def group_mean(own: dict[tuple[str, int], float], settings: list[str]) -> str:
    """Return the mean over settings with its interval, over the seeds that have all of them."""
    seeds = sorted({seed for _, seed in own})
    complete = [seed for seed in seeds if all((setting, seed) in own for setting in settings)]
    return interval([fmean(own[setting, seed] for setting in settings) for seed in complete]) if complete else ""


def relative_cost(own: dict[tuple[Any, ...], float], uniform: dict[tuple[Any, ...], float]) -> str:
    """Return the time of a method in units of uniform sampling, over the runs that both have."""
    shared = own.keys() & uniform.keys()
    return f"{sum(own[key] for key in shared) / sum(uniform[key] for key in shared):.1f}" if shared else ""


if __name__ == "__main__":
    main()
