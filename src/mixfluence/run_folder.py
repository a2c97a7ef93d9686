"""Names of what a run folder holds, and its trace as lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mixfluence.errors import DataError

RECIPE_FILE, RECORD_FILE, WEIGHTS_FILE = "recipe.yaml", "record.json", "weights.json"
TRACE_FILE, OVERLAP_FILE = "trace.jsonl", "overlap.jsonl"
MODEL_FOLDER, STAGES_FOLDER, EVAL_FOLDER, CHECKPOINTS_FOLDER = "model", "stages", "eval", "checkpoints"
DEV_FOLDER = "dev"
# Written last, so that a checkpoint without it is not whole.
MANIFEST_FILE = "manifest.json"


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a trace; a last line cut short by a crash is left out.

    Raises:
        DataError: If the file cannot be read or is no trace.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        trace = [json.loads(line) for line in lines[:-1] if line]
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not the trace of a run ({error})") from error
    if not all(isinstance(line, dict) for line in trace):
        raise DataError(f"{path}: not the trace of a run (a line is no mapping)")
    return trace
