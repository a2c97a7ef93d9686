"""Where the command line writes: results to standard output, everything else to standard error."""

from __future__ import annotations

import logging
import os

from rich.console import Console

output = Console()
errors = Console(stderr=True)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        errors.print(record.getMessage(), style=style, markup=False, highlight=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Print a line of the result as it is, whatever brackets a name may hold."""
    output.print(text, markup=False, highlight=False, soft_wrap=True)


def prepare(verbose: bool = True) -> None:
    """Show our own notes and silence the host's chatter; call it before the host is imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not errors.is_terminal:
        os.environ.setdefault("TQDM_DISABLE", "1")
    ours = logging.getLogger("mixfluence")
    ours.setLevel(logging.INFO if verbose else logging.WARNING)
    ours.handlers = [_Notes()]
    ours.propagate = False
    from datasets import disable_progress_bars
    from transformers.utils import logging as host_logging

    disable_progress_bars()
    host_logging.disable_progress_bar()
