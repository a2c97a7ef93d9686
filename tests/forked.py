"""Processes forked from one that has imported what a run needs: it is imported once, not once for each of them."""

from __future__ import annotations

import multiprocessing

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["tests.resume.crashes", "mixfluence.training.stopping", "mixfluence.experiment"])
