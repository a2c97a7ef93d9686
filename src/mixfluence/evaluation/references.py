"""Scores beside those of a trained model: the model as it was before, BM25, and the fusion of BM25 with the model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import xxhash
from sentence_transformers.base.model import BaseModel

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import MixfluenceError
from mixfluence.evaluation.results import Evaluation, write_evaluation
from mixfluence.evaluation.retrieval import MAX_PASSAGES, Ranking, evaluate, fuse, rank_bm25, score_task
from mixfluence.files import write_text
from mixfluence.recipe import Recipe
from mixfluence.runs import REFERENCES_FOLDER

logger = logging.getLogger(__name__)

Rankings = Mapping[str, Ranking]


def write_references(
    run: Path,
    task: RetrievalSet,
    trained: Rankings,
    *,
    lexical: Callable[[RetrievalSet], Rankings] = rank_bm25,
    untrained: Callable[[RetrievalSet], Evaluation] | None = None,
) -> None:
    """Write `references/<name>/<dataset>.jsonl` into a run folder, given the rankings of the trained model.

    A reference that cannot be scored is logged and left out: it must not cost the results of a run.
    """
    if len(task.docs) > MAX_PASSAGES:
        logger.info("%s: no reference rows, it has more than %s passages", task.name, f"{MAX_PASSAGES:,}")
        return
    try:
        scores = {"zero-shot": untrained(task)} if untrained else {}
        ranked = lexical(task)
        scores |= {"bm25": score_task(task, ranked), "fusion": score_task(task, fuse(trained, ranked))}
    except (MixfluenceError, RuntimeError, ValueError, IndexError) as error:
        logger.warning("%s: no reference rows (%s)", task.name, error)
        return
    for name, evaluation in scores.items():
        write_evaluation(evaluation, run / REFERENCES_FOLDER / name)


class References:
    """References of a recipe. What does not depend on training is kept in `.references` beside the run folder.

    Other seeds and samplers then do not compute it again.
    """

    def __init__(self, recipe: Recipe, load_model: Callable[[], BaseModel]) -> None:
        self._recipe = recipe
        self._load_model = cache(load_model)
        # With their times, because a model in a folder may change.
        files = [(str(file), file.stat().st_mtime_ns) for file in sorted(Path(recipe.model.name).rglob("*.*"))]
        self._model = [recipe.model.model_dump(mode="json"), files]

    def write(self, task: RetrievalSet, trained: Rankings) -> None:
        """Write the references of a test set, given the rankings of the trained model."""
        write_references(self._recipe.output, task, trained, lexical=self._lexical, untrained=self._untrained)

    def _lexical(self, task: RetrievalSet) -> Rankings:
        return self._kept(task, ["bm25"], lambda: rank_bm25(task))

    def _untrained(self, task: RetrievalSet) -> Evaluation:
        key = ["zero-shot", self._model, task.query_prompt, task.passage_prompt]
        return Evaluation(task.name, self._kept(task, key, lambda: self._evaluate_untrained(task)))

    def _evaluate_untrained(self, task: RetrievalSet) -> Mapping[str, Mapping[str, float]]:
        logger.info("testing the untrained model on %s", task.name)
        return evaluate(self._load_model(), task, batch_size=self._recipe.evaluation.batch_size).per_query

    def _kept(self, task: RetrievalSet, key: list[Any], compute: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        digest = xxhash.xxh3_128_hexdigest(json.dumps([*key, task.fingerprint]).encode())
        path = self._recipe.output.parent / f".{REFERENCES_FOLDER}" / f"{digest}.json"
        try:
            kept: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = compute()
            write_text(path, json.dumps(kept))
        return kept
