"""Documents instead of labels: pairs made from a corpus as training data, and held-out documents as dev set.

For each target, its own training set is removed from thirteen English domains and pairs of its documents are added.
Sampling is guided by the labelled dev set, by pairs of held-out documents, or not at all. The tables have NDCG@10 on
test, and the rank correlation of the influences that the two dev sets give to the same datasets.

    python -m reproduction.documents final DATA --seeds 3 --processes 12
    python -m reproduction.documents table
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr

from mixfluence.runs import read_run
from reproduction.english.table import interval
from reproduction.guided import IDENTITY, result_of
from reproduction.package import train_recipe
from reproduction.schema import FOLDER
from reproduction.workers import Job, read_lines, run_jobs

RESULTS = FOLDER / "documents" / "runs.jsonl"
TARGETS = ["covidqa", "cosqa", "climatefever", "insuranceqa", "obliqa", "selqa"]
KINDS = ["first-sentence", "crop"]  # the corpora have no titles and no headings
GUIDED = {"name": "inf-dds", "init": "uniform"}
# Named by what guides.
METHODS = {"uniform": {"name": "static", "init": "uniform"}, "labelled": GUIDED, "documents": GUIDED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["final", "table"])
    parser.add_argument("data", nargs="?", help="folder with english/NAME")
    parser.add_argument("--targets", nargs="*", default=TARGETS, metavar="NAME")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--scratch", type=Path, default=Path("runs/documents"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.stage == "table":
        print("\n".join(tables(read_lines(options.out))))
        return
    jobs = [
        {"stage": "final", "method": method, "setting": target, "seed": seed, "strategy": strategy}
        for seed in range(options.seeds)
        for target in options.targets
        for method, strategy in METHODS.items()
    ]
    run_jobs(
        jobs,
        partial(perform, options),
        identity=IDENTITY,
        out=options.out,
        scratch=options.scratch,
        processes=options.processes,
    )


def perform(options: argparse.Namespace, job: Job, folder: Path) -> Job:
    """Train a job and return its result, with the mean influence of each dataset."""
    train_recipe(recipe_of(job, folder, options))
    rounds = [line["update"]["influence"] for line in read_run(folder).trace if "influence" in line.get("update", {})]
    influences = {name: fmean(own[name] for own in rounds) for name in (rounds[0] if rounds else {})}
    return result_of(folder) | {"influences": influences}


def recipe_of(job: Job, folder: Path, options: argparse.Namespace) -> Any:
    """Return the recipe of a job."""
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    path, target = find_recipe("english13"), job["setting"]
    pool = [name for name in load_recipe(path, files_may_be_missing=True).train if name != target]
    documents = {"format": "corpus", "path": f"{options.data}/english/{target}/corpus.jsonl"}
    # The same documents are trained on whatever guides.
    train = {kind: documents | {"kind": kind, "split": "train"} for kind in KINDS} | dict.fromkeys(pool)
    held_out = {f"documents {kind}": documents | {"kind": kind, "split": "dev"} for kind in KINDS}
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
    ]
    return load_recipe(path, changes)


def tables(lines: list[Job]) -> Iterator[str]:
    """Yield scores by target and method, and how alike the influences of both dev sets are."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    influences: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in sorted(lines, key=lambda line: line["seed"]):
        scores[line["setting"]][line["method"]].append(100 * fmean(line["scores"].values()))
        influences[line["setting"]][line["method"]].append(line["influences"])
    yield f"| target | {' | '.join(METHODS)} | rank correlation of influences |"
    yield "|---" * (len(METHODS) + 2) + "|"
    for target, row in scores.items():
        cells = [interval(row[method]) if method in row else "" for method in METHODS]
        pairs = zip(influences[target]["labelled"], influences[target]["documents"], strict=False)
        found = [correlation(first, second) for first, second in pairs]
        yield f"| {target} | {' | '.join(cells)} | {interval(found) if found else ''} |"


def correlation(first: dict[str, float], second: dict[str, float]) -> float:
    """Return the rank correlation of two sets of influences on the same datasets."""
    names = [name for name in first if name in second]
    return float(spearmanr([first[name] for name in names], [second[name] for name in names]).statistic)


if __name__ == "__main__":
    main()
