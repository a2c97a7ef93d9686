"""Many small runs on one GPU: every process trains one run after another, so that libraries are imported once.

A job is a mapping that identifies a run. Results are appended to a file as they come, and jobs that are in it are
skipped, so the same command continues. Processes end with the one that started them.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

Job = dict[str, Any]
# Trains a job in a folder with the options of the study and returns its results; a function of a module, because
# processes import it.
Perform = Callable[[argparse.Namespace, Job, Path], Job]
# Lines with the same values of these are of the same run.
IDENTITY = ("stage", "method", "setting", "seed")


def study_parser(description: str | None, stages: Sequence[str], *, name: str, out: Path) -> argparse.ArgumentParser:
    """Return a parser of the options that studies share; `read_options` reads them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=[*stages, "table"])
    parser.add_argument("data", nargs="?", help="folder with english/NAME and multilingual/NAME")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to every recipe")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--scratch", type=Path, default=Path("runs") / name)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def read_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options of the command line, with the folder of the data if runs need it."""
    options = parser.parse_args()
    if options.stage != "table" and options.data is None:
        parser.error("the folder of the data is missing")
    return options


def read_lines(path: Path) -> list[Job]:
    """Return the results in a file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def peak_memory() -> float | None:
    """Return the most GiB of GPU memory that tensors of this process took since the last call; None without a GPU.

    What nothing refers to any more, such as the graphs of a finished run, is freed, so that it does not count again.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated() / 2**30
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return round(peak, 2)


def run_jobs(
    jobs: Sequence[Job], perform: Perform, options: argparse.Namespace, identity: Sequence[str] = IDENTITY
) -> None:
    """Run the jobs that have no results yet and append a line for each that succeeds; others are reported."""
    out = options.out

    def key(job: Job) -> tuple[Any, ...]:
        return tuple(job[name] for name in identity)

    done = set(map(key, read_lines(out)))
    jobs = [job for job in jobs if key(job) not in done]
    processes = min(options.processes, len(jobs))
    context = multiprocessing.get_context("spawn")
    waiting, finished = context.Queue(), context.Queue()
    for job in [*jobs, *[None] * processes]:
        waiting.put(job)
    for number in range(processes):
        folder = options.scratch / str(number)
        context.Process(target=_work, args=(partial(perform, options), folder, waiting, finished)).start()
    out.parent.mkdir(parents=True, exist_ok=True)
    for number in range(len(jobs)):
        line = finished.get()
        print(f"{number + 1}/{len(jobs)}", *key(line), line.get("error", "finished"), flush=True)
        if "error" not in line:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _work(perform: Callable[[Job, Path], Job], folder: Path, waiting: Queue[Job | None], finished: Queue[Job]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while (job := waiting.get()) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            finished.put({**job, **perform(job, folder)})
        except Exception as error:
            finished.put({**job, "error": f"{type(error).__name__}: {error}"})
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    # A run that goes on would write into the folder of the run that a new start of the study puts there.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
