"""Runs in processes of their own, killed from outside at a moment that their folder gives away.

Processes are forked from a server that has imported everything: a run of a dozen steps takes about two seconds, and
hundreds can be killed. What they run is the command line, from `main` on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import xxhash
import yaml

from mixfluence.runs import list_checkpoints, read_trace
from tests.forked import server
from tests.test_experiment import write_domain
from tests.test_methods import chosen

STEPS = 12
SOAK_TIMEOUT = 120.0
# Whether a run folder shows that its process, started at a time, is where it should be stopped.
Moment = Callable[[Path, float], bool]
TIMED = {"seconds", "gpu_hours"}
_interrupted: list[Any] = []


def write_recipe(
    folder: Path, model: Path, method: str = "static", *, accumulation: int = 1, workers: int = 0, **keys: Any
) -> Path:
    """Write a recipe and its data: a dozen steps unless told otherwise, saved every third and logged every fifth."""
    for number, (name, queries) in enumerate({"big": 240, "small": 60}.items()):
        if not (folder / "data" / name).exists():
            write_domain(folder / "data" / name, queries, number)
    lengths = {"steps": keys.pop("steps", STEPS), "save_every": keys.pop("save_every", 3)}
    strategy = yaml.safe_load(chosen(method, model).removeprefix("strategy="))
    recipe = {
        "name": method,
        "model": {"name": str(model), "pooling": "cls", "query_length": 8, "passage_length": 16},
        "defaults": {"format": "beir", "path": f"{folder}/data/{{name}}"},
        **{"train": ["big", "small"], "dev": ["small"], "test": ["small"]},
        "evaluation": {"references": False},
        "strategy": strategy,
        "training": {
            **{"batch_size": 4, "learning_rate": 1e-3, "log_every": 5, **lengths},
            "gradient_accumulation": accumulation,
            "trainer_args": {"dataloader_num_workers": workers},
        },
        **keys,
    }
    text = yaml.safe_dump(recipe)
    path = folder / f"{method}-{xxhash.xxh64(text.encode()).hexdigest()}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


class Run:
    """`mixfluence train` in a process group of its own, with what it says in a file.

    Args:
        recipe: What to do.
        output: The run folder.
        resume: Go on with the run there.
        before: What the process does before anything else.
    """

    def __init__(
        self, recipe: Path, output: Path, *, resume: bool = False, before: Callable[[], object] | None = None
    ) -> None:
        self.output = output
        self.log = output.with_suffix(".log")
        words = ["train", str(recipe), f"output={output}", *(["--resume"] if resume else [])]
        cache = str(recipe.parent / "cache")
        self._process: ForkServerProcess = server.Process(target=_main, args=(words, self.log, cache, before))
        self._started = time.time()
        self._process.start()

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        self._process.join(SOAK_TIMEOUT)
        code = self._process.exitcode
        if code is None:
            self.send(signal.SIGKILL)
            raise AssertionError(f"{self.output}: still running after {SOAK_TIMEOUT} s\n{self.said}")
        return code

    def send(self, number: int, alone: bool = False) -> None:
        """Send a signal to the process and to everything that it started, or to the process alone."""
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            # If it has not yet got so far as to lead a group, then it has not started anything either.
            leads = os.getpgid(self._process.pid) == self._process.pid
            send = os.killpg if leads and not alone else os.kill
            send(self._process.pid, number)

    def stop_when(self, reached: Moment, *numbers: int, alone: bool = False) -> bool:
        """Send signals as soon as the folder gives the moment away; return whether the run had not ended before.

        They come all at once, and not after the moment: the run is paused, and asked again, before they are sent.
        """
        deadline = time.monotonic() + SOAK_TIMEOUT
        while self._process.is_alive() and time.monotonic() < deadline:
            # What was listed may have been deleted since.
            with suppress(FileNotFoundError):
                if reached(self.output, self._started) and self._stop_if(reached, numbers, alone):
                    return True
            time.sleep(0.0005)
        return False

    def _stop_if(self, reached: Moment, numbers: tuple[int, ...], alone: bool) -> bool:
        self.send(signal.SIGSTOP, alone=True)
        try:
            while self._process.is_alive() and not self._paused:
                time.sleep(0.0005)
            still = self._process.is_alive() and reached(self.output, self._started)
            for number in numbers if still else ():
                self.send(number, alone)
            return still
        finally:
            self.send(signal.SIGCONT, alone=True)

    @property
    def _paused(self) -> bool:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(") ")[2].startswith("T")

    @property
    def complaints(self) -> list[str]:
        """The errors among what it has printed."""
        assert "Traceback" not in self.said, self.said
        return [line for line in self.said.splitlines() if line.startswith("error: ")]

    @property
    def said(self) -> str:
        """What it has printed."""
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""


def limit_files(size: int) -> None:
    """Let no file get longer, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def hold_the_lock_of_a_queue() -> None:
    """Leave behind what a signal leaves that comes while a loader sends its workers something to do."""
    queue: Any = multiprocessing.get_context("fork").Queue()
    queue.put(None)
    queue._notempty.acquire()
    # For as long as the process lives, as the traceback of an interrupt keeps it.
    _interrupted.append(queue)


def _main(words: list[str], log: Path, cache: str, before: Callable[[], object] | None) -> None:
    os.setsid()
    # The loader's workers are forked as those of a program that was started by hand.
    multiprocessing.set_start_method("fork", force=True)
    if before:
        before()
    os.environ["MIXFLUENCE_CACHE"] = cache
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    from mixfluence.cli import main

    sys.argv = ["mixfluence", *words]
    main()


def stage_folders(folder: Path) -> list[Path]:
    """Return where the stages of a run write, the last one first."""
    return [folder, *folder.glob("stages/*")]


def in_step(step: int) -> Moment:
    """The trace has reached a step: another one is going on."""
    return lambda folder, since: any(line["step"] >= step for line in _last_lines(folder, since))


def in_probe(step: int) -> Moment:
    """The trace was brought up to date for a round of probes, whose result is not there yet."""
    return lambda folder, since: any(
        line["step"] >= step and not {"loss", "update", "datasets"} & line.keys()
        for line in _last_lines(folder, since)
    )


def in_checkpoint(step: int) -> Moment:
    """The folder of a checkpoint is there, its manifest is not."""
    return lambda folder, since: any(
        int(path.name.split("-")[1]) >= step and _is_new(path, since) and not (path / "manifest.json").exists()
        for stage in stage_folders(folder)
        for path in stage.glob("checkpoints/checkpoint-*")
    )


def between_stages(folder: Path, since: float) -> bool:
    """The first stage is over."""
    return _is_new(folder / "stages" / "reference" / "record.json", since)


def in_evaluation(folder: Path, since: float) -> bool:
    """The model is there, what it is worth is not."""
    return _is_new(folder / "weights.json", since) and not _is_new(folder / "record.json", since)


def after(seconds: float) -> Moment:
    """A while after the start."""
    return lambda folder, since: time.time() >= since + seconds


def result_of(folder: Path) -> dict[str, Any]:
    """Return all that two equal runs have in common: everything but times."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        # A file whose process was killed before it could take its name does no harm.
        if "checkpoints" in name or path.suffix.removeprefix(".").isdigit():
            continue
        if path.suffix == ".safetensors" or name.startswith("eval") or path.name == "weights.json":
            found[name] = path.read_bytes()
        elif path.name == "trace.jsonl":
            found[name] = _timeless(read_trace(path))
        elif path.name == "record.json":
            found[name] = _timeless(json.loads(path.read_text(encoding="utf-8")))
    for checkpoints in sorted(folder.rglob("checkpoints")):
        newest = list_checkpoints(checkpoints)[0]
        state = json.loads((newest / "mixture_state.json").read_text(encoding="utf-8"))
        found[str(newest.relative_to(folder))] = state
    return found


def assert_same_result(folder: Path, whole: Path) -> None:
    """Compare a run that was killed with one that was not."""
    one, other = result_of(folder), result_of(whole)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == other[name], f"{folder}/{name} differs from {whole}/{name}"
    assert {"record.json", "trace.jsonl", "weights.json", "model/model.safetensors"} <= one.keys()


def _is_new(path: Path, since: float) -> bool:
    return path.exists() and path.stat().st_mtime >= since


def _last_lines(folder: Path, since: float) -> list[dict[str, Any]]:
    """Return the last line of every trace that a run has written to."""
    lines = []
    for stage in stage_folders(folder):
        if _is_new(stage / "trace.jsonl", since):
            text = (stage / "trace.jsonl").read_text(encoding="utf-8").rpartition("\n")[0].rpartition("\n")[2]
            lines += [json.loads(text)] if text else []
    return lines


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _timeless(part) for name, part in value.items() if name not in TIMED}
    return [_timeless(part) for part in value] if isinstance(value, list) else value
