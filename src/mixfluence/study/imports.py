"""What a run imports, for the process that workers are forked from. Ctrl-C meanwhile is for the study alone."""

from __future__ import annotations

import gc
import signal

_before = signal.signal(signal.SIGINT, signal.SIG_IGN)
import mixfluence.experiment  # noqa: E402, F401

signal.signal(signal.SIGINT, _before)
# Workers share what is imported; looking for garbage in it would take each of them time and a copy.
gc.freeze()
