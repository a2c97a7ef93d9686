"""One calm line while it trains."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

PLAIN_LINES = 10


class ProgressDisplay(TrainerCallback):
    """Shows step, loss and time left; a few plain lines instead when the output is not a terminal.

    Args:
        console: Where to show it.
        label: What is being trained.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._told = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show the bar."""
        self._told = state.global_step * PLAIN_LINES // state.max_steps
        if self._console.is_terminal and state.is_world_process_zero:
            self._task = self._progress.add_task(
                self._label, total=state.max_steps, completed=state.global_step, loss="-"
            )
            self._progress.start()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the loss, or print a line if one is due."""
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        if self._task is not None:
            self._progress.update(self._task, loss=f"{logs['loss']:.3f}")
        elif state.global_step * PLAIN_LINES // state.max_steps > self._told:
            self._told = state.global_step * PLAIN_LINES // state.max_steps
            self._console.print(
                f"{self._label}: step {state.global_step} of {state.max_steps}, loss {logs['loss']:.3f}",
                markup=False,
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._progress.stop()
            self._task = None
