"""Checkpoints that count only when they are complete: writing, sealing, verifying, finding and rotating them.

The Trainer writes a checkpoint file by file and deletes old ones before the new one is complete. Here a checkpoint is
sealed by a manifest with the size and hash of each file, written after everything else is on disk. Without a manifest,
or with a file that differs from it, a checkpoint is ignored. Old ones are deleted only after a new one is sealed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mixfluence.errors import DataError, first_line
from mixfluence.files import sync_folder, write_text
from mixfluence.runs import MANIFEST_FILE, list_checkpoints, step_of
from mixfluence.schema import short

logger = logging.getLogger(__name__)

# Our part of a checkpoint: state of sampler, strategy, probing and trace, and the identity of the run.
STATE_FILE = "mixture_state.json"
# Parts of a run's identity, in the order of comparison.
KINDS = {"fingerprints": "training set", "settings": "setting", "dev_fingerprints": "dev set"}
# Resume from the newest complete checkpoint, or start at step 0 if there is none.
LATEST = "latest"


def find_checkpoint(folder: Path | str, wanted: Path | str | bool | None) -> Path | None:
    """Return the checkpoint to resume from, the same on every process; None to start at step 0.

    `wanted` is a complete checkpoint; True for the newest complete one, which must exist; or `"latest"` for the newest
    complete one, or else step 0.
    """
    if not wanted:
        return None
    if wanted is not True and wanted != LATEST:
        if reason := damage(Path(wanted)):
            raise DataError(f"{wanted}: not a complete checkpoint of a mixture: {reason}")
        return Path(wanted)
    found: list[Path | None] = [None]
    if PartialState().is_main_process:
        found = [newest_complete(folder)]
        if found == [None] and wanted == LATEST:
            logger.warning("%s: no complete checkpoint, starting from step 0", folder)
    broadcast_object_list(found)
    if found == [None] and wanted is True:
        raise DataError(f"{folder}: no checkpoint to resume from")
    return found[0]


def checkpoint_of(folder: Path | str, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return Path(folder) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def seal(checkpoint: Path) -> None:
    """Mark a checkpoint as complete: flush its files to disk, then write the manifest."""
    (checkpoint / MANIFEST_FILE).unlink(missing_ok=True)
    write_text(checkpoint / MANIFEST_FILE, json.dumps(measure_files(checkpoint), indent=1) + "\n")


def measure_files(folder: Path, inside: str = "") -> dict[str, Any]:
    """Flush the files of a folder, or of one inside it, to disk, and return the size and hash of each."""
    return {path.relative_to(folder).as_posix(): measure(path) for path in sync_folder(folder / inside)}


def damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint or the one it refers to as the best so far; None for a complete one."""
    if reason := _damage_of_files(checkpoint):
        return reason
    best_of = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))["best_model_checkpoint"]
    best = checkpoint.with_name(Path(best_of).name) if best_of else checkpoint
    if best != checkpoint and (reason := _damage_of_files(best)):
        return f"its best checkpoint so far, {best.name}, cannot be used: {reason}"
    return None


def newest_complete(folder: Path | str) -> Path | None:
    """Return the newest complete checkpoint, with a warning for every newer one; None if there is none."""
    for checkpoint in list_checkpoints(folder):
        reason = damage(checkpoint)
        if reason is None:
            return checkpoint
        logger.warning("%s cannot be used: %s; trying the previous one", checkpoint, reason)
    return None


def rotate(folder: Path | str, limit: int | None, best: str | None) -> None:
    """Delete all but `limit` complete checkpoints, but neither the newest nor the best, after one was sealed."""
    if not limit:
        return
    sealed = [path for path in list_checkpoints(folder) if (path / MANIFEST_FILE).exists()]
    protected = {path for path in sealed if path == sealed[0] or (best and path.name == Path(best).name)}
    others = [path for path in sealed if path not in protected]
    kept = protected | set(others[: max(0, limit - len(protected))])
    for checkpoint in list_checkpoints(folder):
        if checkpoint not in kept:
            # The manifest goes first, so that a half-deleted checkpoint is not reported as damaged.
            (checkpoint / MANIFEST_FILE).unlink(missing_ok=True)
            shutil.rmtree(checkpoint, ignore_errors=True)


def unseal_later(folder: Path | str, step: int) -> None:
    """Invalidate checkpoints after a step, because the run starts or resumes there and its trace is cut."""
    for checkpoint in list_checkpoints(folder):
        if step_of(checkpoint) > step:
            (checkpoint / MANIFEST_FILE).unlink(missing_ok=True)


def read_state(checkpoint: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Read our part of a checkpoint, and refuse that of another run; see `MixtureTrainer.identity`."""
    with valid_state(checkpoint / STATE_FILE):
        state: dict[str, Any] = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        for part, what in KINDS.items():
            before, now = state[part], run[part]
            if list(before) != list(now):
                raise DataError(f"{checkpoint}: written with the {what}s {', '.join(before)}, found {', '.join(now)}")
            for name in now:
                if before[name] != now[name]:
                    change = f"from {short(before[name])} to {short(now[name])}"
                    raise DataError(f"{checkpoint}: the {what} {name!r} has changed since it was written, {change}")
    return state


@contextmanager
def valid_state(path: Path | str) -> Iterator[None]:
    """Turn errors that a state of another version leads to into one error."""
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not a checkpoint of this mixture ({type(error).__name__}: {error})") from error


def hash_parameters(model: nn.Module) -> str:
    """Return a hash of the parameters and buffers of a model."""
    digest = xxhash.xxh3_128()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """If a folder cannot be written, remove it and raise an error that names it."""
    try:
        yield
    except Exception as error:
        shutil.rmtree(path, ignore_errors=True)
        raise OSError(f"{path}: could not be written ({first_line(error)})") from error


def _damage_of_files(checkpoint: Path) -> str | None:
    if not (checkpoint / MANIFEST_FILE).exists():
        return "it was not written completely"
    try:
        manifest = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))
        return changed_file(checkpoint, {TRAINER_STATE_NAME: manifest[TRAINER_STATE_NAME], **manifest})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"its {MANIFEST_FILE} cannot be read ({error})"


def changed_file(folder: Path, measured: Mapping[str, Any]) -> str | None:
    """Return which file of a folder is not as it was measured; None if all are."""
    for name, expected in measured.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"] or measure(path) != expected:
            return f"{name} has changed since it was written"
    return None


def measure(path: Path) -> dict[str, Any]:
    """Return the size and hash of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "xxh3": hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()}
