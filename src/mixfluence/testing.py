"""What comes after training: dev queries are ranked and test sets scored, beside what needs no training.

A run tries all of it on a few rows before its first step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import xxhash
from sentence_transformers.base.model import BaseModel

from mixfluence import runs
from mixfluence.build import build_model
from mixfluence.data.benchmarks import MtebSource
from mixfluence.data.reading import Data
from mixfluence.data.retrieval import RetrievalSet, positives_of, retrieval_from_texts
from mixfluence.data.rows import RowSet
from mixfluence.data.source import SourceSection
from mixfluence.errors import MixfluenceError, RecipeError
from mixfluence.evaluation import Evaluation, write_evaluation
from mixfluence.evaluation.results import rank_queries, write_dev_queries
from mixfluence.evaluation.retrieval import MAX_PASSAGES, Ranking, evaluate, fuse, rank_bm25, rank_task, score_task
from mixfluence.files import write_text
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
            references.evaluate(task, found)
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


class References:
    """Scores references of a run and writes `references/<name>/<dataset>.jsonl` into its folder.

    What does not depend on training is kept in `.references` beside the run folder, so that other seeds and samplers
    do not compute it again.
    """

    def __init__(self, recipe: Recipe, load_model: Callable[[], BaseModel]) -> None:
        self._recipe = recipe
        self._load_model = cache(load_model)
        # With their times, because a model in a folder may change.
        files = [(str(file), file.stat().st_mtime_ns) for file in sorted(Path(recipe.model.name).rglob("*.*"))]
        self._model = [recipe.model.model_dump(mode="json"), files]

    def evaluate(self, task: RetrievalSet, rankings: Mapping[str, Ranking]) -> None:
        """Score the references of a test set, given the rankings of the trained model.

        A reference that cannot be scored is logged and left out: it must not cost the results of a run.
        """
        if len(task.docs) > MAX_PASSAGES:
            logger.info("%s: no reference rows, it has more than %s passages", task.name, f"{MAX_PASSAGES:,}")
            return
        try:
            encoded = [self._model, task.query_prompt, task.passage_prompt]
            zero_shot = self._kept(task, ["zero-shot", *encoded], lambda: self._evaluate_untrained(task))
            lexical = self._kept(task, ["bm25"], lambda: rank_bm25(task))
        except (MixfluenceError, RuntimeError, ValueError, IndexError) as error:
            logger.warning("%s: no reference rows (%s)", task.name, error)
            return
        scores = {
            "zero-shot": Evaluation(task.name, zero_shot),
            "bm25": score_task(task, lexical),
            "fusion": score_task(task, fuse(rankings, lexical)),
        }
        for name, evaluation in scores.items():
            write_evaluation(evaluation, self._recipe.output / runs.REFERENCES_FOLDER / name)

    def _evaluate_untrained(self, task: RetrievalSet) -> Mapping[str, Mapping[str, float]]:
        logger.info("testing the untrained model on %s", task.name)
        return evaluate(self._load_model(), task, batch_size=self._recipe.evaluation.batch_size).per_query

    def _kept(self, task: RetrievalSet, key: list[Any], compute: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        digest = xxhash.xxh3_128_hexdigest(json.dumps([*key, task.fingerprint]).encode())
        path = self._recipe.output.parent / f".{runs.REFERENCES_FOLDER}" / f"{digest}.json"
        try:
            kept: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = compute()
            write_text(path, json.dumps(kept))
        return kept


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
