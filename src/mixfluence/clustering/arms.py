"""Datasets cut into arms: k-means of the queries of each, with the typical terms of every cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from accelerate import PartialState
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sklearn.feature_extraction.text import TfidfVectorizer

from mixfluence.clustering import Clusters, Partition, select_rows
from mixfluence.clustering.embeddings import Embedder
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet
from mixfluence.errors import DataError
from mixfluence.files import replacing
from mixfluence.inputs import INPUTS_FILE
from mixfluence.policy.arms import Arms, arm_name
from mixfluence.recipe import Recipe
from mixfluence.runs import ARMS_FILE

logger = logging.getLogger(__name__)
Numbers = NDArray[np.int16]
# Terms per cluster, and the queries of a dataset that they are taken from.
TERMS, MOST_QUERIES = 3, 20_000
# Words that begin with a letter.
WORD = r"(?u)\b[^\W\d_]\w+\b"


def cut_into_arms(
    mixture: Mixture, encoder: SentenceTransformer, arms: Arms, *, least_rows: int, seed: int = 0
) -> Partition:
    """Cluster the queries of each dataset; train on `mixture` of the result with a strategy that has these `arms`.

    Costs one forward pass over the queries, once: embeddings and clusters are cached on disk. Clusters of fewer than
    `least_rows` rows are merged with neighbours; use the batch size. With several processes, call it in the first one
    before the others.
    """
    embedder = Embedder(encoder, "query")
    numbers = []
    for name, rows in mixture.items():
        count = arms.number(len(rows))
        if count == 1:
            numbers.append(np.zeros(len(rows), np.int16))
            continue
        found = Clusters(name, Mixture({name: rows}), embedder, least_rows, levels=1, branching=count, seed=seed)
        numbers.append(found.numbers().astype(np.int16))
    return arms_of(mixture, np.concatenate(numbers))


def arms_of(mixture: Mixture, numbers: Numbers) -> Partition:
    """Return the arms of datasets, given the number of each row's arm within its dataset."""
    own = np.split(numbers, np.cumsum(list(mixture.sizes.values()))[:-1])
    cut = {name: dict(_arms(name, rows, places)) for (name, rows), places in zip(mixture.items(), own, strict=True)}
    parts = Mixture({arm: rows for arms in cut.values() for arm, rows in arms.items()})
    logger.info("%d datasets are cut into %d clusters", len(mixture), len(parts))
    rows_by_dataset = {arm: {name: len(rows)} for name, arms in cut.items() for arm, rows in arms.items()}
    return Partition(parts, {}, rows_by_dataset, tuple(mixture), numbers)


def divide(recipe: Recipe, mixture: Mixture, targets: Mapping[str, RowSet], *, resume: bool) -> Partition:
    """Return what a strategy with `clusters` draws: found now, or stored by the run that is resumed."""
    processes, stored = PartialState(), recipe.output / ARMS_FILE
    with processes.main_process_first():
        if resume and stored.exists() and (recipe.output / INPUTS_FILE).exists():
            return read_arms(mixture, stored)
        least_rows = max(map(recipe.batch_size_of, recipe.train)) * processes.num_processes
        found = recipe.strategy.divide(mixture, targets, recipe, least_rows)
        if found.numbers is not None and processes.is_main_process:
            write_arms(stored, found.numbers)
        return found


def read_arms(mixture: Mixture, path: Path) -> Partition:
    """Return the arms that `write_arms` has stored, as an interrupted run had them."""
    try:
        numbers: Numbers = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if numbers.shape != (rows := sum(mixture.sizes.values()),):
        raise DataError(f"{path}: has the clusters of {numbers.size:,} rows, but the training sets have {rows:,}")
    return arms_of(mixture, numbers)


def write_arms(path: Path, numbers: Numbers) -> None:
    """Store the arm of each row, so that a resumed run does not depend on the cache."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, numbers)


def typical_terms(queries: Sequence[str], numbers: Numbers, count: int) -> list[tuple[str, ...]]:
    """Return the words of each cluster whose mean tf-idf exceeds that of all queries most, stop words aside."""
    try:
        weights = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD, stop_words="english").fit(queries)
    except ValueError:  # no query has a word
        return [()] * count
    matrix, words = weights.transform(queries), weights.get_feature_names_out()
    overall = np.asarray(matrix.mean(axis=0)).ravel()
    found = []
    for number in range(count):
        members = np.flatnonzero(numbers == number)
        excess = (np.asarray(matrix[members].mean(axis=0)).ravel() if len(members) else overall) - overall
        best = np.argsort(-excess, kind="stable")[:TERMS]
        found.append(tuple(str(words[place]) for place in best if excess[place] > 0))
    return found


def _arms(name: str, rows: RowSet, numbers: Numbers) -> Iterator[tuple[str, RowSet]]:
    """Yield the arms of a dataset by name."""
    count = int(numbers.max()) + 1
    if count == 1:
        yield arm_name(name, 0), rows
        return
    step = -(-len(rows) // MOST_QUERIES)
    queries = list(rows.rows.select(range(0, len(rows), step))["anchor"])
    terms = typical_terms(queries, numbers[::step], count)
    for number, part in select_rows(Mixture({name: rows}), numbers, np.ones(count, np.bool_)):
        yield arm_name(name, number), replace(part, terms=terms[number])
