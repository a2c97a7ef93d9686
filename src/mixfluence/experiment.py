"""One run, top to bottom: files -> mixture -> training -> test scores -> a folder that says it all.

A run folder holds `recipe.yaml` (resolved), `trace.jsonl`, `checkpoints/`, `model/` (loadable by plain
sentence-transformers), `eval/<dataset>.jsonl` per query, `dev/<dataset>.jsonl` (how dev queries fared, with their
texts), `weights.json` and `record.json`, which comes last. Training rows that were dropped for asking a test query are
listed in `overlap.jsonl`. A method of several runs keeps the earlier ones in `stages/`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback

from mixfluence.assembly import check_host, read_guides, read_rows, read_task, reading_notes
from mixfluence.clustering import partition
from mixfluence.config.samplers import CrispSection
from mixfluence.data.mixture import Mixture
from mixfluence.data.overlap import Overlap, without_overlap
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet
from mixfluence.data.weights import write_weights
from mixfluence.encoders import load_encoder
from mixfluence.errors import RecipeError
from mixfluence.evaluation import Evaluation, score_run, write_evaluation
from mixfluence.evaluation.bm25 import bm25_run
from mixfluence.evaluation.dev_ranks import look_at_dev
from mixfluence.evaluation.retrieval import evaluate
from mixfluence.files import write_text
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import dump_recipe, load_recipe
from mixfluence.runs import (
    DEV_FOLDER,
    EVAL_FOLDER,
    OVERLAP_FILE,
    RECIPE_FILE,
    RECORD_FILE,
    WEIGHTS_FILE,
    Stopwatch,
    versions,
    write_record,
)
from mixfluence.stage_run import Pool, StageRun
from mixfluence.stages import build_stages
from mixfluence.training.checkpoints import step_of
from mixfluence.training.trainer import MixtureTrainer

logger = logging.getLogger(__name__)


def run(
    recipe: Recipe,
    *,
    resume: bool = False,
    show_progress: bool = False,
    callbacks: list[TrainerCallback] | None = None,
) -> dict[str, Evaluation]:
    """Train and test as a recipe says.

    Args:
        recipe: What to do.
        resume: Go on with the run in the output folder, from its last checkpoint.
        show_progress: Show the encoder's progress bars.
        callbacks: Further callbacks of the host's trainer, such as a progress display.

    Returns:
        Scores of every test set. On several processes the first one tests and writes; the others get none.

    Raises:
        RecipeError: If the output folder holds another run, or the same one and `resume` is off; if the environment
            or an argument of `training.host` lets no training start.
    """
    folder = recipe.output
    _refuse_taken_folder(folder, recipe, resume)
    check_host(recipe)
    watch = Stopwatch()
    sizes = len(recipe.train), len(recipe.dev), len(recipe.test)
    logger.info("%s: reading %d training sets, %d dev sets, %d test sets", recipe.name, *sizes)
    with watch("data"):
        tasks = {name: read_task(name, source) for name, source in recipe.test.items()}
        mixture, overlaps = _read_mixture(recipe, tasks)
        guides = read_guides(recipe)
    pool, shares = _divide(recipe, mixture, guides, watch)

    def ready() -> None:
        # Only now: a run that could not start must not stand in the way of its second try.
        if PartialState().is_main_process:
            write_text(folder / RECIPE_FILE, dump_recipe(recipe))
            _list_dropped_rows(folder, overlaps)

    *before, last = build_stages(recipe)
    stages = {}
    for stage in before:
        stages[stage.name] = StageRun(recipe, stage, pool, callbacks or []).find_mixture(ready, resume=resume)
        pool = replace(pool, found=stages[stage.name]["found"])
    final = StageRun(recipe, last, pool, callbacks or [])
    trainer = final.train(ready, resume=resume)
    if not trainer.is_world_process_zero():
        return {}
    write_weights(folder / WEIGHTS_FILE, shares(trainer.outcome() or trainer.probabilities()))
    prompts = {name: (source.query_prompt, source.passage_prompt) for name, source in recipe.dev.items()}
    with watch("evaluate"):
        look_at_dev(trainer.model, guides, prompts, folder / DEV_FOLDER, batch_size=recipe.evaluation.batch_size)
        scores = evaluate_tasks(trainer.model, tasks, recipe, folder / EVAL_FOLDER, show_progress=show_progress)
        if recipe.evaluation.bm25:
            evaluate_bm25(tasks, folder / "eval-bm25")
    seconds = watch.seconds | final.watch.seconds
    seconds |= {f"stage {name}": sum(record["seconds"].values()) for name, record in stages.items()}
    facts = {
        "notes": reading_notes(mixture, guides, tasks),
        "overlap_dropped": {overlap.dataset: len(overlap.rows) for overlap in overlaps},
        "probing": {name: final.probing[name] for name in ("rounds", "failed", "parameter_sizes")},
        "stages": stages,
        "tests": {name: _describe_task(task) for name, task in tasks.items()},
    }
    _write_record(folder, recipe, trainer, facts, seconds, scores)
    return scores


def evaluate_tasks(
    model: SentenceTransformer,
    tasks: Mapping[str, RetrievalSet],
    recipe: Recipe,
    folder: Path | None = None,
    *,
    show_progress: bool = False,
) -> dict[str, Evaluation]:
    """Score a model on retrieval tasks and, given a folder, write the per-query scores there."""
    scores = {}
    for name, task in tasks.items():
        logger.info("testing on %s: %d queries, %d passages", name, len(task.queries), len(task.docs))
        scores[name] = evaluate(model, task, batch_size=recipe.evaluation.batch_size, show_progress=show_progress)
        if folder:
            write_evaluation(scores[name], folder)
    return scores


def evaluate_bm25(tasks: Mapping[str, RetrievalSet], folder: Path | None = None) -> dict[str, Evaluation]:
    """Score BM25 on retrieval tasks: the row every table of dense retrievers should have."""
    scores = {}
    for name, task in tasks.items():
        found = bm25_run(task, 100)
        scores[name] = Evaluation(name, score_run(found, task.qrels, task.query_ids))
        if folder:
            write_evaluation(scores[name], folder)
    return scores


def _refuse_taken_folder(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Make sure that the output can be written and holds no run, or this one if it is to be resumed."""
    path = folder / RECIPE_FILE
    if path.exists():
        if not resume:
            raise RecipeError(f"{folder}: holds a run already; resume it with --resume or choose another output")
        if load_recipe(path, files_may_be_missing=True) != recipe:
            raise RecipeError(f"{path}: the run was started with another recipe, which cannot be changed midway")
        if (folder / RECORD_FILE).exists():
            raise RecipeError(f"{folder}: the run is finished, nothing to resume")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecipeError(f"{folder}: cannot be written ({error.strerror})") from error


def _read_mixture(recipe: Recipe, tasks: Mapping[str, RetrievalSet]) -> tuple[Mixture, list[Overlap]]:
    mixture = Mixture({name: read_rows(source) for name, source in recipe.train.items()})
    queries = {name: task.queries for name, task in tasks.items()}
    mixture, overlaps = without_overlap(mixture, queries, recipe.overlap)
    for note in (note for rows in mixture.values() for note in rows.notes):
        logger.warning("%s", note)
    for overlap in overlaps:
        logger.warning("%s: dropped, see %s", overlap, OVERLAP_FILE)
    return mixture, overlaps


def _list_dropped_rows(folder: Path, overlaps: list[Overlap]) -> None:
    lines = [
        json.dumps({"dataset": overlap.dataset, "row": row, "anchor": anchor}) + "\n"
        for overlap in overlaps
        for row, anchor in zip(overlap.rows, overlap.anchors, strict=True)
    ]
    if lines:
        write_text(folder / OVERLAP_FILE, "".join(lines))


def _divide(
    recipe: Recipe, mixture: Mixture, guides: Mapping[str, RowSet], watch: Stopwatch
) -> tuple[Pool, Callable[[Mapping[str, float]], dict[str, float]]]:
    """Return what to draw from, and how probabilities of it become shares of the datasets."""
    section = recipe.strategy
    if not isinstance(section, CrispSection):
        return Pool(mixture, {name: name for name in mixture}, guides), dict
    logger.info("%s: clustering %d rows", recipe.name, sum(mixture.sizes.values()))
    processes = PartialState()
    with watch("cluster"), processes.main_process_first():
        found = partition(
            mixture,
            guides,
            load_encoder(section.encoder),
            **section.model_dump(exclude={"name", "encoder", "max_epochs"}),
            least_rows=recipe.training.batch_size * processes.num_processes,
            seed=recipe.seed,
        )
    # Clusters of several datasets are of datasets with the same prompts; a recipe that has others was refused.
    sources = {cluster: dataset or next(iter(recipe.train)) for cluster, dataset in found.sources.items()}
    return Pool(found.mixture, sources, guides, found.weights), found.shares


def _describe_task(task: RetrievalSet) -> dict[str, Any]:
    return {"queries": len(task.queries), "passages": len(task.docs), "fingerprint": task.fingerprint}


def _write_record(
    folder: Path,
    recipe: Recipe,
    trainer: MixtureTrainer,
    facts: Mapping[str, Any],
    seconds: Mapping[str, float],
    scores: Mapping[str, Evaluation],
) -> None:
    gpus = trainer.args.world_size if trainer.args.device.type == "cuda" else 0
    best = trainer.state.best_model_checkpoint
    record: dict[str, Any] = {
        "name": recipe.name,
        "seed": recipe.seed,
        "versions": versions(),
        "device": str(trainer.args.device),
        "datasets": {
            name: facts | {"fingerprint": trainer.mixture[name].fingerprint}
            for name, facts in trainer.describe_datasets().items()
        },
        "rows_drawn": dict(zip(trainer.mixture, trainer.sampler.rows_drawn.tolist(), strict=True)),
        "steps": trainer.state.global_step,
        "selected_step": step_of(best) if best else trainer.state.global_step,
        **facts,
        "seconds": seconds,
        "gpu_hours": {part: spent * gpus / 3600 for part, spent in seconds.items()},
        "scores": {name: evaluation.summary() for name, evaluation in scores.items()},
    }
    write_record(folder / RECORD_FILE, record)
