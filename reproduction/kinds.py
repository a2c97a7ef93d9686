"""Kinds of models that adapt to one target: dense, sparse, multi-vector and cross-encoder, from the same weights.

All start from MiniLM's weights and train on thirteen English domains with covidqa as target, by Inf-DDS with its
defaults or uniformly. Layers that MiniLM lacks are new, so that the start of a sparse model or cross-encoder is no
retriever. `rates` chooses a learning rate for each new kind with uniform sampling and a half of dev, `final` tests.

    python -m reproduction.kinds rates DATA --processes 16
    python -m reproduction.kinds final DATA --processes 16
    python -m reproduction.kinds table
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import mixfluence
from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.runs import read_run
from reproduction.corpora import GUIDED, UNIFORM
from reproduction.english.table import interval
from reproduction.guided import result_of
from reproduction.reference import BM25, test_untrained
from reproduction.schema import FOLDER
from reproduction.workers import Job, peak_memory, read_lines, read_options, run_jobs, study_parser

RESULTS = FOLDER / "kinds" / "runs.jsonl"
TARGET = "covidqa"
# A cross-encoder is tested on what BM25 ranks high. By the last method, dev rows that guide it have such passages too.
HARD_DEV, NEGATIVES = "inf-dds, BM25's passages in dev", {"negatives": {"mine": 8, "filter": "bm25"}}
METHODS: dict[str, Job] = {
    "uniform": UNIFORM,
    "inf-dds": GUIDED,
    HARD_DEV: GUIDED | {"probe": {"metric": "info-nce-hard"}},
}
START = "zero-shot"
# Changes to the recipe `english13`, whose learning rate and temperature are those of the dense encoder. Batches are
# smaller where a row costs more: logits over the vocabulary, and five pairs of texts for a cross-encoder.
PLAIN = ["model.pooling=null", "training.temperature=1"]
KINDS = {
    "dense": [],
    "sparse": [*PLAIN, "training.batch_size=64", "evaluation.batch_size=32"],
    "multi-vector": [*PLAIN, "training.batch_size=64"],
    "reranker": [*PLAIN, "training.batch_size=32", "model.query_length=null", "model.passage_length=256"],
}
DENSE_RATE = 2e-5
RATES = [2e-5, 1e-4, 5e-4]


def main() -> None:
    parser = study_parser(__doc__, ["rates", "final"], name="kinds", out=RESULTS)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), metavar="NAME")
    options = read_options(parser)
    if options.stage == "table":
        print("\n".join(tables(read_lines(options.out))))
        return
    found = best_rates(read_lines(options.out))
    jobs = list(rate_jobs(options.kinds) if options.stage == "rates" else final_jobs(options.kinds, options.seeds))
    run_jobs([{"rate": found.get(job["setting"], DENSE_RATE)} | job for job in jobs], perform, options)


def rate_jobs(kinds: list[str]) -> Iterator[Job]:
    """Yield a run for each learning rate of each kind but the dense one."""
    for rate in RATES:
        for kind in kinds:
            if kind != "dense":
                yield {"stage": "rates", "method": f"{rate:g}", "setting": kind, "seed": 0, "rate": rate}


def final_jobs(kinds: list[str], seeds: int) -> Iterator[Job]:
    """Yield the runs that are tested, and the starts; BM25 stands beside the first kind."""
    for seed in range(seeds):
        for method in METHODS:
            # The slowest first.
            for kind in reversed(kinds):
                if method != HARD_DEV or kind == "reranker":
                    yield {"stage": "final", "method": method, "setting": kind, "seed": seed}
    for kind in kinds:
        yield {"stage": "final", "method": START, "setting": kind, "seed": 0}
    yield {"stage": "final", "method": BM25, "setting": kinds[0], "seed": 0}


def best_rates(lines: list[Job]) -> dict[str, float]:
    """Return the learning rate of each kind that was best on the half of dev that guides nothing."""
    scores: dict[str, dict[float, float]] = defaultdict(dict)
    for line in lines:
        if line["stage"] == "rates":
            scores[line["setting"]][line["rate"]] = line["scores"][TARGET]
    return {kind: max(own, key=lambda rate: own[rate]) for kind, own in scores.items()}


def perform(options: argparse.Namespace, job: Job, folder: Path) -> Job:
    """Train or test a job and return its result."""
    recipe = recipe_of(job, folder, options)
    if job["method"] in {START, BM25}:
        test_untrained(recipe, job["method"])
        scores = {TARGET: read_run(folder).record["scores"][TARGET]["ndcg@10"]}
        return {"scores": scores, "memory": peak_memory()}
    mixfluence.run(recipe)
    return {**result_of(folder), "memory": peak_memory()}


def recipe_of(job: Job, folder: Path, options: argparse.Namespace) -> Any:
    """Return the recipe of a job."""
    kind, steps = job["setting"], options.steps
    changes = [
        f"defaults.path={options.data}/english/{{name}}",
        f"dev={json.dumps({TARGET: NEGATIVES if job['method'] == HARD_DEV else {}})}",
        f"model.name={options.model}",
        f"model.kind={kind}",
        f"strategy={json.dumps(METHODS.get(job['method'], UNIFORM))}",
        f"training.steps={steps}",
        f"training.warmup_steps={steps // 10}",
        f"training.learning_rate={job['rate']}",
        "evaluation.references=false",
        f"seed={job['seed']}",
        f"output={folder}",
        *KINDS[kind],
        *options.set,
    ]
    if job["stage"] == "rates":
        changes += ["test={}", f"selection={{every: {steps}, dev: halves, corpus: 20000}}"]
    else:
        changes += [f"test=[{TARGET}]", "selection=null"]
    return load_recipe(find_recipe("english13"), changes)


def tables(lines: list[Job]) -> Iterator[str]:
    """Yield NDCG@10 x 100 on test with 95% t-intervals over seeds, and on the half of dev that chose the rates."""
    cells: dict[str, dict[str, dict[int, Job]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if line["stage"] == "final":
            cells[line["setting"]][line["method"]][line["seed"]] = line
    yield f"| {TARGET} | learning rate | {START} | uniform | inf-dds | difference, paired by seed | cost of inf-dds |"
    yield "|---" * 7 + "|"
    for kind, method in (
        (kind, method) for kind, own in cells.items() for method in ("inf-dds", HARD_DEV) if method in own
    ):
        methods = cells[kind]
        ours, theirs = methods[method], methods.get("uniform", {})
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            continue
        ahead = interval([_score(ours[seed]) - _score(theirs[seed]) for seed in seeds])
        cost = 1 + fmean(ours[seed]["seconds"]["probe"] / ours[seed]["seconds"]["train"] for seed in seeds)
        start = _score(methods[START][0]) if START in methods else float("nan")
        scores = " | ".join(interval([_score(own[seed]) for seed in seeds]) for own in (theirs, ours))
        name = kind + method.removeprefix("inf-dds")
        yield f"| {name} | {ours[seeds[0]]['rate']:g} | {start:.1f} | {scores} | {ahead} | {cost:.2f} |"
    for lexical in (methods[BM25][0] for methods in cells.values() if BM25 in methods):
        yield f"| BM25 | | {_score(lexical):.1f} | | | | |"
    rates = [line for line in lines if line["stage"] == "rates"]
    yield f"\n| learning rate, dev half | {' | '.join(f'{rate:g}' for rate in RATES)} |"
    yield "|---" * (len(RATES) + 1) + "|"
    for kind in dict.fromkeys(line["setting"] for line in rates):
        own = {line["rate"]: f"{_score(line):.1f}" for line in rates if line["setting"] == kind}
        yield f"| {kind} | {' | '.join(own.get(rate, '') for rate in RATES)} |"


def _score(line: Job) -> float:
    return float(100 * line["scores"][TARGET])


if __name__ == "__main__":
    main()
