"""Merge models of one architecture by weights, and score models on small samples of the dev sets."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import ignore_patterns
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from torch import Tensor
from torch.nn.functional import normalize

from mixfluence.build import stage_recipe
from mixfluence.data.formats import read_task
from mixfluence.data.retrieval import RetrievalSet, scoring_samples
from mixfluence.data.tokens import TokenTable
from mixfluence.embedding import TextEncoder, computes_in_bfloat16, float32_products
from mixfluence.encoders import is_linear, kind_of, load_encoder
from mixfluence.errors import DataError, RecipeError
from mixfluence.evaluation.retrieval import evaluate, rank_embeddings, score_task, tokenised_sides
from mixfluence.files import write_text
from mixfluence.policy import Vector
from mixfluence.policy.initial import read_weights, write_weights
from mixfluence.recipe import differing, flat
from mixfluence.runs import (
    CHECKPOINTS_FOLDER,
    MEASURE,
    MODEL_FOLDER,
    RECORD_FILE,
    TRACE_FILE,
    WEIGHTS_FILE,
    Run,
    read_record,
    read_run_recipe,
    read_trace,
    run_labels,
)

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe
    from mixfluence.strategies import Merge, Stage

logger = logging.getLogger(__name__)

# Name of the model that all others were trained from.
START = "start"


class Merger:
    """Sets the parameters of a model to weighted sums of its own and those of other models.

    All are kept on the model's device if they take less than half of what is free there, else in CPU memory. With a
    weight of one the parameters are exactly those of that model.

    Args:
        model: The start, which is changed in place.
        folders: Models trained from it.
    """

    def __init__(self, model: BaseModel, folders: Sequence[Path]) -> None:
        self.model, self.models = model, 1 + len(folders)
        start = _parameters(model)
        size, device = self.models * sum(tensor.nbytes for tensor in start.values()), model.device
        fits = device.type == "cuda" and 2 * size < torch.cuda.mem_get_info(device)[0]
        place = device if fits else torch.device("cpu")
        self._stacks = {name: t.new_empty((self.models, *t.shape), device=place) for name, t in start.items()}
        self._keep(0, start)
        for number, folder in enumerate(folders, 1):
            own = _parameters(load_encoder(str(folder), kind=kind_of(model), device="cpu"))
            if {name: tensor.shape for name, tensor in own.items()} != {name: t.shape for name, t in start.items()}:
                raise DataError(f"{folder}: cannot be merged, its parameters differ from those of the start in shape")
            self._keep(number, own)

    @torch.no_grad()
    def merge(self, weights: Iterable[float]) -> BaseModel:
        """Return the model after setting it to a weighted sum, the start first."""
        shares = torch.tensor(list(weights))
        with float32_products("ieee"):
            for name, tensor in _parameters(self.model).items():
                stack = self._stacks[name]
                tensor.copy_(torch.tensordot(shares.to(stack), stack, dims=1))
        return self.model

    def _keep(self, number: int, parameters: Mapping[str, Tensor]) -> None:
        for name, tensor in parameters.items():
            self._stacks[name][number].copy_(tensor)


class DevScorer:
    """Scores a model on dev tasks again and again, as its parameters change; a dense one tokenises them once.

    Runs in bfloat16 on GPUs that support it, as clustering does: scores are only compared with each other.
    """

    def __init__(self, model: BaseModel, tasks: Sequence[RetrievalSet], batch_size: int) -> None:
        self._model, self._tasks, self._batch_size = model, tasks, batch_size
        self._half = computes_in_bfloat16(model.device)
        self._texts: list[tuple[TextEncoder, TokenTable]] | None = None
        if isinstance(model, SentenceTransformer):
            self._texts = [side for task in tasks for side in tokenised_sides(model, task)]

    def scores(self) -> dict[str, float]:
        """Return NDCG@10 by dev set."""
        if self._texts is not None:
            return self.score(self.encode(unit=True))
        with self._precision():
            scored = [evaluate(self._model, task, batch_size=self._batch_size, k=10) for task in self._tasks]
        return {evaluation.dataset: evaluation.mean(MEASURE) for evaluation in scored}

    def encode(self, *, unit: bool) -> list[Tensor]:
        """Return vectors, of unit length or as they are, of queries and passages of each task; for a dense model."""
        assert self._texts is not None
        with self._precision():
            return [encoder.encode(texts, batch_size=self._batch_size, unit=unit) for encoder, texts in self._texts]

    def score(self, vectors: Sequence[Tensor]) -> dict[str, float]:
        """Return NDCG@10 by dev set, given unit vectors in the order of `encode`."""
        pairs = zip(self._tasks, vectors[::2], vectors[1::2], strict=True)
        return {
            task.name: score_task(task, rank_embeddings(task, queries, passages, k=10)).mean(MEASURE)
            for task, queries, passages in pairs
        }

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._half)


def merge_scorer(merger: Merger, scorer: DevScorer) -> Callable[[Vector], dict[str, float]]:
    """Return a function from weights of the models to the scores of the merged model.

    The vectors of a static embedding are linear in its parameters: each model encodes the texts once, and merges add
    vectors.
    """
    if not is_linear(merger.model):

        def encode_merged(weights: Vector) -> dict[str, float]:
            merger.merge(weights.tolist())
            return scorer.scores()

        return encode_merged
    encoded: list[list[Tensor]] = []
    for alone in np.eye(merger.models).tolist():
        merger.merge(alone)
        encoded.append(scorer.encode(unit=False))
    stacks = [torch.stack(vectors) for vectors in zip(*encoded, strict=True)]

    def add_encoded(weights: Vector) -> dict[str, float]:
        shares = torch.from_numpy(weights)
        return scorer.score([normalize(torch.tensordot(shares.to(s), s, dims=1), dim=-1) for s in stacks])

    return add_encoded


@dataclass(frozen=True)
class Merged:
    """The best merge of a search.

    Attributes:
        weights: Of the start and of each model, by name.
        mixture: Weights of the datasets that the merge stands for.
        score: Mean NDCG@10 over the dev sets.
        step: Number of its evaluation.
        evaluations: How many merges were scored.
        note: A sentence with its weights and score, beside those of the start and of all models evenly.
    """

    weights: dict[str, float]
    mixture: dict[str, float]
    score: float
    step: int
    evaluations: int
    note: str


class MergeSearch:
    """Scores merged models, each once, and writes them to a trace like that of a training run.

    Every line has the evaluation as `step`, the `weights` of the datasets that the merge stands for, and in `update`
    the weights of the `merged` models and NDCG@10 by `dev` set; a last line has the weights of the best. Given the
    trace of an interrupted search it repeats no evaluation, because the search asks for the same weights again.

    Args:
        mixtures: The mixture that each model was trained on, by the name of the model.
        scorer: Returns scores by dev set, given weights of the start and the models; see `merge_scorer`.
        path: The trace; its first line describes the `datasets`.
    """

    def __init__(
        self,
        mixtures: Mapping[str, Mapping[str, float]],
        scorer: Callable[[Vector], dict[str, float]],
        path: Path,
        datasets: Mapping[str, Any],
    ) -> None:
        self._mixtures, self._scorer, self._path = mixtures, scorer, path
        self._names, self._datasets = [START, *mixtures], list(datasets)
        updates = [line["update"] for line in read_trace(path) if "update" in line] if path.exists() else []
        self._known = {tuple(update["merged"].values()): update for update in updates}
        self._seconds = 0.0
        self._scores: dict[tuple[float, ...], float] = {}
        write_text(path, json.dumps({"step": 0, "seconds": 0.0, "datasets": dict(datasets)}) + "\n")

    def run(self, search: Callable[[Callable[[Vector], float], int], object]) -> Merged:
        """Let a function search, given what it maximises and the number of models beside the start."""
        search(self._score, len(self._mixtures))
        best, score = max(self._scores.items(), key=lambda item: item[1])
        self._write(np.array(best), {})
        step, mixture = list(self._scores).index(best) + 1, self._mixture(np.array(best))
        weights = dict(zip(self._names, best, strict=True))
        shown = ", ".join(f"{name} {weight:.3f}" for name, weight in weights.items() if weight)
        count = len(self._mixtures)
        special = {"start": (1.0, *[0.0] * count), "all evenly": (0.0, *[1 / count] * count)}
        known = [f"{name} {self._scores[own]:.4f}" for name, own in special.items() if own in self._scores]
        # A soup of finished runs has no dev sets.
        scores = f": dev NDCG@10 {', '.join([f'{score:.4f}', *known])}" if score else ""
        note = f"merged by weights of {shown}{scores}"
        logger.info("%s", note)
        return Merged(weights, mixture, score, step, len(self._scores), note)

    def _score(self, weights: Vector) -> float:
        key = tuple(weights.tolist())
        if key not in self._scores:
            update = self._known.get(key) or self._measure(weights)
            self._scores[key] = fmean(update["dev"].values()) if update["dev"] else 0.0
            self._seconds += update["seconds"]
            self._write(weights, {"update": update})
        return self._scores[key]

    def _write(self, weights: Vector, facts: Mapping[str, Any]) -> None:
        now = {"step": len(self._scores), "seconds": round(self._seconds, 4), "weights": self._mixture(weights)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(now | dict(facts)) + "\n")

    def _measure(self, weights: Vector) -> dict[str, Any]:
        started = perf_counter()
        scores = self._scorer(weights)
        cost = {"seconds": round(perf_counter() - started, 4), "memory": 0.0, "failed": []}
        return cost | {"merged": dict(zip(self._names, weights.tolist(), strict=True)), "dev": scores}

    def _mixture(self, weights: Vector) -> dict[str, float]:
        # An expert of an earlier run may have been trained beside other datasets.
        found = merged_mixture(weights, list(self._mixtures.values()))
        return {name: found.get(name, 0.0) for name in self._datasets}


def merged_mixture(weights: Vector, mixtures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mixture of datasets that weights of the start and of models trained on mixtures stand for.

    The start was trained on none of them, so the rest is scaled up; a merge of the start alone stands for their mean.
    """
    shares = weights[1:] if weights[1:].any() else np.ones(len(mixtures))
    total: dict[str, float] = {}
    for share, mixture in zip((shares / shares.sum()).tolist(), mixtures, strict=True):
        for name, weight in mixture.items():
            total[name] = total.get(name, 0.0) + share * weight
    return total


def merge_runs(runs: Sequence[Run], strategy: Merge, recipe: Recipe, folder: Path) -> Merged:
    """Merge the models of finished runs with the same start, and write the model and its mixture into a folder.

    Args:
        runs: The runs; their labels are the names of their folders.
        strategy: How weights are found.
        recipe: Names the start and the dev sets on which merges are scored; a soup is not scored.
        folder: Where the model, `weights.json` and the trace of the search are written.
    """
    for run in runs:
        if not run.weights:
            raise DataError(f"{run.path}: not a finished training run")
        if run.recipe.model != recipe.model:
            raise DataError(f"{run.path}: started from {run.recipe.model.name}, not from {recipe.model.name}")
    names = run_labels([run.path for run in runs])
    tasks = [] if strategy.soup else [read_task(name, source) for name, source in recipe.dev.items()]
    tasks = scoring_samples(tasks, strategy.scoring, halves=recipe.halves)
    merger = Merger(load_encoder(**recipe.model.model_dump()), [run.path / MODEL_FOLDER for run in runs])
    scorer = DevScorer(merger.model, tasks, recipe.evaluation.batch_size)
    datasets = {name: facts for run in runs for name, facts in run.record["datasets"].items()}
    mixtures = {name: run.weights for name, run in zip(names, runs, strict=True)}
    search = MergeSearch(mixtures, merge_scorer(merger, scorer), folder / TRACE_FILE, datasets)
    found = search.run(strategy.merge_weights)
    merger.merge(found.weights.values()).save_pretrained(str(folder / MODEL_FOLDER))
    write_weights(folder / WEIGHTS_FILE, found.mixture)
    return found


def check_reuse(recipe: Recipe, stages: Iterable[Stage]) -> None:
    """Refuse finished stages of an earlier run that were trained in another way, and a run that has none of them."""
    earlier = {stage: stage.reuse for stage in stages if stage.reuse}
    if earlier and not any(stage.reused for stage in earlier):
        run = next(iter(earlier.values())).parents[1]
        raise RecipeError(f"{run}: has no finished {' or '.join(stage.name for stage in earlier)} to be used again")
    for stage, folder in earlier.items():
        if not stage.reused:
            continue
        drawn = {name for name, weight in read_weights(folder / WEIGHTS_FILE).items() if weight}
        before, now = (_settings(own, stage, drawn) for own in (read_run_recipe(folder.parents[1]), recipe))
        before["training.steps"] = read_record(folder / RECORD_FILE)["steps"]
        if different := differing(before, now):
            raise RecipeError(f"{folder}: cannot be used again, because it had another {', '.join(different)}")


def _settings(recipe: Recipe, stage: Stage, drawn: Collection[str]) -> dict[str, Any]:
    """Return what the model of a stage that draws some datasets depends on, by dotted key."""
    sections = {"model", "seed", "test", "overlap", "select", "training", *(["dev"] if recipe.select else [])}
    # How often a stage logs or saves does not change its model.
    free = {"training": {"log_every", "save_every"}}
    own = stage_recipe(recipe, stage).model_dump(include=sections, exclude=free)
    sources = {name: source.model_dump() for name, source in recipe.train.items() if name in drawn}
    return flat(own | {"train": sources})


def copy_stage(earlier: Path, folder: Path) -> None:
    """Copy a finished stage of an earlier run into a folder."""
    shutil.copytree(earlier, folder, ignore=ignore_patterns(CHECKPOINTS_FOLDER, RECORD_FILE), dirs_exist_ok=True)
    # Last, because it marks the stage as finished.
    shutil.copy(earlier / RECORD_FILE, folder / RECORD_FILE)


def _parameters(model: BaseModel) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
