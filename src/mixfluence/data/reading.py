"""Reads the training, dev and test data of a recipe, for plans and for runs, and previews it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from mixfluence.data.formats import Source, read_both, read_rows, read_task
from mixfluence.data.mixture import Mixture, Overlap, repeated_queries, without_overlap
from mixfluence.data.retrieval import RetrievalSet, guiding_half, scoring_samples, selecting_half
from mixfluence.data.rows import ROWS_PER_BATCH, RowSet, text_key
from mixfluence.data.source import FileSource
from mixfluence.display import counted
from mixfluence.errors import MixfluenceError, refuse
from mixfluence.recipe import Recipe
from mixfluence.runs import OVERLAP_FILE
from mixfluence.schema import short

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Only a part of a large dataset is previewed.
LENGTH_ROWS, DUPLICATE_BATCHES = 200, 100
ROLES = ("anchor", "positive")
# A role and texts -> their lengths.
Count = Callable[[str, list[str]], Sequence[int]]


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

    @property
    def notes(self) -> list[str]:
        """What the readers have noted, each with its section and dataset."""
        notes = _notes_of_rows({"train": self.train, "dev": self.dev})
        return notes + [f"test {note}" for task in self.test.values() for note in task.notes]


def _notes_of_rows(sections: Mapping[str, Mapping[str, RowSet]]) -> list[str]:
    return [
        f"{section} {name}: {note}"
        for section, sets in sections.items()
        for name, rows in sets.items()
        for note in rows.notes
    ]


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
    for note in _notes_of_rows({"train": mixture, "dev": dev}):
        logger.warning("%s", note)
    for overlap in overlaps:
        logger.warning("%s: dropped, see %s", overlap, OVERLAP_FILE)
    for sentence in repeated_queries(mixture, dev):
        logger.warning("%s", sentence)
    samples = scoring_samples(tasks, scoring, halves=recipe.halves) if scoring else []
    selection = []
    if recipe.selection:
        if recipe.halves:
            dev = {name: guiding_half(name, rows) for name, rows in dev.items()}
            tasks = [selecting_half(task) for task in tasks]
        targets = [task for task in tasks if task.name not in recipe.strategy.guards]
        selection = [task.sample_corpus(recipe.selection.corpus) for task in targets]
    return Data(mixture, {name: name for name in mixture}, dev, selection, test, overlaps, samples)


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


def preview(name: str, rows: RowSet, count: Count | None = None) -> Iterator[str]:
    """Yield a few lines about a dataset; lengths are in words unless a model's tokens are counted."""
    batches = islice(rows.rows.select_columns(list(ROLES)).iter(ROWS_PER_BATCH), DUPLICATE_BATCHES)
    keys = [text_key("\0".join(pair)) for batch in batches for pair in zip(*batch.values(), strict=True)]
    twice = len(keys) - len(set(keys))
    looked = f" among the first {len(keys):,}" if len(keys) < len(rows) else ""
    size = f"{counted(len(rows), 'row')}, {counted(twice, 'duplicate')}{looked}"
    yield f"{name}: {size}; {lengths(rows, count)}"
    first = rows.rows[0]
    for role in ROLES:
        yield f"  {role}{_columns(rows, role)}: {short(first[role])}"
    if negatives := first["negatives"]:
        more = f" and {len(negatives) - 1} more" if len(negatives) > 1 else ""
        yield f"  negatives{_columns(rows, 'negatives')}: {short(negatives[0])}{more}"
    if first["scores"]:
        yield f"  scores{_columns(rows, 'scores')}: {short(first['scores'])}"


def lengths(rows: RowSet, count: Count | None) -> str:
    """Return the median and the largest length of a sample of anchors and positives."""
    measure = count or (lambda role, texts: [len(text.split()) for text in texts])
    sample = rows.rows[:: -(-len(rows) // LENGTH_ROWS)]
    found = {role: measure(role, sample[role]) for role in ROLES}
    shown = ", ".join(f"{role} {median(own):.0f} (up to {max(own)})" for role, own in found.items())
    return f"{'tokens' if count else 'words'}: {shown}"


def preview_sources(sources: Mapping[str, Source], count: Count | None) -> Iterator[str]:
    """Yield a few lines about each source on this machine, with the notes of its reader."""
    for name, source in sources.items():
        if source.on_disk:
            rows = read_rows(source)
            yield from preview(name, rows, count)
            yield from (f"  {note}" for note in rows.notes)
        else:
            place = source.path.absolute() if isinstance(source, FileSource) else source.location
            yield f"{name}: not on this machine ({place})"


def token_counter(model: BaseModel) -> Count:
    """Return a function that counts the tokens which a model makes of texts, after truncation."""
    from sentence_transformers import CrossEncoder

    from mixfluence.data.tokenize import Tokeniser

    if isinstance(model, CrossEncoder):  # which truncates pairs
        return lambda role, texts: [len(ids) for ids in model.tokenizer(texts, verbose=False)["input_ids"]]
    tokeniser = Tokeniser(model)
    sides = {"anchor": tokeniser.side("query", ""), "positive": tokeniser.side("document", "")}
    return lambda role, texts: sides[role].tokenise(texts)[1].tolist()


def _columns(rows: RowSet, role: str) -> str:
    return f" ({', '.join(rows.columns[role])})" if rows.columns.get(role) else ""
