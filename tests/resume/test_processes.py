"""`mixfluence train` under torchrun, on two processes and on four.

- The run folder is that of one run: every file once, whole, and the table is printed once.
- A process that is killed ends the job promptly; SIGTERM to the launcher ends it with a checkpoint.
- Resumed, both end as the undisturbed job does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mixfluence.runs import list_checkpoints, read_trace, step_of
from mixfluence.training.checkpoints import damage
from tests.resume.crashes import Moment, assert_same_result, in_probe, in_step, write_recipe

pytestmark = pytest.mark.soak

PROMPTLY = 60.0


class Job:
    """Processes that train together, and what they say."""

    def __init__(self, processes: int, recipe: Path, output: Path, *words: str) -> None:
        self.output = output
        self._processes = processes
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}"]
        program = str(Path(sys.executable).with_name("mixfluence"))
        meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        command = [*launcher, *meeting, program, "train", str(recipe)]
        self._started = time.time()
        self._log = output.with_suffix(".log")
        with self._log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen([*command, f"output={output}", *words], stdout=log, stderr=log)

    def wait(self, seconds: float = 240.0) -> int:
        """Return the launcher's exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            raise

    def until(self, reached: Moment) -> None:
        """Wait for a moment that the folder gives away."""
        while not reached(self.output, self._started):
            assert self.process.poll() is None, self.said
            time.sleep(0.001)

    def workers(self) -> list[int]:
        """Return the training processes in order."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8")
        ranks = {environment_of(int(child)).get("RANK"): int(child) for child in children.split()}
        return [ranks[str(rank)] for rank in range(self._processes)]

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")


def environment_of(process: int) -> dict[str, str]:
    parts = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return dict(part.split("=", 1) for part in parts if "=" in part)


@pytest.mark.parametrize("processes", [2, 4])
def test_a_job_of_processes_writes_one_run_and_loses_nothing(
    processes: int, tiny_bert_folder: Path, tmp_path: Path
) -> None:
    # Long enough for the launcher to pass on a signal before the end.
    lengths: dict[str, Any] = {"steps": 40, "save_every": None, "selection": {"every": 10, "dev": "halves"}}
    recipe = write_recipe(tmp_path, tiny_bert_folder, "inf-dds", **lengths)
    whole = Job(processes, recipe, tmp_path / "whole")
    assert whole.wait() == 0, whole.said
    assert whole.said.count("run folder: ") == 1
    assert "Traceback" not in whole.said
    assert "terminate called" not in whole.said
    strays = [path for path in (tmp_path / "whole").rglob("*") if path.suffix.removeprefix(".").isdigit()]
    assert strays == []

    killed = Job(processes, recipe, tmp_path / "killed")
    killed.until(in_step(15))
    os.kill(killed.workers()[-1], signal.SIGKILL)
    assert killed.wait(PROMPTLY) != 0
    assert not (tmp_path / "killed" / "record.json").exists()

    stopped = Job(processes, recipe, tmp_path / "stopped")
    stopped.until(in_probe(4))
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.wait(PROMPTLY) != 0
    assert stopped.said.count("--resume continues") == 1
    newest = list_checkpoints(tmp_path / "stopped" / "checkpoints")[0]
    assert 4 <= step_of(newest) < 40
    assert damage(newest) is None

    for job in (killed, stopped):
        resumed = Job(processes, recipe, job.output, "--resume")
        assert resumed.wait() == 0, resumed.said
        assert_same_result(job.output, whole.output)


def test_a_process_that_hangs_ends_the_job_after_the_timeout(tiny_bert_folder: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_bert_folder, steps=400, save_every=100)
    job = Job(2, recipe, tmp_path / "run", "training.trainer_args.ddp_timeout=10")
    job.until(in_step(15))
    started = time.monotonic()
    os.kill(job.workers()[-1], signal.SIGSTOP)
    assert job.wait(3 * PROMPTLY) != 0
    assert time.monotonic() - started > 9
    assert not (tmp_path / "run" / "record.json").exists()


def test_another_number_of_processes_goes_on_with_the_same_draws(tiny_bert_folder: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_bert_folder)
    whole = Job(2, recipe, tmp_path / "whole")
    assert whole.wait() == 0, whole.said
    output = tmp_path / "run"
    stopped = Job(2, recipe, output)
    stopped.until(in_step(7))
    os.kill(stopped.workers()[0], signal.SIGKILL)
    assert stopped.wait(PROMPTLY) != 0

    other = Job(1, recipe, output, "--resume")
    assert other.wait() != 0
    assert "training.batch_size x processes was 8 and is 4" in other.said
    resumed = Job(1, recipe, output, "--resume", "training.batch_size=8")
    assert resumed.wait() == 0, resumed.said
    draws = [
        [(line["trained"], line["rows"]) for line in read_trace(folder / "trace.jsonl")[1:] if "trained" in line]
        for folder in (whole.output, output)
    ]
    assert draws[0] == draws[1]
