"""One run from start to end: read data, divide it, train each stage, test, record.

docs/ARCHITECTURE.md lists the files of a run folder.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback

from mixfluence import runs
from mixfluence.build import build_trainer, check_training_arguments, stage_folder
from mixfluence.data.formats import reading_notes
from mixfluence.data.mixture import Overlap
from mixfluence.data.preview import preview
from mixfluence.data.reading import Data, read_data
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import RecipeError
from mixfluence.evaluation import Evaluation, score_rankings, write_evaluation
from mixfluence.evaluation.dev_queries import rank_dev_sets
from mixfluence.evaluation.retrieval import evaluate, rank_bm25
from mixfluence.files import write_text
from mixfluence.policy.initial import read_weights, write_weights
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import dump_recipe, load_recipe
from mixfluence.strategies import Stage
from mixfluence.training.callback import probing_cost
from mixfluence.training.checkpoints import LATEST, step_of, writing
from mixfluence.training.trainer import MixtureTrainer

logger = logging.getLogger(__name__)


class Trained(NamedTuple):
    """A trained stage: its trainer, seconds by part, and the cost of its probes."""

    trainer: MixtureTrainer
    seconds: dict[str, float]
    probing: dict[str, float]


def run(
    recipe: Recipe,
    *,
    resume: bool = False,
    show_progress: bool = False,
    callbacks: list[TrainerCallback] | None = None,
) -> dict[str, Evaluation]:
    """Train and test as a recipe says, write the run folder, and return the scores of every test set.

    With several processes the first one tests and writes; the others return nothing. `resume` continues the run in the
    output folder from its last checkpoint.
    """
    folder = recipe.output
    _refuse_taken_folder(folder, recipe, resume=resume)
    check_training_arguments(recipe)
    for doubt in recipe.doubts():
        logger.warning("%s", doubt)
    watch = runs.Stopwatch()
    with watch("data"):
        data = read_data(recipe)
        for line in (line for name, rows in data.train.items() for line in preview(name, rows)):
            logger.info("%s", line)
    pool, dataset_shares = _divide(recipe, data, watch)
    *searches, final = recipe.strategy.stages(recipe)
    records: dict[str, dict[str, Any]] = {}
    for stage in searches:
        if not (resume and (stage_folder(folder, stage.name) / runs.RECORD_FILE).exists()):
            logger.info("%s: stage %s, %d steps", recipe.name, stage.name, stage.steps)
            _record_stage(stage, _train(recipe, stage, pool, callbacks or [], resume=resume), folder)
        records[stage.name] = _read_stage(stage_folder(folder, stage.name))
        pool = replace(pool, found=records[stage.name]["found"])
    trained = _train(recipe, final, pool, callbacks or [], resume=resume)
    trainer = trained.trainer
    if not trainer.is_world_process_zero():
        return {}
    write_weights(folder / runs.WEIGHTS_FILE, dataset_shares(trainer.outcome() or trainer.probabilities()))
    with watch("evaluate"):
        scores = _test(recipe, trainer.model, data, show_progress=show_progress)
    seconds = watch.seconds | trained.seconds
    seconds |= {f"stage {name}": sum(record["seconds"].values()) for name, record in records.items()}
    _write_record(recipe, data, trained, records, seconds, scores)
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
        scores[name] = Evaluation(name, score_rankings(rank_bm25(task, 100), task.qrels, task.query_ids))
        if folder:
            write_evaluation(scores[name], folder)
    return scores


def _refuse_taken_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """Make sure that the output can be written and holds no started run, or this one if it is resumed."""
    path = folder / runs.RECIPE_FILE
    if resume and path.exists() and load_recipe(path, files_may_be_missing=True) != recipe:
        raise RecipeError(f"{path}: the run was started with another recipe, which cannot be changed midway")
    if resume and (folder / runs.RECORD_FILE).exists():
        raise RecipeError(f"{folder}: the run is finished, nothing to resume")
    # A recipe alone is left by a run that could not start, which may be tried again.
    started = (runs.TRACE_FILE, runs.STAGES_FOLDER, runs.RECORD_FILE)
    if not resume and any((folder / name).exists() for name in started):
        raise RecipeError(f"{folder}: already holds a run; resume it with --resume or choose another output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecipeError(f"{folder}: cannot be written ({error.strerror})") from error


def _divide(
    recipe: Recipe, data: Data, watch: runs.Stopwatch
) -> tuple[Data, Callable[[Mapping[str, float]], dict[str, float]]]:
    """Return the data to sample from, and a function from its probabilities to shares of the datasets."""
    strategy = recipe.strategy
    if not strategy.clusters:
        return data, dict
    processes = PartialState()
    with watch("cluster"), processes.main_process_first():
        least_rows = recipe.training.batch_size * processes.num_processes
        found = strategy.divide(data.train, data.dev, model=recipe.model, least_rows=least_rows, seed=recipe.seed)
    # A cluster of several datasets has their common prompts; the recipe was checked for that.
    sources = {cluster: dataset or next(iter(recipe.train)) for cluster, dataset in found.sources.items()}
    return replace(data, train=found.mixture, sources=sources, found=found.weights), found.shares


def _train(recipe: Recipe, stage: Stage, data: Data, callbacks: list[TrainerCallback], *, resume: bool) -> Trained:
    """Train a stage to its end and save its model."""
    folder, watch = stage_folder(recipe.output, stage.name), runs.Stopwatch()
    trainer = build_trainer(recipe, stage, data, callbacks)
    with watch("tokenise"):
        _ = trainer.tokenised
    if trainer.is_world_process_zero():
        write_text(recipe.output / runs.RECIPE_FILE, dump_recipe(recipe))
        _list_dropped_rows(recipe.output, data.overlaps)
    with watch("train"):
        trainer.train(resume_from_checkpoint=LATEST if resume else None)
    probing = probing_cost(folder / runs.TRACE_FILE)
    watch.seconds["probe"] = probing["seconds"]
    watch.seconds["train"] += trainer.seconds_before - probing["seconds"]
    if probing["rounds"]:
        logger.info(
            "%d rounds of probes took %.0f s beside %.0f s of training, and memory for %.1f times the parameters",
            *(probing["rounds"], probing["seconds"], watch.seconds["train"], probing["parameter_sizes"]),
        )
    with writing(folder / runs.MODEL_FOLDER):
        trainer.save_model(str(folder / runs.MODEL_FOLDER))
    if trainer.is_world_process_zero():
        # A pickle that nobody should have to load: recipe.yaml has the same settings.
        (folder / runs.MODEL_FOLDER / "training_args.bin").unlink(missing_ok=True)
    return Trained(trainer, watch.seconds, probing)


def _list_dropped_rows(folder: Path, overlaps: list[Overlap]) -> None:
    lines = [
        json.dumps({"dataset": overlap.dataset, "row": row, "anchor": anchor}) + "\n"
        for overlap in overlaps
        for row, anchor in zip(overlap.rows, overlap.anchors, strict=True)
    ]
    if lines:
        write_text(folder / runs.OVERLAP_FILE, "".join(lines))


def _record_stage(stage: Stage, trained: Trained, output: Path) -> None:
    """Write the mixture that a stage has found and its cost."""
    folder, trainer = stage_folder(output, stage.name), trained.trainer
    if trainer.is_world_process_zero():
        write_weights(folder / runs.WEIGHTS_FILE, trainer.outcome() or trainer.probabilities())
        facts = {"steps": stage.steps, "probing": trained.probing, "seconds": trained.seconds}
        runs.write_record(folder / runs.RECORD_FILE, facts, kind="stage")
    # The other processes read what the first has written.
    trainer.accelerator.wait_for_everyone()


def _read_stage(folder: Path) -> dict[str, Any]:
    record = runs.read_record(folder / runs.RECORD_FILE)
    facts = {name: record[name] for name in ("steps", "probing", "seconds")}
    return facts | {"found": read_weights(folder / runs.WEIGHTS_FILE)}


def _test(recipe: Recipe, model: SentenceTransformer, data: Data, *, show_progress: bool) -> dict[str, Evaluation]:
    """Write the results of dev queries and score the test sets."""
    folder, batch_size = recipe.output, recipe.evaluation.batch_size
    prompts = {name: (source.query_prompt, source.passage_prompt) for name, source in recipe.dev.items()}
    rank_dev_sets(model, data.dev, prompts, folder / runs.DEV_FOLDER, batch_size=batch_size)
    scores = evaluate_tasks(model, data.test, recipe, folder / runs.EVAL_FOLDER, show_progress=show_progress)
    if recipe.evaluation.bm25:
        evaluate_bm25(data.test, folder / "eval-bm25")
    return scores


def _write_record(
    recipe: Recipe,
    data: Data,
    trained: Trained,
    stages: Mapping[str, Any],
    seconds: Mapping[str, float],
    scores: Mapping[str, Evaluation],
) -> None:
    trainer = trained.trainer
    gpus = trainer.args.world_size if trainer.args.device.type == "cuda" else 0
    best = trainer.state.best_model_checkpoint
    record = {
        "name": recipe.name,
        "seed": recipe.seed,
        "versions": runs.versions(),
        "device": str(trainer.args.device),
        "datasets": {
            name: facts | {"fingerprint": trainer.mixture[name].fingerprint}
            for name, facts in trainer.describe_datasets().items()
        },
        "rows_drawn": dict(zip(trainer.mixture, trainer.sampler.rows_drawn.tolist(), strict=True)),
        "steps": trainer.state.global_step,
        "selected_step": step_of(best) if best else trainer.state.global_step,
        "notes": reading_notes(data.train, data.dev, data.test),
        "overlap_dropped": {overlap.dataset: len(overlap.rows) for overlap in data.overlaps},
        "probing": {name: trained.probing[name] for name in ("rounds", "failed", "parameter_sizes")},
        "stages": stages,
        "tests": {
            name: {"queries": len(task.queries), "passages": len(task.docs), "fingerprint": task.fingerprint}
            for name, task in data.test.items()
        },
        "seconds": seconds,
        "gpu_hours": {part: spent * gpus / 3600 for part, spent in seconds.items()},
        "scores": {name: evaluation.summary() for name, evaluation in scores.items()},
    }
    runs.write_record(recipe.output / runs.RECORD_FILE, record)
