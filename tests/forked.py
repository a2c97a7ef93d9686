"""Processes forked from a server that has imported the modules of a run, so that each is imported only once."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import IO, Any

import pytest

from mixfluence import sweep

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["tests.preloaded"])


class ForkedProgram:
    """`python -c CODE WORDS` in such a process, with as much of `subprocess.Popen` as a sweep uses."""

    def __init__(self, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **_: Any) -> None:
        code, *words = command[command.index("-c") + 1 :]
        self._process = server.Process(target=_execute, args=(code, words, stdout.name, dict(env), os.getcwd()))
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()

    def terminate(self) -> None:
        self._process.terminate()


@contextmanager
def forked_jobs() -> Iterator[None]:
    """Let sweeps start their jobs in forked processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "subprocess", SimpleNamespace(Popen=ForkedProgram, DEVNULL=subprocess.DEVNULL))
        yield


def _execute(code: str, words: list[str], log: str, environment: Mapping[str, str], folder: str) -> None:
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.argv = ["-c", *words]
    exec(code, {"__name__": "__main__"})
