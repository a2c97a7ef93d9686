"""Documents instead of labels: pairs made from a corpus as training data, and held-out documents as dev set.

The target's own training set is removed. `alone` trains on pairs of its documents, a dataset of each kind; `pool` adds
the other twelve English domains. Sampling is guided by the labelled dev set, by pairs of held-out documents, or not at
all. The tables have NDCG@10 on test, and the rank correlation of the influences that the two dev sets give to the same
datasets.

    python -m reproduction.corpora final DATA --processes 14
    python -m reproduction.corpora table
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr, ttest_1samp

import mixfluence
from mixfluence.adapt import kinds_of_pairs
from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.runs import MEASURE, read_run
from reproduction.english.table import interval
from reproduction.guided import result_of
from reproduction.schema import FOLDER
from reproduction.workers import Job, read_lines, read_options, run_jobs, study_parser

RESULTS = FOLDER / "corpora" / "runs.jsonl"
TARGETS = ["covidqa", "insuranceqa", "obliqa", "climatefever", "cosqa", "selqa"]
# Alone, all domains whose documents give pairs of two kinds or more.
OTHERS = ["checkthat", "medquad", "mssupport", "nq", "scitldr", "socode"]
POOLS = ["alone", "pool"]
SETTINGS = [*(f"{target} alone" for target in [*TARGETS, *OTHERS]), *(f"{target} pool" for target in TARGETS)]
UNIFORM: Job = {"name": "static", "init": "uniform"}
GUIDED: Job = {"name": "inf-dds", "init": "uniform"}
# Named by what guides.
METHODS: dict[str, Job] = {
    "uniform": UNIFORM,
    "labelled": GUIDED,
    "documents": GUIDED,
}
REFERENCES = ["bm25", "zero-shot"]
Influences = dict[str, float]


def main() -> None:
    parser = study_parser(__doc__, ["final"], name="corpora", out=RESULTS)
    parser.add_argument("--settings", nargs="*", default=SETTINGS, choices=SETTINGS, metavar="NAME")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    options = read_options(parser)
    if options.stage == "table":
        print("\n".join(tables(read_lines(options.out))))
        return
    jobs = [
        {"stage": "final", "method": method, "setting": setting, "seed": seed, "strategy": METHODS[method]}
        for seed in range(options.seeds)
        for setting in options.settings
        for method in options.methods
    ]
    run_jobs(jobs, perform, options)


def perform(options: argparse.Namespace, job: Job, folder: Path) -> Job:
    """Train a job and return its result, with the influences of each round and the scores of start and BM25."""
    mixfluence.run(recipe_of(job, folder, options))
    found = read_run(folder)
    rounds = [line["update"]["influence"] for line in found.trace if "influence" in line.get("update", {})]
    references = {name: fmean(own.mean(MEASURE) for own in found.references[name].values()) for name in REFERENCES}
    return result_of(folder) | {"influences": rounds, "references": references}


def recipe_of(job: Job, folder: Path, options: argparse.Namespace) -> Any:
    """Return the recipe of a job."""
    path = find_recipe("english13")
    target, pool = job["setting"].split()
    corpus = Path(options.data, "english", target, "corpus.jsonl")
    documents = {"format": "corpus", "path": str(corpus)}
    kinds = kinds_of_pairs(corpus, "train")
    # The same documents are trained on whatever guides.
    train: dict[str, Any] = {kind: documents | {"kind": kind, "split": "train"} for kind in kinds}
    if pool == "pool":
        names = load_recipe(path, files_may_be_missing=True).train
        train |= {name: None for name in names if name != target}
    held_out = {f"documents {kind}": documents | {"kind": kind, "split": "dev"} for kind in kinds}
    dev = held_out if job["method"] == "documents" else {target: {}}
    changes = [
        f"defaults.path={options.data}/english/{{name}}",
        f"train={json.dumps(train)}",
        f"dev={json.dumps(dev)}",
        f"test=[{target}]",
        f"strategy={json.dumps(job['strategy'])}",
        f"model.name={options.model}",
        f"training.steps={options.steps}",
        "selection=null",
        f"seed={job['seed']}",
        f"output={folder}",
        *options.set,
    ]
    return load_recipe(path, changes)


def tables(lines: list[Job]) -> Iterator[str]:
    """Yield scores by target and method for each pool, and how alike the influences of both dev sets are."""
    for pool in POOLS:
        own = sorted((line for line in lines if line["setting"].endswith(f" {pool}")), key=lambda line: line["seed"])
        if own:
            yield from score_table(own, pool)
            yield ""
            # Two or three kinds of pairs are too few to be ranked.
            yield from agreement_table(own) if pool == "pool" else ()


def score_table(lines: Sequence[Job], pool: str) -> Iterator[str]:
    """Yield NDCG@10 x 100 with 95% t-intervals over seeds; below it, how far each method is ahead of uniform."""
    cells: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    rows: dict[str, Job] = {}
    for line in lines:
        cells[line["method"]][line["setting"], line["seed"]] = 100 * fmean(line["scores"].values())
        rows[line["setting"]] = line["references"]
    methods = [method for method in METHODS if method in cells]
    yield f"| {pool}: NDCG@10 | {' | '.join([*REFERENCES, *methods])} |"
    yield "|---" * (1 + len(REFERENCES) + len(methods)) + "|"
    for setting, references in rows.items():
        shown = [f"{100 * references[name]:.1f}" for name in REFERENCES]
        for method in methods:
            values = [value for (where, _), value in cells[method].items() if where == setting]
            shown.append(interval(values) if values else "")
        yield f"| {setting.split()[0]} | {' | '.join(shown)} |"
    start = {key: 100 * rows[key[0]]["zero-shot"] for own in cells.values() for key in own}
    for name, other in {"the start": start, "uniform": cells["uniform"]}.items():
        shown = [ahead(cells[method], other) for method in methods]
        yield f"| ahead of {name} | {' | '.join([*[''] * len(REFERENCES), *shown])} |"


def ahead(own: dict[tuple[str, int], float], other: dict[tuple[str, int], float]) -> str:
    """Return the mean difference, paired over targets and seeds, with the p-value of a t-test."""
    differences = [own[key] - other[key] for key in own if key in other]
    if len(differences) < 3 or not any(differences):
        return ""
    return f"{fmean(differences):+.1f} (p = {ttest_1samp(differences, 0).pvalue:.1g}, {len(differences)})"


def agreement_table(lines: Sequence[Job]) -> Iterator[str]:
    """Yield rank correlations of influences: of both dev sets by seed, and of the labelled one between seeds.

    At the first round both runs still have the same model.
    """
    yield "| rank correlation of influences | first round | mean of all rounds | labelled, between seeds |"
    yield "|---|---|---|---|"
    for setting in dict.fromkeys(line["setting"] for line in lines):
        rounds = {
            method: {
                line["seed"]: line["influences"]
                for line in lines
                if line["setting"] == setting and line["method"] == method
            }
            for method in ("labelled", "documents")
        }
        labelled, documents = rounds["labelled"], rounds["documents"]
        both = [seed for seed in labelled if seed in documents]
        found = [
            [correlation(labelled[seed][0], documents[seed][0]) for seed in both],
            [correlation(average(labelled[seed]), average(documents[seed])) for seed in both],
            [correlation(average(first), average(second)) for first, second in pairwise(labelled.values())],
        ]
        shown = [f"{fmean(values):+.2f}" if values else "" for values in found]
        yield f"| {setting.split()[0]} | {' | '.join(shown)} |"


def average(rounds: Sequence[Influences]) -> Influences:
    """Return the mean influence of each dataset."""
    return {name: fmean(own[name] for own in rounds) for name in rounds[0]}


def correlation(first: Influences, second: Influences) -> float:
    """Return the rank correlation of two sets of influences on the same datasets."""
    names = [name for name in first if name in second]
    return float(spearmanr([first[name] for name in names], [second[name] for name in names]).statistic)


if __name__ == "__main__":
    main()
