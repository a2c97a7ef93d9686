"""Prints the setting of every sampler that scored best on dev, one line each, for `study final --methods`.

    python -m reproduction.english.study explore DATA --methods reproduction/english/methods.txt --out FILE
    python -m reproduction.english.best FILE

Lines of the methods file are named `sampler, setting`; every sampler must have the same number of settings.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    lines = [json.loads(line) for line in parser.parse_args().results.read_text().splitlines()]
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    strategies: dict[str, str] = {}
    for line in (line for line in lines if "error" not in line):
        scores[line["method"].split(",")[0]][line["method"]].append(_dev(line))
        strategies[line["method"]] = line["strategy"]
    tried = {sampler: len(settings) for sampler, settings in scores.items()}
    assert len(set(tried.values())) == 1, f"settings tried: {tried}"
    best = {
        sampler: max(settings, key=lambda name: fmean(settings[name])) for sampler, settings in sorted(scores.items())
    }
    for name in best.values():
        print(f"{name}={_replaying_the_best(strategies[name], best)}")


def _replaying_the_best(strategy: str, best: dict[str, str]) -> str:
    """Return a strategy; a replay replays the best setting of its sampler."""
    fields = yaml.safe_load(strategy)
    if fields["name"] != "replay":
        return strategy
    fields["run"] = best[fields["run"]]
    return yaml.safe_dump(fields, default_flow_style=True, width=1000).strip()


def _dev(line: dict[str, Any]) -> float:
    """Return the mean NDCG@10 over the targets, on the dev halves that did not guide."""
    return fmean(line["dev"][f"eval_{target}_ndcg@10"] for target in line["targets"])


if __name__ == "__main__":
    main()
