"""Which checkpoint a run goes on from, and whether it is one of that run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformerTrainingArguments

from mixfluence.data.mixture import Mixture
from mixfluence.errors import DataError
from mixfluence.strategies import Strategy
from mixfluence.training.checkpoints import newest_whole, refuse_damaged
from mixfluence.training.draws import fixed_settings


def find_checkpoint(folder: Path | str, wanted: str | bool | None) -> Path | None:
    """Return the checkpoint that somebody asks to go on from; None to start anew.

    Args:
        folder: Where the run has its checkpoints.
        wanted: A checkpoint, which must be whole, or True for the newest one that is.

    Raises:
        DataError: If there is none, or it is damaged.
    """
    if wanted is True:
        newest = newest_whole(folder)
        if newest is None:
            raise DataError(f"{folder}: no checkpoint to resume from")
        return newest
    if not wanted:
        return None
    checkpoint = Path(wanted)
    refuse_damaged(checkpoint)
    return checkpoint


def identity(
    args: SentenceTransformerTrainingArguments, strategy: Strategy, mixture: Mixture, dev: Mixture | None
) -> dict[str, Any]:
    """Return what a resumed run must share with its checkpoint, as JSON values.

    Args:
        args: The host's.
        strategy: Decides the probabilities.
        mixture: The pool.
        dev: The targets; they count if they guide the strategy.
    """
    return {
        "fingerprints": mixture.fingerprints,
        "dev_fingerprints": dev.fingerprints if dev and strategy.probing else {},
        "settings": {**fixed_settings(args), "strategy": type(strategy).__name__},
    }


def refuse_other_run(checkpoint: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other data or with other settings.

    Args:
        checkpoint: Where it is.
        saved: Its state, in which is the identity of its run.
        now: The identity of the run that goes on.

    Raises:
        DataError: Saying what differs.
    """
    _refuse_other_data(checkpoint, "trained on {}, the mixture is {}", saved["fingerprints"], now["fingerprints"])
    for setting, value in now["settings"].items():
        if (before := saved["settings"][setting]) != value:
            raise DataError(f"{checkpoint}: written with {setting} {before}, cannot go on with {value}")
    _refuse_other_data(
        checkpoint, "guided by {}, the dev sets are {}", saved["dev_fingerprints"], now["dev_fingerprints"]
    )


@contextmanager
def host_files_understood(checkpoint: Path | None) -> Iterator[None]:
    """Turn a file that the host cannot unpickle into one error; `state_understood` is for our own part."""
    try:
        yield
    except Exception as error:
        # By name, so that this package need not import what it never uses to read a file.
        if type(error).__name__ not in {"UnpicklingError", "EOFError"}:
            raise
        raise DataError(f"{checkpoint}: not a checkpoint of the host's ({error})") from error


def _refuse_other_data(checkpoint: Path, difference: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    if list(before) != list(now):
        raise DataError(f"{checkpoint}: {difference.format(', '.join(before), ', '.join(now))}")
    for name in now:
        if before[name] != now[name]:
            raise DataError(f"{checkpoint}: the dataset {name!r} has changed since it was written")
