"""A run on several GPUs: a process for each, started by torch's launcher as for `mixfluence train` by hand."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO, NoReturn

from mixfluence.errors import MixfluenceError, RecipeError
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.runs import RECIPE_FILE

# As for installed programs, modules that lie in the folder of the user are not ours.
PYTHON = (sys.executable, "-P")
LAUNCHER = (*PYTHON, "-m", "torch.distributed.run", "--standalone")
MIXFLUENCE = (*PYTHON, "-c", "from mixfluence.cli import main; main()")
COUNT = (*PYTHON, "-c", "import torch; print(torch.cuda.device_count())")

# What a failed run says of itself, in the order in which it is believed: our own message, the first exception (others
# only follow from it; torch writes the rank before it), and the launcher's word for a process that could say nothing.
_OWN_ERROR = re.compile(r"^error: (.+)$", re.MULTILINE)
_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: )?([\w.]+(?:Error|Exception): .+)$", re.MULTILINE)
_FIRST_CODE = re.compile(r"failed \(exitcode: (-?\d+)\)")


def launch(recipe: Recipe, gpus: int, *, resume: bool) -> None:
    """Train and test as a recipe says, on several GPUs, or on as many processes if the machine has no GPU.

    For one, `mixfluence.experiment.run` does the same without a launcher. To be called in the main thread: SIGTERM is
    passed on to the run, which leaves a checkpoint, and then ends this process.

    Args:
        recipe: What to do.
        gpus: How many processes share each batch.
        resume: Go on with the run in the output folder.

    Raises:
        MixfluenceError: With the run's own error, if it failed.
    """
    with TemporaryDirectory(prefix="mixfluence-") as folder:
        path, said = Path(folder) / RECIPE_FILE, Path(folder) / "stderr"
        path.write_text(dump_recipe(recipe), encoding="utf-8")
        program = [*MIXFLUENCE, "train", str(path), *(["--resume"] if resume else [])]
        with said.open("wb") as errors:
            code = _run_to_the_end([*LAUNCHER, f"--nproc-per-node={gpus}", "--no-python", *program], errors)
        if code:
            raise MixfluenceError(reason_of(said.read_text(encoding="utf-8", errors="replace"), code))


def reason_of(said: str, code: int) -> str:
    """Return in a line why a launched run failed.

    Args:
        said: What launcher and run wrote to standard error.
        code: The launcher's exit code.
    """
    if found := _OWN_ERROR.search(said) or _EXCEPTION.search(said):
        return found[1].strip()
    first = _FIRST_CODE.search(said)
    return f"one of its processes ended with the code {first[1] if first else code}"


def count_gpus() -> int:
    """Return how many GPUs a run may use on this machine."""
    return int(subprocess.run(COUNT, check=True, capture_output=True, text=True).stdout)


def check_gpus(wanted: int, there: int) -> None:
    """Refuse to share fewer GPUs than a run wants; processes on a machine without any share its CPU.

    Raises:
        RecipeError: Saying how to do with fewer.
    """
    if 0 < there < wanted:
        raise RecipeError(
            f"each run wants {wanted} GPUs and this machine has {there}: --gpus {there} does with fewer, "
            "and with fewer rows in a step"
        )


def _run_to_the_end(command: Sequence[str], errors: IO[bytes]) -> int:
    """Return the exit code of a program; whatever interrupts the waiting ends the program first."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        # A terminal's Ctrl-C must not reach it beside the SIGTERM: at a second signal a run writes no checkpoint.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        ) as program:
            try:
                return program.wait()
            except BaseException:
                program.terminate()
                raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # Once is enough; another would cut short the waiting for the end of the run.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
