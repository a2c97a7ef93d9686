"""What a run draws from: rows selected from its datasets, and clusters in place of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from accelerate import PartialState

from mixfluence import runs
from mixfluence.build import build_model
from mixfluence.clustering.arms import read_arms, write_arms
from mixfluence.data.reading import Data
from mixfluence.data.rows import RowSet
from mixfluence.inputs import INPUTS_FILE
from mixfluence.recipe import Recipe
from mixfluence.selection import Selected, select_rows


def select(recipe: Recipe, data: Data, watch: runs.Stopwatch) -> tuple[Data, dict[str, Selected]]:
    """Return the data with the rows that the recipe selects, and what was kept of each dataset."""
    if recipe.select is None:
        return data, {}
    sources = {**recipe.dev, **recipe.train}
    with watch("select"), PartialState().main_process_first():
        train, selected = select_rows(
            data.train,
            targets_of(recipe, data),
            build_model(recipe.model),
            keep=recipe.select.keep,
            batch_size=recipe.training.batch_size,
            seed=recipe.seed,
            prompts={name: (source.query_prompt, source.passage_prompt) for name, source in sources.items()},
        )
    return replace(data, train=train), selected


def targets_of(recipe: Recipe, data: Data) -> dict[str, RowSet]:
    """Return the dev sets that the run is for: those that are not guards."""
    return {name: rows for name, rows in data.dev.items() if name not in recipe.strategy.guards}


def divide(
    recipe: Recipe, data: Data, watch: runs.Stopwatch, *, resume: bool
) -> tuple[Data, Callable[[Mapping[str, float]], dict[str, float]]]:
    """Return the data to sample from, and a function from its probabilities to shares of the datasets."""
    strategy = recipe.strategy
    if not strategy.clusters:
        return data, dict
    processes, stored = PartialState(), recipe.output / runs.ARMS_FILE
    with watch("cluster"), processes.main_process_first():
        if resume and stored.exists() and (recipe.output / INPUTS_FILE).exists():
            found = read_arms(data.train, stored)
        else:
            least_rows = max(map(recipe.batch_size_of, recipe.train)) * processes.num_processes
            targets = targets_of(recipe, data)
            found = strategy.divide(data.train, targets, model=recipe.model, least_rows=least_rows, seed=recipe.seed)
            if found.numbers is not None and processes.is_main_process:
                write_arms(stored, found.numbers)
    # A cluster of several datasets has their common prompts; the recipe was checked for that.
    sources = {cluster: dataset or next(iter(recipe.train)) for cluster, dataset in found.sources.items()}
    return replace(data, train=found.mixture, sources=sources, found=found.weights), found.shares
