"""Processes that train the runs of a study.

- They append the results of jobs that succeed, and skip those that are there.
- They end with the process that started them, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from reproduction.workers import Job, read_lines, run_jobs

pytestmark = pytest.mark.slow

PARENT = """
import sys
from pathlib import Path
from reproduction.workers import run_jobs
from tests.reproduction.test_workers import options_for, wait

if __name__ == "__main__":
    run_jobs([{"number": 0}], wait, options_for(Path(sys.argv[1]), processes=1), ["number"])
"""


def options_for(folder: Path, *, processes: int) -> Namespace:
    """Return the options of a study that writes to a folder."""
    return Namespace(out=folder / "results" / "runs.jsonl", scratch=folder / "scratch", processes=processes, total=1)


def invert(options: Namespace, job: Job, folder: Path) -> Job:
    """Stands for a run: fails for zero, and needs a folder that does not exist."""
    folder.mkdir(parents=True)
    return {"share": options.total / job["number"]}


def wait(options: Namespace, job: Job, folder: Path) -> Job:
    """Stands for a run that takes long; writes the number of its process."""
    folder.parent.mkdir()
    (folder.parent / "process").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)
    return {}


def test_workers_append_results_and_skip_what_is_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = options_for(tmp_path, processes=2)
    for numbers in (0, 1, 2), (1, 2, 4):
        run_jobs([{"number": number} for number in numbers], invert, options, ["number"])
    assert sorted(map(str, read_lines(options.out))) == sorted(str({"number": n, "share": 1 / n}) for n in (1, 2, 4))
    assert "0 ZeroDivisionError" in capfd.readouterr().out


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    started = tmp_path / "scratch" / "process"
    assert until(lambda: started.exists() and started.read_text(encoding="utf-8") != "")
    parent.kill()
    parent.wait()
    worker = int(started.read_text(encoding="utf-8"))
    try:
        assert until(lambda: not running(worker))
    finally:
        if running(worker):
            os.kill(worker, signal.SIGKILL)


def running(process: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Return whether a condition holds within some seconds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()
