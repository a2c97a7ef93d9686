"""Checks before a run: whatever `train` would refuse before its first step, and the sizes of its data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from mixfluence.display import duration
from mixfluence.errors import DataError, MixfluenceError, RecipeError, collecting
from mixfluence.influence.settings import FORWARD
from mixfluence.recipe import ModelSection, Recipe, rows_to_keep
from mixfluence.strategies.base import load_named_encoder

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel

    from mixfluence.data.formats import Source
    from mixfluence.data.reading import Data
    from mixfluence.data.rows import RowSet

# Rows that are encoded to see how long all take.
TIMED_ROWS = 64
# Rows of a training set that are tokenised to set up a trainer.
FEW_ROWS = 16
MODEL_FILES = ("modules.json", "config.json")


class Checked(NamedTuple):
    """What is known of the data of a run before it starts.

    Attributes:
        train: Rows of each training set, after selection.
        dev: Rows of each dev set that guide sampling.
        encodings: What is encoded before training, to select rows or for the strategy: its cost in training steps and
            a sentence.
        absent: Datasets that are not on this machine, such as `train.nq`. Published sizes count for them.
        data: What was read; None without any training set.
    """

    train: dict[str, int]
    dev: dict[str, int]
    encodings: dict[str, tuple[float, str]]
    absent: list[str]
    data: Data | None


def preflight(recipe: Recipe, problems: list[MixfluenceError]) -> Checked | None:
    """Check arguments, output, model and data, and add what is wrong to `problems`; return None if data is wrong.

    Data on this machine is read. Data elsewhere counts with its published size; a missing size is reported only if
    `problems` is empty.
    """
    checked = None
    absent, unknown = _absent(recipe)
    if not problems:
        problems.extend(unknown)
    if recipe.training.trainer_args:
        from mixfluence.build import check_training_arguments

        with collecting(problems):
            check_training_arguments(recipe, planning=True)
    with collecting(problems):
        check_output(recipe.output)
    with collecting(problems):
        stages = recipe.strategy.stages(recipe)
        if any(stage.reuse for stage in stages):
            from mixfluence.merging import check_reuse

            check_reuse(recipe, stages)
    with collecting(problems):
        data = _read_present(recipe)
        train = _sizes(recipe.train, data.train if data else {})
        dev = _sizes(recipe.dev, data.dev if data else {}, divisor=2 if recipe.halves else 1)
        kept = train
        if recipe.select:
            kept = {name: rows_to_keep(name, rows, recipe.select.keep) for name, rows in train.items()}
        checked = None if unknown else Checked(kept, dev, {}, absent, data)
    with collecting(problems):
        # Without data the run is for another machine, which may have the model.
        if any(source.on_disk for source in recipe.train.values()):
            _check_start(recipe, checked if not problems else None)
        if checked:
            checked = checked._replace(encodings=_encodings(recipe, train, checked))
    return checked


def _check_start(recipe: Recipe, checked: Checked | None) -> None:
    """Set up the run on a few rows; if data is missing or something is wrong already, only load the model."""
    if not (checked and checked.data and not checked.absent):
        encoder_here(recipe.model)
    elif can_load(recipe.model):
        _rehearse(recipe, checked.data)


def _rehearse(recipe: Recipe, data: Data) -> None:
    """Set up a run on a few training rows and all dev rows, and try what comes after training; nothing is kept."""
    import torch

    from mixfluence.build import build_trainer
    from mixfluence.data.mixture import Mixture
    from mixfluence.testing import quiet, rehearse_tests

    if torch.cuda.device_count() > 1:
        return  # the run will be started with torchrun
    train = Mixture({name: rows.sample(FEW_ROWS) for name, rows in data.train.items()})
    found = dict.fromkeys(train, 1 / len(train))
    # The limit of epochs is checked with all rows.
    strategy = recipe.strategy.model_copy(update={"max_epochs": None})
    with TemporaryDirectory(prefix="mixfluence-") as folder, quiet():
        # A plan may be made on a machine without a GPU.
        training = recipe.training.model_copy(update={"packing": None, "compiled": False})
        tried = recipe.model_copy(update={"output": Path(folder), "strategy": strategy, "training": training})
        stages = strategy.stages(tried)
        for stage in dict.fromkeys((stages[0], stages[-1])):
            if stage.merges or stage.against:
                continue
            first = stage is stages[0] and not strategy.clusters
            trainer = build_trainer(tried, stage, replace(data, train=train, found={} if first else found), [])
            trainer.get_train_dataloader()
            trainer.state.max_steps = stage.steps
            trainer.optimizer = trainer.accelerator.prepare(trainer.create_optimizer())
            if trainer.probing:
                trainer.probing.start()
        rehearse_tests(recipe, trainer.model, data, tried.output)


def check_output(folder: Path) -> None:
    """Refuse an output that cannot be written; nothing is created."""
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise RecipeError(f"{folder}: cannot be written")


def model_is_here(section: ModelSection) -> bool:
    """Return whether an encoder can be loaded without the hub, or is not the name of one on the hub."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if section.name in {"minilm", "wordllama"} or Path(section.name).exists():
        return True
    try:
        found = [try_to_load_from_cache(section.name, file, revision=section.revision) for file in MODEL_FILES]
    except HFValidationError:
        return True
    return any(isinstance(file, str) for file in found)


def can_load(section: ModelSection) -> bool:
    """Return whether an encoder can be loaded without the hub and without code that comes with it."""
    return not section.trust_remote_code and model_is_here(section)


def encoder_here(section: ModelSection) -> BaseModel | None:
    """Load an encoder on the CPU; return None for one that cannot be loaded here."""
    if not can_load(section):
        return None
    from mixfluence.encoders import load_encoder

    return load_encoder(**section.model_dump(), device="cpu")


def _read_present(recipe: Recipe) -> Data | None:
    """Read the datasets that are on this machine; None if no training set is."""
    sections = {section: getattr(recipe, section) for section in ("train", "dev", "test")}
    here = {section: {name: s for name, s in sources.items() if s.on_disk} for section, sources in sections.items()}
    if not here["train"]:
        return None
    from mixfluence.data.reading import read_data

    return read_data(recipe.model_copy(update=here))


def _absent(recipe: Recipe) -> tuple[list[str], list[MixfluenceError]]:
    """Return the datasets that are not on this machine, and an error for each that needs a published size."""
    absent: list[str] = []
    problems: list[MixfluenceError] = []
    for section in ("train", "dev", "test"):
        for name, source in getattr(recipe, section).items():
            if source.on_disk:
                continue
            absent.append(f"{section}.{name}")
            if section != "test" and not _published(source):
                hint = f"to plan without it, give its size as {section}.{name}.published.rows"
                problems.append(DataError(f"{section}.{name}: {source.location}: no such file or folder; {hint}"))
    return absent, problems


def _sizes(sources: Mapping[str, Source], read: Mapping[str, RowSet], divisor: int = 1) -> dict[str, int]:
    """Return the rows of datasets: counted, or the published number, or the part of it that is used."""
    return {
        name: len(read[name]) if name in read else _published(source) // divisor for name, source in sources.items()
    }


def _published(source: Source) -> int:
    return (source.published.rows or 0) if source.published else 0


def _encodings(recipe: Recipe, train: Mapping[str, int], checked: Checked) -> dict[str, tuple[float, str]]:
    """Return what is encoded before training, to select rows of the training sets and for the strategy."""
    strategy, found = recipe.strategy, {}
    if recipe.select:
        rows = sum(train.values()) + sum(checked.dev.values())
        found["selecting"] = _encoding(recipe, None, rows, checked.data)
    if rows := strategy.encoded_rows(checked.train, checked.dev):
        found["encoding"] = _encoding(recipe, getattr(strategy, "encoder", None), rows, checked.data)
    return found


def _encoding(recipe: Recipe, named: str | None, rows: int, data: Data | None) -> tuple[float, str]:
    """Return the cost, and how many rows are encoded, by which encoder and, if the data is here, for how long."""
    # The first process encodes for all: the others wait.
    cost = rows / recipe.training.rows_per_step * FORWARD
    what = f"encodes {rows:,} rows with {named or recipe.model.name} before training"
    if data is None:
        return cost, what
    encoder = load_named_encoder(named, recipe)
    each = math.ceil(TIMED_ROWS / len(data.train))
    sample = [rows.rows[:each] for rows in data.train.values()]
    texts = [text for rows in sample for column in ("anchor", "positive") for text in rows[column]]
    encoder.encode(texts[:8], show_progress_bar=False)
    started = perf_counter()
    encoder.encode(texts, show_progress_bar=False)
    seconds = (perf_counter() - started) / (len(texts) / 2) * rows
    return cost, f"{what}: about {duration(seconds)} on this machine, less for what is cached"
