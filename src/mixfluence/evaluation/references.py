"""Rows that a table of trained retrievers needs: the untrained model, BM25, and its fusion with the trained model."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import xxhash
from sentence_transformers.base.model import BaseModel

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import MixfluenceError
from mixfluence.evaluation.results import Evaluation, write_evaluation
from mixfluence.evaluation.retrieval import Ranking, evaluate, rank_bm25, score_task
from mixfluence.files import write_text
from mixfluence.recipe import Recipe
from mixfluence.runs import REFERENCES_FOLDER

logger = logging.getLogger(__name__)

# Beyond this, the index of BM25 may not fit in memory, and encoding the corpus twice is not cheap.
MAX_PASSAGES = 1_000_000
# The constant of reciprocal rank fusion.
FUSION = 60


class References:
    """Scores references of a run and writes `references/<name>/<dataset>.jsonl` into its folder.

    What does not depend on training is kept in `.references` beside the run folder, so that other seeds and samplers
    do not compute it again.
    """

    def __init__(self, recipe: Recipe, load_model: Callable[[], BaseModel]) -> None:
        self._recipe = recipe
        self._load_model = cache(load_model)
        # A model in a folder may change there.
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
            write_evaluation(evaluation, self._recipe.output / REFERENCES_FOLDER / name)

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


def fuse(*rankings: Mapping[str, Ranking]) -> dict[str, Ranking]:
    """Return the reciprocal rank fusion of several rankings of the same queries."""
    fused: dict[str, Ranking] = {}
    for query in dict.fromkeys(query for ranking in rankings for query in ranking):
        scores: Ranking = defaultdict(float)
        for ranking in rankings:
            hits = ranking.get(query, {})
            for rank, doc in enumerate(sorted(hits, key=lambda doc: -hits[doc]), start=1):
                scores[doc] += 1 / (FUSION + rank)
        fused[query] = dict(scores)
    return fused
