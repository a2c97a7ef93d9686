"""Prints the finished runs of studies, one line each: scores, final mixture and seconds.

python -m reproduction.collect runs/studies/twin-* > reproduction/results/twins.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mixfluence.runs import RECORD_FILE, WEIGHTS_FILE, read_record


def line_of(run: Path) -> dict[str, Any]:
    """Return the line of a run; a model that was only tested has no steps, mixture or seconds."""
    record = read_record(run / RECORD_FILE)
    weights = json.loads((run / WEIGHTS_FILE).read_text(encoding="utf-8")) if (run / WEIGHTS_FILE).exists() else {}
    return {
        "setting": run.parts[-3],
        "row": run.parts[-2],
        "seed": record["seed"],
        "steps": record.get("steps", 0),
        "ndcg@10": {name: round(100 * scores["ndcg@10"], 3) for name, scores in record["scores"].items()},
        "weights": {name: round(weight, 5) for name, weight in weights.items()},
        "seconds": {part: round(seconds, 1) for part, seconds in record.get("seconds", {}).items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of settings")
    for folder in parser.parse_args().folders:
        for record in sorted(folder.glob(f"*/*/{RECORD_FILE}")):
            print(json.dumps(line_of(record.parent)))


if __name__ == "__main__":
    main()
