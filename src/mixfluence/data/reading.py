"""Everything that a recipe reads: training, dev and test data. Plans and runs read it with the same function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mixfluence.data.formats import Source, read_both, read_rows, read_task, reading_notes
from mixfluence.data.mixture import Mixture, Overlap, without_overlap
from mixfluence.data.retrieval import RetrievalSet, guiding_half, scoring_sample, selecting_half
from mixfluence.data.rows import RowSet
from mixfluence.errors import MixfluenceError, refuse
from mixfluence.recipe import Recipe
from mixfluence.runs import OVERLAP_FILE
from mixfluence.strategies import Scoring

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Data:
    """The data of a run: the training sets or clusters of their rows, dev sets that guide or select, and test sets."""

    train: Mixture
    # For each of `train`, the training set of the recipe whose prompts it has.
    sources: Mapping[str, str]
    dev: Mapping[str, RowSet]
    selection: list[RetrievalSet]
    test: Mapping[str, RetrievalSet]
    # Training rows that were dropped.
    overlaps: list[Overlap]
    # Dev tasks by which the models of stages are scored.
    samples: list[RetrievalSet] = field(default_factory=list)
    # Probabilities that a clustering or an earlier stage has found.
    found: Mapping[str, float] = field(default_factory=dict)


def read_data(recipe: Recipe) -> Data:
    """Read training, dev and test data, and drop training rows that contain a test query.

    Sources that cannot be read are reported together.
    """
    sizes = len(recipe.train), len(recipe.dev), len(recipe.test)
    logger.info("%s: reading datasets: %d for training, %d for dev, %d for testing", recipe.name, *sizes)
    problems: list[MixfluenceError] = []
    test = _read_each("test", recipe.test, read_task, problems)
    train = _read_each("train", recipe.train, lambda _, source: read_rows(source), problems)
    scoring = recipe.strategy.scoring
    tasks: list[RetrievalSet] = []
    if recipe.selection or scoring:
        both = _read_each("dev", recipe.dev, read_both, problems)
        dev, tasks = {name: rows for name, (rows, _) in both.items()}, [task for _, task in both.values()]
    else:
        dev = _read_each("dev", recipe.dev, lambda _, source: read_rows(source), problems)
    refuse(problems)
    mixture, overlaps = without_overlap(
        Mixture(train), {name: task.queries for name, task in test.items()}, recipe.overlap
    )
    for note in reading_notes(mixture, dev, {}):
        logger.warning("%s", note)
    for overlap in overlaps:
        logger.warning("%s: dropped, see %s", overlap, OVERLAP_FILE)
    samples = dev_samples(recipe, scoring, tasks) if scoring else []
    selection = []
    if recipe.selection:
        if recipe.halves:
            dev = {name: guiding_half(name, rows) for name, rows in dev.items()}
            tasks = [selecting_half(task) for task in tasks]
        targets = [task for task in tasks if task.name not in recipe.strategy.guards]
        selection = [task.sample_corpus(recipe.selection.corpus) for task in targets]
    return Data(mixture, {name: name for name in mixture}, dev, selection, test, overlaps, samples)


def dev_samples(recipe: Recipe, scoring: Scoring, tasks: Iterable[RetrievalSet]) -> list[RetrievalSet]:
    """Return a sample of each dev set to score models by; with `selection.dev: halves` of the half that guides."""
    return [scoring_sample(task, scoring.queries, scoring.passages, halves=recipe.halves) for task in tasks]


def _read_each(
    section: str, sources: Mapping[str, Source], read: Callable[[str, Source], T], problems: list[MixfluenceError]
) -> dict[str, T]:
    found = {}
    for name, source in sources.items():
        try:
            found[name] = read(name, source)
        except MixfluenceError as error:
            # An error of a file in several sections is reported once.
            files = [str(value) for value in vars(source).values() if isinstance(value, Path)]
            named = any(place in str(error) for place in (source.location.partition(" ")[0], *files))
            problems.append(error if named else type(error)(f"{section}.{name}: {error}"))
    return found
