"""Processes forked from a server that has imported the modules of a run, so that each is imported only once."""

from __future__ import annotations

import multiprocessing

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["tests.resume.crashes", "mixfluence.training.callback", "mixfluence.experiment"])
