"""Prints the tables of the study of raw starts, from its results in `raw-start/`.

`raw-start/runs.jsonl` has a line for each run. `raw-start/queries.npz` has the NDCG@10 of each query, in the order of
query ids, by `ROW/SEED/TARGET`. `raw-start/study.yaml` repeats the runs; see `twins/raw-start-joint.md`.

    python -m reproduction.raw_start
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t

from mixfluence.runs import Score
from reproduction.package import average_difference, bootstrap_interval, holm, t_test
from reproduction.schema import FOLDER
from reproduction.tables import Table, bold, points

RESULTS = FOLDER / "raw-start"
TARGETS = ("insuranceqa", "covidqa", "openbookqa", "obliqa", "selqa")
REFERENCES = ("bm25", "released", "zero-shot")
# Static rows, which every other row is compared with.
CONTROLS = (
    "static uniform",
    "target-only uniform",
    "static proportional",
    "static temperature 5",
    "static uniform longer",
)
STEPS = 1_500

Line = dict[str, Any]
Rows = Mapping[str, Sequence[Line]]


def read_lines() -> list[Line]:
    """Return the lines of all runs."""
    return [json.loads(line) for line in (RESULTS / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


def tables(controls: Sequence[str] | None = None) -> list[Table]:
    """Return all tables, or those of some controls."""
    lines = read_lines()
    rows: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        if line["stage"] == "final":
            rows.setdefault(line["row"], []).append(line)
    trained = {row: own for row, own in rows.items() if row not in REFERENCES}
    with np.load(RESULTS / "queries.npz") as file:
        queries = {name: values.astype(np.float64) for name, values in file.items()}
    return [
        _rates([line for line in lines if line["stage"] == "rates"]),
        _scores(rows),
        *(_paired(trained, control, queries) for control in controls or CONTROLS),
        _costs(trained),
        _mixtures("Final mixtures, %", trained, lambda line: line["weights"]),
        _mixtures("Rows drawn, %", trained, _drawn),
        _small_dev(trained),
    ]


def _rates(lines: Sequence[Line]) -> Table:
    lines = sorted(lines, key=lambda line: line["learning_rate"])
    keys = {name: f"eval_{name}_ndcg@10" for name in TARGETS} | {"mean": "eval_ndcg@10"}
    columns = {name: [f"{100 * line['dev_halves'][key]:.1f}" for line in lines] for name, key in keys.items()}
    rates = {"learning rate": [f"{line['learning_rate']:g}" for line in lines]}
    return Table("NDCG@10 × 100 on dev halves, uniform sampling", rates | columns)


def _average(line: Line) -> float:
    return 100 * fmean(line["test"][name] for name in TARGETS)


def _scores(rows: Rows) -> Table:
    averages = {row: Score(tuple(map(_average, lines))) for row, lines in rows.items()}
    best = max(score.mean for row, score in averages.items() if row not in REFERENCES)
    columns = {
        "row": list(rows),
        "runs": [str(len(lines)) for lines in rows.values()],
        "average": [bold(points(score)) if score.mean == best else points(score) for score in averages.values()],
    }
    for name in TARGETS:
        scores = [Score(tuple(100 * line["test"][name] for line in lines)) for lines in rows.values()]
        columns[name] = list(map(points, scores))
    return Table("NDCG@10 × 100 on test, mean ± standard deviation over seeds", columns)


def _paired(rows: Rows, control: str, queries: Mapping[str, Any]) -> Table:
    """Return the differences from a control: queries are paired, scores are means over the seeds of both rows."""
    others = [row for row in rows if row != control]
    theirs = {line["seed"]: _average(line) for line in rows[control]}
    columns: dict[str, list[str]] = {"row": others}
    p_values = []
    for row in others:
        ours = {line["seed"]: _average(line) for line in rows[row]}
        seeds = [seed for seed in ours if seed in theirs]
        sets = [
            np.mean([queries[f"{row}/{seed}/{name}"] for seed in seeds], axis=0)
            - np.mean([queries[f"{control}/{seed}/{name}"] for seed in seeds], axis=0)
            for name in TARGETS
        ]
        mean, low, high = (100 * value for value in (average_difference(sets), *bootstrap_interval(sets)))
        p_values.append(t_test(sets))
        by_seed = [ours[seed] - theirs[seed] for seed in seeds]
        cells = {
            "average, 95% over queries": f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]",
            "p": f"{p_values[-1]:.1g}",
            "p, Holm": "",
            "95% over seeds": _seed_interval(by_seed),
            "seeds ahead": f"{sum(difference > 0 for difference in by_seed)} of {len(by_seed)}",
        }
        cells |= {
            name: f"{100 * own.mean():+.1f}{_stars(t_test([own]))}" for name, own in zip(TARGETS, sets, strict=True)
        }
        for head, cell in cells.items():
            columns.setdefault(head, []).append(cell)
    columns["p, Holm"] = [f"{p:.1g}" for p in holm(p_values)]
    return Table(f"Against {control}", columns)


def _seed_interval(differences: Sequence[float]) -> str:
    """Return the t-interval of paired differences by seed."""
    if len(differences) < 3:
        return ""
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5
    return f"[{fmean(differences) - half:+.1f}, {fmean(differences) + half:+.1f}]"


def _stars(p: float) -> str:
    return r"\*\*" if p < 0.01 else r"\*" if p < 0.05 else ""


def _costs(rows: Rows) -> Table:
    """Return seconds, and the cost in static runs: ratios within a run, because the runs shared a GPU."""
    parts = {"training, s": "train", "probing, s": "probe", "clustering, s": "cluster"}
    columns = {"row": list(rows)}
    for head, part in parts.items():
        columns[head] = [f"{fmean(_seconds(line, part) for line in lines):.0f}" for lines in rows.values()]
    columns["static runs"] = [
        f"{fmean(_ratio(line) for line in lines) * lines[0]['steps'] / STEPS:.2f}" for lines in rows.values()
    ]
    return Table(f"Cost in static runs of {STEPS:,} steps", columns)


def _seconds(line: Line, part: str) -> float:
    return float(line["seconds"].get(part, 0.0))


def _ratio(line: Line) -> float:
    return sum(_seconds(line, part) for part in ("train", "probe", "cluster")) / _seconds(line, "train")


def _mixtures(title: str, rows: Rows, mixture: Callable[[Line], Mapping[str, float]]) -> Table:
    found = {row: [mixture(line) for line in lines] for row, lines in rows.items()}
    columns = {"row": list(rows)}
    for name in rows["static uniform"][0]["weights"]:
        columns[name] = [f"{100 * fmean(own.get(name, 0.0) for own in mixtures):.0f}" for mixtures in found.values()]
    return Table(title, columns)


def _drawn(line: Line) -> dict[str, float]:
    """Return the shares of the rows drawn; a cluster of CRISP is named after its dataset."""
    total = sum(line["rows_drawn"].values())
    shares: dict[str, float] = {}
    for name, count in line["rows_drawn"].items():
        dataset = name.partition("/")[0]
        shares[dataset] = shares.get(dataset, 0.0) + count / total
    return shares


def _small_dev(rows: Rows) -> Table:
    scores = [Score(tuple(100 * fmean(line["dev_small"].values()) for line in lines)) for lines in rows.values()]
    title = "NDCG@10 × 100 of dev queries among the positives of the first 1,000 dev rows"
    return Table(title, {"row": list(rows), "mean": list(map(points, scores))})


def main() -> None:
    for table in tables():
        print(table.to_markdown())


if __name__ == "__main__":
    main()
