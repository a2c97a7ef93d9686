"""Runs and checkpoints that are damaged, folders that cannot be written, packages that are missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixfluence.training.checkpoints import seal
from tests.hostile.cases_models import EVIL
from tests.hostile.workplace import Case

RESUME = "train recipe.yaml --resume"
RECORD, TRACE, STATE = "run/record.json", "run/trace.jsonl", "mixture_state.json"
CHECKPOINT = "run/checkpoints/checkpoint-2"
SCORED, DEV = "run/eval/test.jsonl:1", "run/dev/dev.jsonl"
ROW = '{"query": "q", "positive": "p", "other": "o", "rank": 1, "among": 1, "margin": Infinity, "ndcg": 1}\n'
SCORES = '{"query_id": "q", "ndcg@10": NaN, "mrr@10": 1, "recall@100": 1, "map@100": 1}\n'


def unfinished(folder: Path) -> Path:
    """Make the run look as if it was killed after its first checkpoint, and return that."""
    run = folder / "run"
    for path in (run / "record.json", run / "weights.json"):
        path.unlink()
    for path in (run / "model", run / "eval", run / "checkpoints" / "checkpoint-4"):
        shutil.rmtree(path)
    return run / "checkpoints" / "checkpoint-2"


def made_up(name: str, content: bytes | str) -> Callable[[Path], None]:
    """Replace a file of the checkpoint and seal it again."""

    def arrange(folder: Path) -> None:
        checkpoint = unfinished(folder)
        (checkpoint / name).write_bytes(content.encode() if isinstance(content, str) else content)
        seal(checkpoint)

    return arrange


def with_state(**changes: Any) -> Callable[[Path], None]:
    """Change the state of the mixture in the checkpoint."""

    def arrange(folder: Path) -> None:
        path = unfinished(folder) / "mixture_state.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")
        seal(path.parent)

    return arrange


def of_run(what: str, command: str, name: str, content: str | bytes | None, *names: str, says: str = "") -> Case:
    """A wrong or missing file of a finished run."""
    return Case(what, command, names or (f"run/{name}",), says, files={f"run/{name}": content})


def into(what: str, output: str, code: int = 2) -> Case:
    """An output folder that cannot be written."""
    return Case(what, f"train recipe.yaml output={output}", (output,), code=code)


def cache(path: str) -> dict[str, str]:
    return {"MIXFLUENCE_CACHE": path}


def without_model(folder: Path) -> None:
    shutil.rmtree(folder / "run" / "model")


def nowhere(folder: Path) -> None:
    (folder / "run").symlink_to("/absent/folder")


RUNS = [
    Case("the folder of a finished run", "train recipe.yaml", ("run", "--resume")),
    Case("a finished run, resumed", RESUME, ("run",), says="nothing to resume"),
    Case("a run, resumed with another seed", f"{RESUME} seed=1", ("run", "seed"), arrange=unfinished),
    Case(
        "a run whose data has changed",
        RESUME,
        ("run", "training set near"),
        files={"data/near.jsonl": '["w1", "w2"]\n'},
        arrange=unfinished,
    ),
    Case(
        "a run whose data is gone",
        RESUME,
        ("recipe.yaml:4", "train.near.path"),
        files={"data/near.jsonl": None},
        arrange=unfinished,
    ),
    Case("a state that is not JSON", RESUME, (f"{CHECKPOINT}/{STATE}",), arrange=made_up(STATE, "{")),
    Case(
        "a state of other datasets",
        RESUME,
        (CHECKPOINT, "other"),
        arrange=with_state(fingerprints={"near": "1", "other": "2"}),
    ),
    Case(
        "a state of the same names, other rows",
        RESUME,
        (CHECKPOINT, "'near'"),
        arrange=with_state(fingerprints={"near": "", "far": ""}),
    ),
    of_run("a recipe that is damaged", "status run", "recipe.yaml", "name: ["),
    of_run("inputs that are damaged", RESUME, "inputs.json", "{"),
    of_run("inputs without a recipe", RESUME, "inputs.json", "{}"),
    of_run("a recipe with a Python tag", "status run", "recipe.yaml", "name: !!python/name:os.system\n"),
    Case("no run", "status absent", ("absent",), says="no such folder"),
    Case("data for a run", "status data", ("data",), says="not a run folder"),
    of_run("a trace that is not JSON", "status run", "trace.jsonl", "{\n", TRACE, "line 1"),
    of_run("a trace that is not UTF-8", "status run", "trace.jsonl", b'{"step\xff": 0}\n', TRACE, "line 1"),
    of_run(
        "a trace without its start",
        "status run",
        "trace.jsonl",
        '{"step": 4, "seconds": 1, "weights": {}}\n',
        *(TRACE, "line 1", "'datasets'"),
    ),
    of_run("a list for a line of a trace", "status run", "trace.jsonl", "[]\n", TRACE, "line 1"),
    of_run("a record that is a list", "status run", "record.json", "[]"),
    of_run("a truncated record", "status run", "record.json", '{"name": "tiny"'),
    of_run("a record that is not UTF-8", "status run", "record.json", b'{"name": "\xff"}'),
    of_run("an incomplete record", "report run", "record.json", '{"name": "tiny"}', RECORD, "'versions'"),
    of_run("incomplete scores", "status run", "eval/test.jsonl", '{"query_id": "q"}\n', SCORED, "ndcg@10"),
    of_run("scores that are NaN", "status run", "eval/test.jsonl", SCORES, SCORED, "nan"),
    of_run("a score above one", "report run", "eval/test.jsonl", SCORES.replace("NaN", "1e308"), SCORED, "1e+308"),
    of_run("scores that are not UTF-8", "status run", "eval/test.jsonl", b"\xff\n", SCORED),
    of_run(
        "an infinite rank", "status run", "dev/dev.jsonl", ROW.replace('"rank": 1', '"rank": Infinity'), f"{DEV}:1"
    ),
    of_run("a margin that is NaN", "report run", "dev/dev.jsonl", ROW.replace("Infinity", "NaN"), f"{DEV}:1"),
    of_run("no scores", "compare run", "eval/test.jsonl", None, "run/eval", "test"),
    of_run("a run that has not finished", "compare run", "record.json", None, "run", says="not finished"),
    of_run("no weights", "weights run", "weights.json", None, "run", "weights.json", "--which average"),
    of_run("weights that are not JSON", "weights run", "weights.json", "{"),
    of_run(
        "an empty trace to replay",
        "train recipe.yaml output=new 'strategy={name: replay, run: run}'",
        "trace.jsonl",
        '{"step": 0, "seconds": 0, "datasets": {}}\n',
    ),
    of_run("a trained model that is damaged", "evaluate run", "model/model.safetensors", "nothing", "'run/model'"),
    Case("a run without its model", "evaluate model run", ("run/model", "--keep-models"), arrange=without_model),
    Case("a merge without a model", "merge run -o merged", ("run/model", "--keep-models"), arrange=without_model),
    Case(
        "a trained model in a pickle",
        "evaluate run",
        ("run/model", "safetensors"),
        files={"run/model/model.safetensors": None, "run/model/pytorch_model.bin": EVIL},
    ),
]

SURROUNDINGS = [
    into("an output folder that is a file", "recipe.yaml"),
    into("an output folder below a file", "recipe.yaml/run"),
    into("an output folder that the system refuses", "/proc/run"),
    Case("an output folder that is a link to nowhere", "train recipe.yaml", ("run",), arrange=nowhere),
    Case("a cache that is a file", "train recipe.yaml", ("recipe.yaml",), environment=cache("recipe.yaml"), code=1),
    Case(
        "a cache that the system refuses",
        "train recipe.yaml",
        ("/proc/cache",),
        says="No such file or directory",
        environment=cache("/proc/cache"),
        code=1,
    ),
    Case("a full disk when data is converted", "train recipe.yaml", ("own-cache/rows",), disk=1_000, code=1),
    Case("a full disk at the first checkpoint", "train recipe.yaml", (CHECKPOINT,), disk=20_000, code=1),
    Case(
        "an encoder that is not installed",
        "train recipe.yaml model.name=wordllama",
        ("'wordllama'",),
        says="pip install 'mixfluence[demo]'",
        missing="wordllama",
    ),
    Case(
        "faiss not installed",
        "train recipe.yaml training.batch_size=2 'strategy={name: crisp, encoder: model, branching: 2}'",
        ("mixfluence[crisp]",),
        missing="faiss",
    ),
    Case("compiling without a GPU", "train recipe.yaml training.compiled=true", ("compiled",)),
    Case("a page that is a folder", "report run -o data", ("data",), says="cannot be written (Is a directory)"),
    Case("weights to a folder that is a file", "weights run -o recipe.yaml/w.json", ("recipe.yaml/w.json",)),
    Case(
        "scores to a folder that is a file",
        "evaluate model --recipe recipe.yaml --to recipe.yaml",
        ("recipe.yaml",),
        code=1,
    ),
    Case("a copy to a missing folder", "recipes copy pydocs absent/mine.yaml", ("absent/mine.yaml",), code=1),
    Case("a copy over a file", "recipes copy pydocs recipe.yaml", ("recipe.yaml",), says="already exists"),
    Case("an unknown strategy in a sweep", "sweep recipe.yaml --strategies uniform,inf-dss", ("'inf-dss'",)),
    Case("an axis that is not YAML", "sweep recipe.yaml --axis 'seed={'", ("--axis seed={",)),
    Case("an unknown library in the demo", "demo --target scikit --to demo", ("'scikit'", "'scikit-learn'")),
    Case("an incomplete process group", "train recipe.yaml", ("LOCAL_RANK",), environment={"LOCAL_RANK": "0"}),
]
