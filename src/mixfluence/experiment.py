"""One run, top to bottom: files -> mixture -> training -> test scores -> a folder that says it all.

A run folder holds `recipe.yaml` (resolved), `trace.jsonl`, `checkpoints/`, `model/` (loadable by plain
sentence-transformers), `eval/<dataset>.jsonl` per query, `weights.json` and `record.json`, which comes last. Training
rows that were dropped for asking a test query are listed in `overlap.jsonl`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from transformers import ProgressCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from mixfluence.assembly import (
    build_model,
    build_strategy,
    read_guides,
    read_rows,
    read_selection_tasks,
    read_task,
    training_arguments,
)
from mixfluence.atomic import write_text
from mixfluence.config.files import dump_recipe, load_recipe
from mixfluence.config.recipe import Recipe
from mixfluence.data.mixture import Mixture
from mixfluence.data.overlap import Overlap, without_overlap
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.weights import write_weights
from mixfluence.errors import RecipeError
from mixfluence.evaluation import DevEvaluator, Evaluation, bm25_run, evaluate, score_run, write_evaluation
from mixfluence.record import Stopwatch, versions
from mixfluence.training.losses import info_nce
from mixfluence.training.trace import probing_cost, seconds_until
from mixfluence.training.trainer import MixtureTrainer

logger = logging.getLogger(__name__)
RECIPE_FILE, RECORD_FILE, WEIGHTS_FILE = "recipe.yaml", "record.json", "weights.json"
TRACE_FILE, OVERLAP_FILE = "trace.jsonl", "overlap.jsonl"


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
        Scores of every test set.

    Raises:
        RecipeError: If the output folder holds another run, or the same one and `resume` is off.
    """
    folder = recipe.output
    _refuse_taken_folder(folder, recipe, resume)
    watch = Stopwatch()
    sizes = len(recipe.train), len(recipe.dev), len(recipe.test)
    logger.info("%s: reading %d training sets, %d dev sets, %d test sets", recipe.name, *sizes)
    with watch("data"):
        tasks = {name: read_task(name, source) for name, source in recipe.test.items()}
        mixture, overlaps = _read_mixture(recipe, tasks)
    model = build_model(recipe.model)
    trainer = _build_trainer(recipe, mixture, model, callbacks or [])
    with watch("tokenise"):
        _ = trainer.tokenised
    # Only now: a run that could not start must not stand in the way of its second try.
    write_text(folder / RECIPE_FILE, dump_recipe(recipe))
    _list_dropped_rows(folder, overlaps)
    checkpoint = get_last_checkpoint(trainer.args.output_dir) if resume else None
    if checkpoint:
        watch.seconds["train"] = seconds_until(folder / TRACE_FILE, _step_of(checkpoint))
    with watch("train"):
        trainer.train(resume_from_checkpoint=checkpoint)
    probing = probing_cost(folder / TRACE_FILE)
    watch.seconds["probe"] = probing["seconds"]
    watch.seconds["train"] -= probing["seconds"]
    if probing["rounds"]:
        logger.info(
            "%d rounds of probes took %.0f s beside %.0f s of training, and memory for %.1f times the parameters",
            *(probing["rounds"], probing["seconds"], watch.seconds["train"], probing["parameter_sizes"]),
        )
    _save_model(trainer, folder)
    with watch("evaluate"):
        scores = evaluate_tasks(model, tasks, recipe, folder / "eval", show_progress=show_progress)
        if recipe.evaluation.bm25:
            evaluate_bm25(tasks, folder / "eval-bm25")
    _write_record(folder, recipe, trainer, watch, overlaps, scores, probing)
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


def _step_of(checkpoint: str) -> int:
    return int(checkpoint.rsplit("-", 1)[1])


def _build_trainer(
    recipe: Recipe, mixture: Mixture, model: SentenceTransformer, callbacks: list[TrainerCallback]
) -> MixtureTrainer:
    training = recipe.training
    tasks = read_selection_tasks(recipe)
    args = training_arguments(recipe, model)
    trainer = MixtureTrainer(
        model=model,
        args=args,
        train_dataset=mixture,
        dev_dataset=read_guides(recipe),
        strategy=build_strategy(recipe),
        loss=info_nce(
            model,
            training.temperature,
            mini_batch_size=training.mini_batch_size,
            gather_across_devices=training.cross_device_negatives and args.world_size > 1,
        ),
        num_negatives=training.hard_negatives,
        evaluator=DevEvaluator(tasks, batch_size=recipe.evaluation.batch_size) if tasks else None,
        trace_path=recipe.output / TRACE_FILE,
        callbacks=callbacks,
    )
    # It prints every log as a dictionary, our probabilities included; `callbacks` may bring a calmer display.
    trainer.remove_callback(ProgressCallback)
    return trainer


def _save_model(trainer: MixtureTrainer, folder: Path) -> None:
    trainer.save_model(str(folder / "model"))
    # A pickle of the host's arguments, which nobody should have to unpickle: recipe.yaml says the same.
    (folder / "model" / "training_args.bin").unlink(missing_ok=True)
    write_weights(folder / WEIGHTS_FILE, trainer.probabilities())


def _write_record(
    folder: Path,
    recipe: Recipe,
    trainer: MixtureTrainer,
    watch: Stopwatch,
    overlaps: list[Overlap],
    scores: Mapping[str, Evaluation],
    probing: Mapping[str, float],
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
        "overlap_dropped": {overlap.dataset: len(overlap.rows) for overlap in overlaps},
        "steps": trainer.state.global_step,
        "selected_step": _step_of(best) if best else trainer.state.global_step,
        "probing": {name: probing[name] for name in ("rounds", "parameter_sizes")},
        "seconds": watch.seconds,
        "gpu_hours": {part: seconds * gpus / 3600 for part, seconds in watch.seconds.items()},
        "scores": {name: evaluation.summary() for name, evaluation in scores.items()},
    }
    write_text(folder / RECORD_FILE, json.dumps(record, indent=1) + "\n")
