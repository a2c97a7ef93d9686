"""What the studies use of mixfluence beyond its public modules, in one place; README.md lists the public ones.

Functions that read data or load a model import what they need when they are called, because it takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixfluence.data.source import SourceSection as Source
from mixfluence.errors import DataError, MixfluenceError, RecipeError
from mixfluence.evaluation.significance import average_difference, bootstrap_interval, holm, t_test
from mixfluence.files import replacing, write_text
from mixfluence.policy.initial import read_weights
from mixfluence.runs import write_test

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from mixfluence.data.corpus import Kind, Split
    from mixfluence.data.retrieval import RetrievalSet
    from mixfluence.data.rows import RowSet
    from mixfluence.recipe import Recipe

__all__ = [
    "DataError",
    "MixfluenceError",
    "RecipeError",
    "Source",
    "average_difference",
    "bootstrap_interval",
    "embed_rows",
    "holm",
    "kinds_of_pairs",
    "merge_and_score",
    "peak_memory",
    "read_rows",
    "read_task",
    "read_weights",
    "replacing",
    "run_untrained",
    "score_model",
    "scores_by_query",
    "t_test",
    "train_recipe",
    "write_text",
]

BM25 = "bm25"


def read_rows(source: Source) -> RowSet:
    """Read the training or dev rows of a source."""
    from mixfluence.data.formats import read_rows as read

    return read(source)


def read_task(source: Source) -> RetrievalSet:
    """Read a source as a retrieval task."""
    from mixfluence.data.formats import read_task as read

    return read("task", source)


def embed_rows(recipe: Recipe, source: Source, most: int) -> NDArray[np.float32]:
    """Return a vector for each of at most so many rows of a source, evenly spaced, by the recipe's encoder."""
    from mixfluence.build import build_model
    from mixfluence.clustering.embeddings import Embedder

    rows = read_rows(source)
    step = -(-len(rows) // most)
    taken = rows.take(range(0, len(rows), step), f"{rows.fingerprint}-every-{step}")
    return Embedder(build_model(recipe.model), "both").vectors(taken).astype("float32")


def kinds_of_pairs(corpus: Path, split: Split) -> list[Kind]:
    """Return the kinds of pairs that `mixfluence adapt` would train on, given the documents of a split."""
    from mixfluence.adapt import kinds_of_pairs as find

    return find(corpus, split)


def train_recipe(recipe: Recipe) -> None:
    """Train and test as a recipe says."""
    from mixfluence.experiment import run

    run(recipe)


def merge_and_score(
    runs: Sequence[Path], recipe: Recipe, folder: Path
) -> tuple[dict[str, float], dict[str, float], float]:
    """Merge finished runs and their start by the weights that are best on dev, as `mixfluence merge` does.

    Returns scores, the weights of the models, and the seconds of the search.
    """
    from mixfluence.merging import merge_runs
    from mixfluence.runs import Stopwatch, read_run
    from mixfluence.strategies import Merge

    watch = Stopwatch()
    with watch("merge"):
        merged = merge_runs([read_run(run) for run in runs], Merge(), recipe, folder)
    return score_model(recipe, folder), merged.weights, watch.seconds["merge"]


def score_model(recipe: Recipe, folder: Path) -> dict[str, float]:
    """Return NDCG@10 of the model in a run folder, on the test sets or, if there are none, as checkpoints are."""
    from mixfluence.build import build_model
    from mixfluence.data.reading import read_data
    from mixfluence.evaluation.retrieval import evaluate
    from mixfluence.runs import MEASURE, MODEL_FOLDER

    data = read_data(recipe)
    model = build_model(recipe.model.model_copy(update={"name": str(folder / MODEL_FOLDER), "revision": None}))
    batch_size = recipe.evaluation.batch_size
    tasks = list(data.test.values()) or data.selection
    return {task.name: evaluate(model, task, batch_size=batch_size).mean(MEASURE) for task in tasks}


def scores_by_query(path: Path) -> Mapping[str, Mapping[str, float]]:
    """Return the measures of each query, from a file of a run folder's `eval`."""
    from mixfluence.evaluation import read_evaluation

    return read_evaluation(path).per_query


def peak_memory() -> float | None:
    """Return the most GiB of GPU memory that tensors of this process took since the last call; None without a GPU.

    What nothing refers to any more, such as the graphs of a finished run, is freed, so that it does not count again.
    """
    import gc

    import torch

    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated() / 2**30
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return round(peak, 2)


def run_untrained(recipe: Recipe, reference: str) -> None:
    """Test a recipe's model as it is, or BM25, and write the result as a run folder."""
    from mixfluence.build import build_model
    from mixfluence.data.formats import read_task as read
    from mixfluence.testing import evaluate_bm25, evaluate_tasks

    tasks = {name: read(name, source) for name, source in recipe.test.items()}
    lexical = reference == BM25
    scores = evaluate_bm25(tasks) if lexical else evaluate_tasks(build_model(recipe.model), tasks, recipe)
    write_test(recipe.output, recipe, reference, tasks, scores)
