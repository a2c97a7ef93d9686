"""Names of what a run folder holds, and its trace and record, read once and checked for all who ask for them."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from mixfluence.errors import DataError

RECIPE_FILE, RECORD_FILE, WEIGHTS_FILE = "recipe.yaml", "record.json", "weights.json"
TRACE_FILE, OVERLAP_FILE = "trace.jsonl", "overlap.jsonl"
MODEL_FOLDER, STAGES_FOLDER, EVAL_FOLDER, CHECKPOINTS_FOLDER = "model", "stages", "eval", "checkpoints"
DEV_FOLDER = "dev"
# Written last, so that a checkpoint without it is not whole.
MANIFEST_FILE = "manifest.json"

# No run has greater ones, and sums and ratios of what is below stay numbers.
_LARGEST, _MOST = 1e30, 2**53
_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Number = Annotated[_Finite, Field(ge=-_LARGEST, le=_LARGEST)]
_Weight = Annotated[_Number, Field(ge=0)]
_Count = Annotated[int, Field(strict=True, ge=0, le=_MOST)]
_Size = Annotated[_Count, Field(ge=1)]
# What was measured need not be a number.
_Measured = dict[str, Annotated[float, Field(strict=True)] | None]
# The default of a key that may be missing; null is no value of it.
_MISSING: Any = None


class _Dataset(BaseModel):
    rows: _Size


class _Start(BaseModel):
    """The first line of a trace."""

    step: _Count
    seconds: _Number
    datasets: dict[str, _Dataset]


class _Update(BaseModel):
    seconds: _Number
    memory: _Number
    failed: list[str]
    influence: _Measured = _MISSING
    error: _Measured = _MISSING
    influence_on: dict[str, _Measured] = _MISSING
    on_targets: dict[str, _Measured] = _MISSING
    dev: _Measured = _MISSING


class _Line(BaseModel):
    """Any later line of a trace."""

    step: _Count
    seconds: _Number
    weights: dict[str, _Weight]
    outcome: dict[str, _Weight] = _MISSING
    loss: _Finite = _MISSING
    learning_rate: _Finite = _MISSING
    trained: list[_Count] = []
    rows: list[_Size] = []
    update: _Update = _MISSING


class _Look(BaseModel, extra="allow"):
    """What the host logs when it evaluates."""

    step: _Count
    __pydantic_extra__: dict[str, _Number]


class _HostState(BaseModel):
    log_history: list[dict[str, Any]]


class _Content(BaseModel):
    fingerprint: str


class _Record(BaseModel):
    versions: dict[str, str]
    device: str
    datasets: dict[str, _Content]
    tests: dict[str, _Content]
    selected_step: _Count
    seconds: dict[str, _Number]
    gpu_hours: dict[str, _Number]
    scores: dict[str, dict[str, _Number]]
    notes: list[str] = []


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a trace; a last line cut short by a crash is left out.

    Lines are as they were written, and have what `mixfluence.training.callback` says: the first tells of
    the datasets, all others have weights.

    Raises:
        DataError: If the file cannot be read or is no trace.
    """
    trace: list[dict[str, Any]] = []
    for number, text in enumerate(_read(path, "trace").split(b"\n")[:-1], start=1):
        if not text:
            continue
        try:
            line = _checked(from_json(text), _Line if trace else _Start)
            if trace:
                _refuse_other_batches(line, len(trace[0]["datasets"]))
        except ValueError as error:
            reason = str(error).replace("at line 1 column", "at column")
            raise DataError(f"{path}: not the trace of a run (line {number}: {reason})") from error
        trace.append(line)
    return trace


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a finished run.

    Raises:
        DataError: If the file cannot be read or is no record.
    """
    try:
        record = _checked(from_json(_read(path, "record")), _Record)
        if unlike := record["tests"].keys() ^ record["scores"].keys():
            raise ValueError(f"{min(unlike)!r} is only in one of tests and scores")
    except ValueError as error:
        raise DataError(f"{path}: not the record of a run ({error})") from error
    return record


def read_looks(path: Path, measure: str) -> list[dict[str, Any]]:
    """Return what the host's `trainer_state.json` in a checkpoint tells of the evaluations that have a measure.

    Raises:
        DataError: If the file cannot be read or is no such state.
    """
    try:
        history = _checked(from_json(_read(path, "state")), _HostState)["log_history"]
        return [_checked(line, _Look) for line in history if f"eval_{measure}" in line]
    except ValueError as error:
        raise DataError(f"{path}: not the state of a run ({error})") from error


def _read(path: Path, kind: str) -> bytes:
    try:
        # Nothing else: a pipe would never end.
        if not path.is_file():
            raise DataError(f"{path}: not the {kind} of a run (not a file)")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: not the {kind} of a run ({error.strerror})") from error


def _checked(data: Any, shape: type[BaseModel]) -> dict[str, Any]:
    """Return a mapping as it is if it has a shape; keys that the shape does not name may be anything.

    Raises:
        ValueError: Saying what is wrong with it, and where.
    """
    try:
        shape.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ValueError(f"{place!r} is missing") from error
        wrong = first["msg"].partition(" or instance")[0].replace("Input", repr(place) if place else "it")
        raise ValueError(f"{wrong}, found {reprlib.repr(first['input'])}") from error
    checked: dict[str, Any] = data
    return checked


def _refuse_other_batches(line: dict[str, Any], datasets: int) -> None:
    trained, rows = line.get("trained", []), line.get("rows", [])
    if len(trained) != len(rows):
        raise ValueError(f"{len(trained)} batches in 'trained', {len(rows)} in 'rows'")
    if max(trained, default=-1) >= datasets:
        raise ValueError(f"a batch of dataset {max(trained)}, counted from 0, and there are {datasets}")
