"""Starts that were never trained for retrieval: runs the grid `raw-start/grid.yaml` and prints tables.

`raw-start/runs.jsonl` has a line for each run. `raw-start/queries.npz` has the NDCG@10 of each query, in the order of
query ids, by `ROW/SEED/TARGET`. `raw-start/study.yaml` repeats the first runs; see `twins/raw-start-joint.md`.

    python -m reproduction.raw_start                                        # the tables of twins/raw-start-joint.md
    python -m reproduction.raw_start rates DATA --settings languages --seeds 1 --processes 7
    python -m reproduction.raw_start final DATA --settings joint --processes 8 --out runs/raw/runs.jsonl
    python -m reproduction.raw_start table --out runs/raw/runs.jsonl        # of these runs
    python -m reproduction.raw_start collect --out runs/raw/runs.jsonl      # adds joint runs to raw-start/
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t

from mixfluence.evaluation.significance import average_difference, bootstrap_interval, holm, t_test
from mixfluence.runs import Score
from reproduction.raw_runs import RESULTS, collect, jobs_of, queries_of, run
from reproduction.tables import Table, bold, points
from reproduction.workers import Job as Line
from reproduction.workers import read_lines

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

JOB_KEYS = ("setting", "row")
Rows = Mapping[str, Sequence[Line]]


def tables(controls: Sequence[str] | None = None) -> list[Table]:
    """Return all tables, or those of some controls."""
    lines = read_lines(RESULTS / "runs.jsonl")
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


def grid_tables(out: Path) -> Iterator[Table]:
    """Yield tables of a file of results: scores on dev of each learning rate, and for each setting what was tested."""
    lines = sorted(read_lines(out), key=lambda line: line["seed"])
    for setting in dict.fromkeys(line["setting"] for line in lines):
        own = [line for line in lines if line["setting"] == setting]
        rates = [line for line in own if line["stage"] == "rates"]
        if rates:
            scores = [f"{100 * line['dev_halves']['eval_ndcg@10']:.1f}" for line in rates]
            title = f"{setting}: NDCG@10 × 100 on dev halves, uniform sampling"
            yield Table(title, {"row": [line["row"] for line in rates], "mean": scores})
        rows: dict[str, list[Line]] = {}
        queries: dict[str, Any] = {}
        for line in (line for line in own if line["stage"] == "final"):
            rows.setdefault(line["row"], []).append(line)
            with np.load(queries_of(line, out)) as file:
                names = {name: f"{line['row']}/{line['seed']}/{name}" for name in file}
                queries |= {names[name]: scores.astype(np.float64) for name, scores in file.items()}
        if rows:
            found = [_scores(rows), _costs(rows)]
            found += [_paired(rows, control, queries) for control in CONTROLS if control in rows]
            yield from (Table(f"{setting}: {table.title}", table.columns) for table in found)


def _rates(lines: Sequence[Line]) -> Table:
    lines = sorted(lines, key=lambda line: line["learning_rate"])
    keys = {name: f"eval_{name}_ndcg@10" for name in TARGETS} | {"mean": "eval_ndcg@10"}
    columns = {name: [f"{100 * line['dev_halves'][key]:.1f}" for line in lines] for name, key in keys.items()}
    rates = {"learning rate": [f"{line['learning_rate']:g}" for line in lines]}
    return Table("NDCG@10 × 100 on dev halves, uniform sampling", rates | columns)


def _average(line: Line) -> float:
    return 100 * fmean(line["test"].values())


def _scores(rows: Rows) -> Table:
    averages = {row: Score(tuple(map(_average, lines))) for row, lines in rows.items()}
    best = max(score.mean for row, score in averages.items() if row not in REFERENCES)
    targets = list(next(iter(rows.values()))[0]["test"])
    columns = {
        "row": list(rows),
        "runs": [str(len(lines)) for lines in rows.values()],
        "average": [bold(points(score)) if score.mean == best else points(score) for score in averages.values()],
    }
    for name in targets:
        scores = [Score(tuple(100 * line["test"][name] for line in lines)) for lines in rows.values()]
        columns[name] = list(map(points, scores))
    return Table("NDCG@10 × 100 on test, mean ± standard deviation over seeds", columns)


def _paired(rows: Rows, control: str, queries: Mapping[str, Any]) -> Table:
    """Return the differences from a control: queries are paired, scores are means over the seeds of both rows."""
    others = [row for row in rows if row != control]
    theirs = {line["seed"]: _average(line) for line in rows[control]}
    targets = list(rows[control][0]["test"])
    columns: dict[str, list[str]] = {"row": others}
    p_values = []
    for row in others:
        ours = {line["seed"]: _average(line) for line in rows[row]}
        seeds = [seed for seed in ours if seed in theirs]
        sets = [
            np.mean([queries[f"{row}/{seed}/{name}"] for seed in seeds], axis=0)
            - np.mean([queries[f"{control}/{seed}/{name}"] for seed in seeds], axis=0)
            for name in targets
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
            name: f"{100 * own.mean():+.1f}{_stars(t_test([own]))}" for name, own in zip(targets, sets, strict=True)
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
    if any("stages" in line["seconds"] for lines in rows.values() for line in lines):
        parts["proxies, s"] = "stages"
    steps = min(lines[0]["steps"] for lines in rows.values())
    columns = {"row": list(rows)}
    for head, part in parts.items():
        columns[head] = [f"{fmean(_seconds(line, part) for line in lines):.0f}" for lines in rows.values()]
    columns["static runs"] = [
        f"{fmean(_ratio(line) for line in lines) * lines[0]['steps'] / steps:.2f}" for lines in rows.values()
    ]
    return Table(f"Cost in static runs of {steps:,} steps", columns)


def _seconds(line: Line, part: str) -> float:
    return float(line["seconds"].get(part, 0.0))


def _ratio(line: Line) -> float:
    return sum(_seconds(line, part) for part in ("train", "probe", "cluster", "stages")) / _seconds(line, "train")


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", default="page", choices=["page", "rates", "final", "table", "collect"])
    parser.add_argument("data", nargs="?", type=Path, help="folder with english/NAME and multilingual/NAME")
    known = {key: sorted({job[key] for stage in ("rates", "final") for job in jobs_of(stage, 1)}) for key in JOB_KEYS}
    for key, values in known.items():
        parser.add_argument(f"--{key}s", nargs="*", choices=values, metavar="NAME", help=", ".join(values))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to every recipe")
    parser.add_argument("--scratch", type=Path, default=Path("runs/raw/scratch"))
    parser.add_argument("--out", type=Path, default=Path("runs/raw/runs.jsonl"))
    options = parser.parse_args()
    if options.stage in {"rates", "final"}:
        if options.data is None:
            parser.error("the folder of the data is missing")
        run(options)
    elif options.stage == "collect":
        collect(options.out)
    else:
        for table in tables() if options.stage == "page" else grid_tables(options.out):
            print(table.to_markdown())


if __name__ == "__main__":
    main()
