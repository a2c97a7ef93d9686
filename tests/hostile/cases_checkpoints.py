"""Runs and checkpoints that are damaged, changed or made up."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixfluence.training.checkpoints import seal
from tests.hostile.cases_models import EVIL
from tests.hostile.workplace import Case

RESUME = "train recipe.yaml --resume"
ROW = '{"query": "q", "positive": "p", "other": "o", "rank": 1, "among": 1, "margin": Infinity, "ndcg": 1}\n'
SCORES = '{"query_id": "q", "ndcg@10": NaN, "mrr@10": 1, "recall@100": 1, "map@100": 1}\n'


def unfinished(folder: Path) -> Path:
    """Let the run look as if it had been killed after its first checkpoint; return that."""
    run = folder / "run"
    for path in (run / "record.json", run / "weights.json"):
        path.unlink()
    for path in (run / "model", run / "eval", run / "checkpoints" / "checkpoint-4"):
        shutil.rmtree(path)
    return run / "checkpoints" / "checkpoint-2"


def made_up(name: str, content: bytes | str) -> Callable[[Path], None]:
    """Put something else into the checkpoint, with a manifest that says it was always so."""

    def arrange(folder: Path) -> None:
        checkpoint = unfinished(folder)
        (checkpoint / name).write_bytes(content.encode() if isinstance(content, str) else content)
        seal(checkpoint)

    return arrange


def with_state(**changes: Any) -> Callable[[Path], None]:
    """Change what the checkpoint says of the mixture."""

    def arrange(folder: Path) -> None:
        path = unfinished(folder) / "mixture_state.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")
        seal(path.parent)

    return arrange


def in_record(what: str, **changes: Any) -> Case:
    """A run whose record says something else."""

    def arrange(folder: Path) -> None:
        path = folder / "run" / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")

    return Case(what, "compare run", arrange=arrange)


def in_trace(what: str, command: str, **changes: Any) -> Case:
    """A run whose trace says something else in its last line."""

    def arrange(folder: Path) -> None:
        if command == RESUME:
            unfinished(folder)
        path = folder / "run" / "trace.jsonl"
        *lines, last = path.read_text("utf-8").splitlines()
        path.write_text("\n".join([*lines, json.dumps(json.loads(last) | changes), ""]), "utf-8")

    return Case(what, command, arrange=arrange)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "run" / "trace.jsonl")


def of_run(what: str, command: str, name: str, content: str | bytes | None) -> Case:
    """A file of a finished run that is wrong."""
    return Case(what, command, files={f"run/{name}": content})


CASES = [
    Case("the folder of a finished run"),
    Case("a finished run, resumed", RESUME),
    Case("a run, resumed with another seed", f"{RESUME} seed=1", arrange=unfinished),
    Case("a run whose data has changed", RESUME, files={"data/near.jsonl": '["w1", "w2"]\n'}, arrange=unfinished),
    Case("a run whose data is gone", RESUME, files={"data/near.jsonl": None}, arrange=unfinished),
    Case("a state that is no JSON", RESUME, arrange=made_up("mixture_state.json", "{")),
    Case("a state of other data", RESUME, arrange=with_state(fingerprints={"near": "1", "other": "2"})),
    Case("a state of the same names, other rows", RESUME, arrange=with_state(fingerprints={"near": "", "far": ""})),
    of_run("a recipe that is damaged", RESUME, "recipe.yaml", "name: ["),
    of_run("a recipe that would run a program", "status run", "recipe.yaml", "name: !!python/name:os.system\n"),
    Case("no run", "status absent"),
    Case("data for a run", "status data"),
    of_run("a trace that is no JSON", "status run", "trace.jsonl", "{\n"),
    of_run("a trace that is not UTF-8", "status run", "trace.jsonl", b'{"step\xff": 0}\n'),
    of_run("a trace without its start", "status run", "trace.jsonl", '{"step": 4, "seconds": 1, "weights": {}}\n'),
    of_run("a list for a line of a trace", "status run", "trace.jsonl", "[]\n"),
    Case("a pipe for a trace", "status run", files={"run/trace.jsonl": None}, arrange=pipe),
    in_trace("a text for a time in a trace", "status run", seconds="long"),
    in_trace("a time that is not a number", "status run", seconds=math.nan),
    in_trace("a step of 400 digits", "status run", step=10**400),
    in_trace("an update that is no value", "status run", update=None),
    in_trace("a list for the weights in a trace", "report run", weights=[1]),
    in_trace("a weight below 0 in a trace", "weights run --which average", weights={"near": -1}),
    in_trace("a batch of no dataset", "report run", trained=[7], rows=[4]),
    in_trace("a batch without its rows", "report run", trained=[0], rows=[]),
    in_trace("a text for a time, and the run resumed", RESUME, seconds="long"),
    of_run("a record that is a list", "status run", "record.json", "[]"),
    of_run("a record cut short", "status run", "record.json", '{"name": "tiny"'),
    of_run("a record that is not UTF-8", "status run", "record.json", b'{"name": "\xff"}'),
    of_run("a record 100,000 brackets deep", "status run", "record.json", "[" * 100_000),
    of_run("half a character in a record", "status run", "record.json", '{"name": "\\ud83d"}'),
    of_run("a record that lacks almost all", "report run", "record.json", '{"name": "tiny"}'),
    in_record("a text for an hour", gpu_hours={"train": "long"}),
    in_record("a list for the seconds", seconds=[]),
    in_record("seconds without end", seconds={"train": math.inf}),
    in_record("a fingerprint that is no value", tests={"test": {"fingerprint": None}}),
    in_record("a test set without scores", scores={}),
    of_run("scores that lack one", "status run", "eval/test.jsonl", '{"query_id": "q"}\n'),
    of_run("scores that are not numbers", "status run", "eval/test.jsonl", SCORES),
    of_run("a score beyond all", "report run", "eval/test.jsonl", SCORES.replace("NaN", "1e308")),
    of_run("scores that are not UTF-8", "status run", "eval/test.jsonl", b"\xff\n"),
    of_run("scores 100,000 brackets deep", "status run", "eval/test.jsonl", "[" * 100_000),
    of_run("a rank that is infinite", "status run", "dev/dev.jsonl", ROW.replace('"rank": 1', '"rank": Infinity')),
    of_run("a margin that is not a number", "report run", "dev/dev.jsonl", ROW.replace("Infinity", "NaN")),
    of_run("no scores", "compare run", "eval/test.jsonl", None),
    of_run("a run that has not finished", "compare run", "record.json", None),
    of_run("no weights", "weights run", "weights.json", None),
    of_run("weights that are no JSON", "weights run", "weights.json", "{"),
    of_run(
        "a trace to replay that tells nothing",
        "train recipe.yaml output=new 'strategy={name: replay, run: run}'",
        "trace.jsonl",
        '{"step": 0, "seconds": 0, "datasets": {}}\n',
    ),
    of_run("a trained model that is damaged", "evaluate run", "model/model.safetensors", "nothing"),
    Case(
        "a trained model that would run code",
        "evaluate run",
        files={"run/model/model.safetensors": None, "run/model/pytorch_model.bin": EVIL},
    ),
]
