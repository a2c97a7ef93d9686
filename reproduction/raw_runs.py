"""The runs of `raw-start/grid.yaml`: their recipes, and what is kept of each.

`rates` trains with uniform sampling and scores the dev halves that guide nothing. `final` uses all of dev to guide and
tests the last step. NDCG@10 of each query goes to `queries/` beside the file of results.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

import mixfluence
from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.runs import read_run
from reproduction.schema import FOLDER
from reproduction.workers import Job, read_lines, run_jobs

RESULTS = FOLDER / "raw-start"
IDENTITY = ("stage", "setting", "row", "seed")
UNIFORM = {"name": "static", "init": "uniform"}
CUTOFF = 10


def read_groups() -> dict[str, Any]:
    """Return the groups of runs."""
    groups: dict[str, Any] = yaml.safe_load((RESULTS / "grid.yaml").read_text(encoding="utf-8"))["groups"]
    return groups


def jobs_of(stage: str, seeds: int) -> Iterator[Job]:
    """Yield all jobs of a stage, the first seed of every row first."""
    for seed in range(seeds):
        for name, group in read_groups().items():
            rows = group.get("rates", {}) if stage == "rates" else group["rows"]
            for setting in group["settings"]:
                for row, value in rows.items():
                    # Without the target's own set, target-only has nothing to draw.
                    if setting.endswith(" out") and row.startswith("target-only"):
                        continue
                    own = {"strategy": UNIFORM, "changes": value} if stage == "rates" else {"strategy": value}
                    yield {"stage": stage, "group": name, "setting": setting, "row": row, "seed": seed, **own}


def run(options: argparse.Namespace) -> None:
    """Run the jobs that the options select."""
    jobs = [
        job
        for job in jobs_of(options.stage, options.seeds)
        if not options.settings or job["setting"] in options.settings
        if not options.rows or job["row"] in options.rows
    ]
    run_jobs(jobs, perform, options, IDENTITY)


def perform(options: argparse.Namespace, job: Job, folder: Path) -> Job:
    """Train a job and return its results."""
    recipe = recipe_of(options, job, folder)
    mixfluence.run(recipe)
    return {
        "recipe": read_groups()[job["group"]]["recipe"],
        "sampler": job["strategy"]["name"],
        "start": recipe.model.name,
        "model": recipe.model.model_dump(mode="json", exclude_unset=True),
        "steps": recipe.training.steps,
        "learning_rate": recipe.training.learning_rate,
        **result_of(folder, queries_of(job, options.out)),
    }


def queries_of(job: Job, out: Path) -> Path:
    """Return the file with the scores of a run's queries."""
    name = " ".join(str(job[key]) for key in IDENTITY)
    return out.parent / "queries" / f"{name.replace(' ', '-')}.npz"


def recipe_of(options: argparse.Namespace, job: Job, folder: Path, *, files_may_be_missing: bool = False) -> Any:
    """Return the recipe of a job."""
    group = read_groups()[job["group"]]
    own = FOLDER / "recipes" / f"{group['recipe']}.yaml"
    path = own if own.exists() else find_recipe(group["recipe"])
    base = load_recipe(path, files_may_be_missing=True)
    target, _, pool = job["setting"].partition(" ")
    targets = [target] if pool else list(base.dev)
    strategy = dict(job["strategy"])
    if strategy.get("init") == "expert":
        strategy["init"] = base.strategy.model_dump(mode="json")["init"]
    changes = [
        f"defaults.path={options.data}/{group['data']}/{{name}}",
        f"train={[name for name in base.train if pool != 'out' or name != target]}",
        f"dev={targets}",
        f"strategy={json.dumps(strategy)}",
        "evaluation.references=false",
        "selection=null",
        f"seed={job['seed']}",
        f"output={folder}",
        *group["changes"],
        *job.get("changes", []),
        *options.set,
    ]
    steps = load_recipe(path, changes, files_may_be_missing=True).training.steps
    changes.append(f"training.warmup_steps={steps // 10}")
    if job["stage"] == "final":
        changes.append(f"test={targets}")
    else:
        changes += ["test={}", f"selection={{every: {steps}, dev: halves, corpus: 20000}}"]
    return load_recipe(path, changes, files_may_be_missing=files_may_be_missing)


def result_of(folder: Path, queries: Path) -> Job:
    """Return the scores, weights and seconds of a run, and write the NDCG@10 of each query in the order of ids."""
    found = read_run(folder)
    line: Job = {"test": {name: summary["ndcg@10"] for name, summary in found.record["scores"].items()}}
    if line["test"]:
        scores = {name: own.per_query for name, own in found.scores.items()}
        queries.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            name: np.array([own[query]["ndcg@10"] for query in sorted(own)], np.float32)
            for name, own in scores.items()
        }
        np.savez_compressed(queries, **arrays)  # type: ignore[arg-type]  # names of arrays are any words
    else:
        states = sorted(folder.glob("checkpoints/*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
        history = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"]
        line["dev_halves"] = {key: value for logs in history for key, value in logs.items() if key.endswith("ndcg@10")}
    updates = [own for own in found.trace if "update" in own]
    return line | {
        "dev_small": {path.stem: _small_dev(path) for path in sorted((folder / "dev").glob("*.jsonl"))},
        "seconds": {"probe": 0.0} | found.record["seconds"],
        "weights": json.loads((folder / "weights.json").read_text(encoding="utf-8")),
        "rows_drawn": found.record["rows_drawn"],
        "updates": [{"step": own["step"], "weights": own["weights"]} for own in updates],
    }


def _small_dev(path: Path) -> float:
    ranks = [json.loads(line)["rank"] for line in path.read_text(encoding="utf-8").splitlines()]
    return fmean(1 / math.log2(1 + rank) if rank <= CUTOFF else 0.0 for rank in ranks)


def collect(out: Path) -> None:
    """Add the joint runs of a file of results to `raw-start/runs.jsonl` and `raw-start/queries.npz`."""
    known = {(line["row"], line["seed"]) for line in read_lines(RESULTS / "runs.jsonl") if line["stage"] == "final"}
    with np.load(RESULTS / "queries.npz") as file:
        queries = dict(file)
    for line in read_lines(out):
        if line["stage"] != "final" or line["setting"] != "joint" or (line["row"], line["seed"]) in known:
            continue
        with np.load(queries_of(line, out)) as file:
            queries |= {f"{line['row']}/{line['seed']}/{target}": scores for target, scores in file.items()}
        with (RESULTS / "runs.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
    np.savez_compressed(RESULTS / "queries.npz", **queries)
