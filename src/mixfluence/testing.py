"""What comes after training: dev queries are ranked and test sets scored, beside what needs no training.

A run tries all of it on a few rows before its first step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from sentence_transformers.base.model import BaseModel

from mixfluence import runs
from mixfluence.build import build_model
from mixfluence.data.benchmarks import MtebSource
from mixfluence.data.reading import Data
from mixfluence.data.retrieval import RetrievalSet, positives_of, retrieval_from_texts
from mixfluence.data.rows import RowSet
from mixfluence.data.source import SourceSection
from mixfluence.errors import RecipeError
from mixfluence.evaluation import Evaluation, write_evaluation
from mixfluence.evaluation.references import References
from mixfluence.evaluation.results import rank_queries, write_dev_queries
from mixfluence.evaluation.retrieval import rank_task, score_task
from mixfluence.recipe import Recipe
from mixfluence.report.tables import add_to_card

logger = logging.getLogger(__name__)

# Keeps the cost small beside training: at most twice as many texts are encoded per dev set.
DEV_ROWS = 1_000


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
            references.write(task, found)
    return scores


def rank_dev(recipe: Recipe, model: BaseModel, dev: Mapping[str, RowSet], folder: Path) -> None:
    """Rank the first rows of each dev set and write `<folder>/<dataset>.jsonl`.

    The corpus is only the positives of these rows, so that scores compare the queries of a set, not models; for those
    use `evaluate`.
    """
    for name, rows in dev.items():
        # Without hard negatives, which would be many more texts to encode.
        first = rows.rows.select(range(min(DEV_ROWS, len(rows))))
        task = retrieval_from_texts(name, positives_of(first), first["positive"])
        prompts = {key: getattr(recipe.dev[name], key) for key in ("query_prompt", "passage_prompt")}
        logger.info("ranking %d dev queries of %s", len(task.queries), name)
        ranked = rank_queries(model, replace(task, **prompts), batch_size=recipe.evaluation.batch_size)
        write_dev_queries(name, ranked, folder)


def write_mteb_result(source: SourceSection, evaluation: Evaluation, folder: Path, seconds: float) -> None:
    """Write `mteb/TASK.json` into the folder of scores if the test set is a task of mteb.

    Scores have mteb's names. Passages with the id of their query are left out unless judged relevant, as everywhere in
    this package; mteb does so for some tasks.
    """
    if not isinstance(source, MtebSource):
        return
    from mteb.results import TaskResult  # an extra

    task = source.load_task()
    scores = {name.replace("@", "_at_"): value for name, value in evaluation.summary().items()}
    scores["main_score"] = scores["ndcg_at_10"]
    split, subset = source.split_of(task), source.subset(task)
    result = TaskResult.from_task_results(task, {split: {subset: scores}}, evaluation_time=seconds)
    path = folder / "mteb" / f"{task.metadata.name}{f'-{source.language}' if source.language else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result.to_disk(path)


def rehearse_tests(recipe: Recipe, model: BaseModel, data: Data, place: Path) -> None:
    """Try in a folder, on the first rows of each set, what comes after training, so that nothing fails only then."""
    dev = {name: rows.take(range(min(2, len(rows))), rows.fingerprint) for name, rows in data.dev.items()}
    test = {
        name: replace(task.take_queries([0]), doc_ids=task.doc_ids[:2], docs=task.docs[:2])
        for name, task in data.test.items()
    }
    try:
        with TemporaryDirectory(prefix=".try-", dir=place) as folder, quiet():
            rank_dev(recipe, model, dev, Path(folder))
            evaluate_tasks(model, test, recipe, Path(folder))
    except (OSError, UnicodeError) as error:
        reason = str(error)
        if isinstance(error, OSError) and error.filename:
            reason = f"{Path(error.filename).name}: {error.strerror}"
        raise RecipeError(f"{recipe.output}: results could not be written ({reason})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Log nothing: a few rows are no reason to warn."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
