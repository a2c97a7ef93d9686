"""Progress of a run: a live picture on a terminal, a few lines elsewhere."""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.display import duration, largest, mixture_table, percent
from mixfluence.runs import STAGES_FOLDER

PLAIN_LINES = 10
PLAIN_DATASETS = 3
# Logged probabilities kept for sparklines; a longer history is thinned to every other one.
HISTORY = 512


class ProgressDisplay(TrainerCallback):
    """Shows step, loss, learning rate, time left and probabilities; a few plain lines without a terminal.

    Everything but steps and time comes from the Trainer's logs. One display may follow several runs in turn, such as
    the stages of a method.

    Args:
        label: Name of the run.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._live: Live | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start again, at the step that a run is resumed from."""
        self._stop()
        folder = Path(args.output_dir).parent
        stage = f", stage {folder.name}" if folder.parent.name == STAGES_FOLDER else ""
        self._title = f"{self._label}{stage}"
        self._first = self._step = state.global_step
        self._steps = state.max_steps
        self._printed = self._step * PLAIN_LINES // self._steps
        self._started = time.monotonic()
        self._logs: Mapping[str, float] = {}
        self._history: list[Mapping[str, float]] = []
        self._previous: list[str] = []
        # A terminal without block characters gets plain lines.
        if state.is_world_process_zero and self._console.is_terminal and not self._console.options.ascii_only:
            self._live = Live(
                console=self._console, get_renderable=self._picture, refresh_per_second=2, transient=True
            )
            self._live.start()
            # An interrupted run never calls on_train_end, but the cursor must be restored.
            atexit.register(self._stop)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the step."""
        self._step = state.global_step

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Store the logs, and print a plain line if one is due."""
        logs: dict[str, float] = kwargs["logs"]
        if "loss" not in logs or not state.is_world_process_zero:
            return
        self._step = state.global_step
        self._logs = logs
        if weights := _named(logs, "sampling/"):
            self._history.append(weights)
        if len(self._history) > HISTORY:
            self._history = self._history[1::2]
        due = self._step * PLAIN_LINES // self._steps
        if self._live is None and due > self._printed:
            self._printed = due
            facts = [f"{self._title}: step {self._step:,} of {self._steps:,}", *self._facts(), self._time()]
            self._print("; ".join([", ".join(facts), *self._changes()]))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Replace the picture by one line."""
        if self._live is not None:
            self._stop()
            loss = f", loss {self._logs['loss']:.3f}" if self._logs else ""
            took = duration(time.monotonic() - self._started)
            self._print(f"{self._title}: {self._step - self._first:,} steps in {took}{loss}")

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self._stop)

    def _print(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def _time(self) -> str:
        """Return the remaining time at the pace so far, probing included; at the end, the time taken."""
        done, elapsed = self._step - self._first, time.monotonic() - self._started
        if self._step >= self._steps:
            return f"took {duration(elapsed)}"
        return f"{duration(elapsed / done * (self._steps - self._step))} left" if done else "starting"

    def _facts(self) -> list[str]:
        facts = [f"loss {self._logs['loss']:.3f}"] if "loss" in self._logs else []
        if "learning_rate" in self._logs:
            facts.append(f"learning rate {self._logs['learning_rate']:.2g}")
        elapsed, probing = time.monotonic() - self._started, self._logs.get("probing/seconds", 0.0)
        if 0 < probing < elapsed:
            facts.append(f"probing adds {probing / (elapsed - probing):.0%}")
        return facts

    def _changes(self) -> list[str]:
        """Return what a plain line says about the mixture, except what the previous line said too."""
        before, self._previous = self._previous, []
        if self._history:
            now = self._history[-1]
            shares = ", ".join(f"{name} {percent(now[name])}" for name in largest(now, PLAIN_DATASETS))
            self._previous.append(f"drawing {shares}")
        if influence := _named(self._logs, "influence/"):
            (best,) = largest(influence, 1)
            self._previous.append(f"largest influence {best} {influence[best]:+.2g}")
        return [sentence for sentence in self._previous if sentence not in before]

    def _picture(self) -> Group:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._steps, completed=self._step, width=24)
        progress = Text(f"{self._step:,} of {self._steps:,}")
        head.add_row(Text(self._title, "bold"), bar, progress, Text(self._time(), "dim"))
        parts: list[Table | Text] = [head]
        if facts := self._facts():
            parts.append(Text("   ".join(facts)))
        if self._history:
            parts.append(mixture_table(self._history, _named(self._logs, "influence/")))
        return Group(*parts)


def _named(logs: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): value for key, value in logs.items() if key.startswith(prefix)}
