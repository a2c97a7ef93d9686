"""Checkpoints that count only when they are whole.

The host writes a checkpoint file by file and deletes old ones before the new one is complete. Here a checkpoint gets a
manifest, the size and hash of each of its files, when everything else is on the disk; without it, or with a file that
differs from it, a checkpoint is passed over. Old ones go only after that.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mixfluence.errors import DataError
from mixfluence.files import sync, write_text
from mixfluence.runs import MANIFEST_FILE

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureTrainer

logger = logging.getLogger(__name__)

_BLOCK = 1 << 22


def checkpoint_of(folder: Path | str, step: int) -> Path:
    """Return where the host writes the checkpoint of a step."""
    return Path(folder) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def step_of(checkpoint: Path | str) -> int:
    """Return the step a checkpoint was written at."""
    return int(Path(checkpoint).name.rpartition("-")[2])


def list_checkpoints(folder: Path | str) -> list[Path]:
    """Return the checkpoints in a folder, newest first, whole or not."""
    found = Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*/")
    return sorted((path for path in found if path.name.rpartition("-")[2].isdigit()), key=step_of, reverse=True)


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete: its files are on the disk, and the manifest says what they are."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    for path in files:
        sync(path)
    for path in {path.parent for path in files}:
        sync(path)
    manifest = {path.relative_to(checkpoint).as_posix(): _measure(path) for path in files}
    write_text(checkpoint / MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")


def damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if it is as it was when it was sealed.

    One that names another as the best so far is worth nothing without that one.
    """
    if reason := _damage_of_files(checkpoint):
        return reason
    try:
        best_of = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))["best_model_checkpoint"]
        if not best_of:
            return None
        best = checkpoint.with_name(Path(best_of).name)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        return f"its {TRAINER_STATE_NAME} cannot be read ({_first_line(error)})"
    reason = None if best == checkpoint else _damage_of_files(best)
    return f"its best checkpoint so far, {best.name}, cannot be used: {reason}" if reason else None


def newest_whole(folder: Path | str) -> Path | None:
    """Return the newest checkpoint that is whole, and warn of every newer one; None if there is none."""
    for checkpoint in list_checkpoints(folder):
        reason = damage(checkpoint)
        if reason is None:
            return checkpoint
        logger.warning("%s cannot be used: %s; looking for the one before it", checkpoint, reason)
    return None


def refuse_damaged(checkpoint: Path) -> None:
    """Refuse a checkpoint that somebody named and that is not whole."""
    if reason := damage(checkpoint):
        raise DataError(f"{checkpoint}: not the checkpoint of a mixture, or not all of it: {reason}")


def rotate(folder: Path | str, limit: int | None, best: str | None) -> None:
    """Delete what is more than `limit` complete checkpoints, but neither the newest nor the best.

    Call it when the newest has been sealed: what is not sealed by then never will be and goes first. The newest is the
    one sealed last: a run that had to start again may find later steps of its first try.
    """
    if not limit:
        return
    sealed = [path for path in list_checkpoints(folder) if (path / MANIFEST_FILE).exists()]
    sealed.sort(key=lambda path: ((path / MANIFEST_FILE).stat().st_mtime_ns, step_of(path)), reverse=True)
    protected = {path for path in sealed if path == sealed[0] or (best and path.name == Path(best).name)}
    others = [path for path in sealed if path not in protected]
    kept = protected | set(others[: max(0, limit - len(protected))])
    for checkpoint in list_checkpoints(folder):
        if checkpoint not in kept:
            # First, so that a checkpoint half deleted is not taken for one that was damaged.
            (checkpoint / MANIFEST_FILE).unlink(missing_ok=True)
            shutil.rmtree(checkpoint, ignore_errors=True)


def abandon_later(folder: Path | str, step: int) -> None:
    """Let checkpoints after a step no longer count, because the run goes on from it and its trace is cut to it."""
    for checkpoint in list_checkpoints(folder):
        if step_of(checkpoint) > step:
            (checkpoint / MANIFEST_FILE).unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a folder is written into one error that names it."""
    try:
        yield
    except Exception as error:
        raise OSError(f"{path}: could not be written ({_first_line(error)})") from error


@contextmanager
def half_written_named(trainer: MixtureTrainer) -> Iterator[None]:
    """Say so if training failed because a checkpoint could not be written, and remove what there is of it."""
    started = time.time()
    try:
        yield
    except Exception as error:
        checkpoint = checkpoint_of(trainer.args.output_dir, trainer.state.global_step)
        # Not one that an earlier crash has left behind.
        begun = any(path.stat().st_mtime >= started for path in checkpoint.rglob("*"))
        if not trainer.is_world_process_zero() or not begun or (checkpoint / MANIFEST_FILE).exists():
            raise
        shutil.rmtree(checkpoint, ignore_errors=True)
        reason = f"{checkpoint}: could not be written ({_first_line(error)}); the checkpoints before it are kept"
        raise OSError(reason) from error


@contextmanager
def state_understood(folder: Path | str) -> Iterator[None]:
    """Turn whatever a state that no run has written leads to into one error."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{folder}: not the checkpoint of this mixture ({type(error).__name__}: {error})") from error


def unlogged_loss(trainer: MixtureTrainer) -> dict[str, Any]:
    """Return what the host has added up since it last logged: of every process the loss, and the step of that log."""
    losses = trainer.accelerator.gather(trainer._tr_loss.reshape(1)).tolist()
    return {"losses": losses, "since": trainer._globalstep_last_logged}


def load_unlogged_loss(trainer: MixtureTrainer, state: dict[str, Any]) -> None:
    """Let the host go on adding up losses, which it would begin anew."""
    trainer._tr_loss += state["losses"][trainer.args.process_index]
    trainer._globalstep_last_logged = state["since"]


def _damage_of_files(checkpoint: Path) -> str | None:
    try:
        manifest = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))
        if TRAINER_STATE_NAME not in manifest:
            return f"its {MANIFEST_FILE} does not list {TRAINER_STATE_NAME}"
        for name, expected in manifest.items():
            path = checkpoint / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"] or _measure(path) != expected:
                return f"{name} is not as it was written"
    except FileNotFoundError:
        return "it was not written to its end"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return f"its {MANIFEST_FILE} cannot be read ({error})"
    return None


def _measure(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return {"bytes": path.stat().st_size, "xxh3": digest.hexdigest()}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
