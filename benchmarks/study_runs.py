"""The finished runs of studies, a line each: scores, final mixture and seconds, seed by seed.

Run folders are large and stay where they were made; these lines are what benchmarks/results/ keeps of them.

    python benchmarks/study_runs.py runs/studies/twin-* > benchmarks/results/twins.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mixfluence.data.weights import read_weights
from mixfluence.runs import RECORD_FILE, WEIGHTS_FILE


def line(run: Path) -> dict[str, Any]:
    """Return what is kept of a run; a model that was only tested has a shorter record and no mixture."""
    record = json.loads((run / RECORD_FILE).read_text(encoding="utf-8"))
    weights = read_weights(run / WEIGHTS_FILE) if (run / WEIGHTS_FILE).exists() else {}
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
    parser.add_argument("folders", nargs="+", type=Path, help="folders of a setting")
    options = parser.parse_args()
    for folder in options.folders:
        for record in sorted(folder.glob(f"*/*/{RECORD_FILE}")):
            print(json.dumps(line(record.parent)))


if __name__ == "__main__":
    main()
