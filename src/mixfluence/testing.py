"""What comes after training: dev queries are ranked and test sets scored, beside what needs no training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import perf_counter

from sentence_transformers.base.model import BaseModel

from mixfluence import runs
from mixfluence.build import build_model
from mixfluence.data.reading import Data
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet
from mixfluence.evaluation import Evaluation, write_evaluation
from mixfluence.evaluation.dev_queries import rank_dev_sets
from mixfluence.evaluation.mteb_results import write_mteb_result
from mixfluence.evaluation.references import References
from mixfluence.evaluation.retrieval import rank_bm25, rank_task, score_task
from mixfluence.recipe import Recipe
from mixfluence.report.tables import add_to_card

logger = logging.getLogger(__name__)


def score_run(recipe: Recipe, model: BaseModel, data: Data, *, show_progress: bool) -> dict[str, Evaluation]:
    """Write the results of dev queries and score the test sets."""
    folder = recipe.output
    rank_dev(recipe, model, data.dev, folder / runs.DEV_FOLDER)
    references = References(recipe, partial(build_model, recipe.model)) if recipe.evaluation.references else None
    scored = folder / runs.EVAL_FOLDER
    scores = evaluate_tasks(model, data.test, recipe, scored, references=references, show_progress=show_progress)
    add_to_card(folder / runs.MODEL_FOLDER / "README.md", scores)
    return scores


def evaluate_tasks(
    model: BaseModel,
    tasks: Mapping[str, RetrievalSet],
    recipe: Recipe,
    folder: Path | None = None,
    *,
    references: References | None = None,
    show_progress: bool = False,
) -> dict[str, Evaluation]:
    """Score a model on retrieval tasks and, given a folder, write the per-query scores there."""
    scores = {}
    for name, task in tasks.items():
        logger.info("testing on %s: %d queries, %d passages", name, len(task.queries), len(task.docs))
        started = perf_counter()
        found = rank_task(model, task, batch_size=recipe.evaluation.batch_size, show_progress=show_progress)
        scores[name] = score_task(task, found)
        if folder:
            write_evaluation(scores[name], folder)
            write_mteb_result(recipe.test[name], scores[name], folder, perf_counter() - started)
        if references:
            references.evaluate(task, found)
    return scores


def evaluate_bm25(tasks: Mapping[str, RetrievalSet]) -> dict[str, Evaluation]:
    """Score BM25 on retrieval tasks: the row every table of dense retrievers should have."""
    return {name: score_task(task, rank_bm25(task)) for name, task in tasks.items()}


def rank_dev(recipe: Recipe, model: BaseModel, dev: Mapping[str, RowSet], folder: Path) -> None:
    """Write the results of dev queries."""
    prompts = {name: (source.query_prompt, source.passage_prompt) for name, source in recipe.dev.items()}
    rank_dev_sets(model, dev, prompts, folder, batch_size=recipe.evaluation.batch_size)
