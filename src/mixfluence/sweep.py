"""Sweeps: every combination of strategies, recipe keys and seeds, each trained in a run folder of its own.

A sweep is a list of jobs, run as a pool of `mixfluence train` processes. Finished jobs are skipped and interrupted
ones resume from their last checkpoint, so running the same sweep again continues it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn

from mixfluence.display import printable
from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe, differing, flat
from mixfluence.recipe_yaml import dump_recipe, load_recipe
from mixfluence.runs import CHECKPOINTS_FOLDER, MODEL_FOLDER, RECIPE_FILE, RECORD_FILE, STAGES_FOLDER

logger = logging.getLogger(__name__)

LOG_FILE = "train.log"
# Strategy words that are not the name of a sampler.
STRATEGY_WORDS = {
    "uniform": ["strategy={name: static, init: uniform}"],
    "proportional": ["strategy={name: static, init: proportional}"],
    "recipe": [],
}
# -P: as for an installed program, modules in the working directory are not importable.
PYTHON = (sys.executable, "-P")
TRAIN = (*PYTHON, "-c", "from mixfluence.cli import main; main()", "train")
TORCHRUN = (*PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python")
# Processes that share the CPU would otherwise compete for every core.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
# The cause of a failure in a log: our own message, else the first exception (later ones follow from it; torch
# prefixes the rank), else the exit code that torchrun reports.
CAUSES = (r"^error: (.+)$", r"^(?:\[rank\d+\]: )?([\w.]+(?:Error|Exception): .+)$", r"failed \((exitcode: -?\d+)\)")
# Progress in a log, and the least time between two lines of it.
PROGRESS = re.compile(rb"(stage \S+: )?(step [\d,]+ of |testing on |mining )[^\n]*")
PROGRESS_SECONDS = 10.0


class State(StrEnum):
    """Progress of a job."""

    NEW = "new"
    STARTED = "started"
    FINISHED = "finished"
    FOREIGN = "its folder contains a run of another recipe"


@dataclass(frozen=True)
class Job:
    """One training run: a name for messages, and a recipe whose `output` is the run folder."""

    name: str
    recipe: Recipe

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.recipe.output

    def state(self) -> State:
        """Return the progress, by the contents of the run folder."""
        path = self.folder / RECIPE_FILE
        if not path.exists():
            return State.NEW
        if load_recipe(path, files_may_be_missing=True) != self.recipe:
            return State.FOREIGN
        return State.FINISHED if (self.folder / RECORD_FILE).exists() else State.STARTED

    def command(self, recipe: Path, *, gpus: int) -> list[str]:
        """Return the command that runs the recipe in a file."""
        train = [*TRAIN, str(recipe), *(["--resume"] if self.state() is State.STARTED else [])]
        return [*TORCHRUN, f"--nproc-per-node={gpus}", *train] if gpus > 1 else train

    def cost(self, gpus: int) -> float:
        """Return the expected cost in steps of plain training."""
        from mixfluence.plan import plan_run

        return plan_run(self.recipe, processes=gpus).cost


def build_jobs(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    strategies: Sequence[str] = ("recipe",),
    axes: Mapping[str, Sequence[str]] | None = None,
    seeds: int = 1,
    output: Path | None = None,
) -> list[Job]:
    """Return a job for each combination of strategy, values of the axes and seed; the first seed of all comes first.

    Strategies are names of samplers or of `STRATEGY_WORDS`; axes map recipe keys to values, as YAML. Seeds count up
    from the recipe's. Run folders are in `output`, by default `runs/sweeps/NAME`.
    """
    axes = axes or {}
    jobs: dict[str, Job] = {}
    for strategy, *values in product(strategies, *axes.values()):
        chosen = [f"{key}={value}" for key, value in zip(axes, values, strict=True)]
        loaded = load_recipe(recipe, [*STRATEGY_WORDS.get(strategy, [f"strategy={strategy}"]), *overrides, *chosen])
        for seed in range(loaded.seed, loaded.seed + seeds):
            name = f"{folder_name(' '.join([strategy, *chosen]))}/{seed}"
            if name in jobs:
                raise RecipeError(f"{name}: two runs of the sweep have this name")
            folder = (output or Path("runs/sweeps") / loaded.name) / name
            jobs[name] = Job(name, loaded.model_copy(update={"seed": seed, "output": folder}))
    return sorted(jobs.values(), key=lambda job: job.recipe.seed)


def folder_name(label: str) -> str:
    """Return a label as the name of a folder."""
    return re.sub(r"[^\w.=+]+", "-", label).strip("-").lower()


def describe_jobs(jobs: Sequence[Job], gpus: int = 1) -> Iterator[str]:
    """Yield a line for each job with its expected cost and state, then a line with the total."""
    costs: dict[Path, float] = {}
    for job in jobs:
        label = job.folder.parent
        if label not in costs:  # seeds cost the same
            costs[label] = job.cost(gpus)
        yield f"{costs[label]:>9.0f} steps  {job.name} ({job.state()})"
    total = sum(costs[job.folder.parent] for job in jobs)
    shared = f", each on {gpus} GPUs" if gpus > 1 else ""
    yield f"{total:>9.0f} steps  in {len(jobs)} runs{shared}; the unit is one step of plain training"


def run_jobs(jobs: Sequence[Job], *, processes: int = 1, gpus: int = 1, keep_models: bool = False) -> dict[str, str]:
    """Run the jobs that are not finished; return the names of those that failed, and why.

    Up to `processes` jobs share one GPU, or each has `gpus` of its own. Ctrl-C and SIGTERM are passed on to the
    running jobs, which save a checkpoint, and raise `KeyboardInterrupt`.
    """
    waiting = [job for job in jobs if job.state() is not State.FINISHED]
    _check(waiting, processes, gpus)
    logger.info("runs to do: %d, already finished: %d", len(waiting), len(jobs) - len(waiting))
    environment = (ONE_THREAD if processes > 1 else {}) | os.environ
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    failed: dict[str, str] = {}
    progress = {job.name: Progress(job.folder / LOG_FILE) for job in waiting}
    with TemporaryDirectory(prefix="mixfluence-") as folder, _signals_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    job = waiting.pop(0)
                    running.append((job, _start(job, Path(folder) / f"{len(waiting)}.yaml", gpus, environment)))
                time.sleep(0.1)
                for job, _ in running:
                    if line := progress[job.name].read():
                        logger.info("%s: %s", job.name, line)
                for job, process in [pair for pair in running if pair[1].poll() is not None]:
                    running.remove((job, process))
                    left = len(waiting) + len(running)
                    if process.returncode:
                        failed[job.name] = _cause(job.folder / LOG_FILE, process.returncode)
                        logger.error("%s: failed: %s, %d left", job.name, failed[job.name], left)
                        continue
                    logger.info("%s: done, %d left", job.name, left)
                    if not keep_models:
                        _delete_models(job.folder)
        finally:
            for _, process in running:
                process.terminate()
            for _, process in running:
                process.wait()
    return failed


class Progress:
    """Reads the progress of a job from its log, now and then."""

    def __init__(self, log: Path) -> None:
        self._log, self._place, self._last = log, 0, 0.0

    def read(self) -> str | None:
        """Return the last line that tells progress, if one is due."""
        if time.monotonic() - self._last < PROGRESS_SECONDS:
            return None
        with self._log.open("rb") as log:
            log.seek(self._place)
            text = log.read()
        found = list(PROGRESS.finditer(text))
        if not found:
            return None
        self._place, self._last = self._place + len(text), time.monotonic()
        return printable(found[-1][0].decode(errors="replace"))


def _check(jobs: Sequence[Job], processes: int, gpus: int) -> None:
    if foreign := [job for job in jobs if job.state() is State.FOREIGN]:
        first = foreign[0]
        stored = load_recipe(first.folder / RECIPE_FILE, files_may_be_missing=True)
        changed = differing(*(flat(recipe.model_dump()) for recipe in (stored, first.recipe)))
        other = f"contains a run of another recipe (another value of {', '.join(changed)})"
        raise RecipeError(f"{first.folder}: {other}; choose another output or delete it")
    if not jobs or gpus == 1:
        return
    if processes > 1:
        raise RecipeError(f"--processes {processes}: runs on {gpus} GPUs each must run one after another")
    import torch

    if 0 < (found := torch.cuda.device_count()) < gpus:
        raise RecipeError(f"each run needs {gpus} GPUs and this machine has {found}; --gpus {found} uses fewer")


def _start(job: Job, recipe: Path, gpus: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    recipe.write_text(dump_recipe(job.recipe), encoding="utf-8")
    command = job.command(recipe, gpus=gpus)
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / LOG_FILE).open("wb") as log:
        # A new session keeps the terminal's Ctrl-C away: a job that gets it besides our SIGTERM saves no checkpoint.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _cause(log: Path, code: int) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    found = next((match for cause in CAUSES if (match := re.search(cause, text, re.MULTILINE))), None)
    return f"{found[1].strip() if found else f'exit code {code}'} (see {log})"


def _delete_models(folder: Path) -> None:
    for run in (folder, *(folder / STAGES_FOLDER).glob("*")):
        for name in (CHECKPOINTS_FOLDER, MODEL_FOLDER):
            shutil.rmtree(run / name, ignore_errors=True)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP where it exists, raise `KeyboardInterrupt` with their number, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # nohup ignores SIGHUP, and the sweep goes on.
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
