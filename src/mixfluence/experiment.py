"""One run from start to end: read data, divide it, train each stage, test, record.

docs/ARCHITECTURE.md lists the files of a run folder.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback

from mixfluence import runs
from mixfluence.build import Data, build_trainer, check_training_arguments, stage_folder
from mixfluence.data.formats import read_rows, read_task, reading_notes
from mixfluence.data.mixture import Mixture, Overlap, without_overlap
from mixfluence.data.retrieval import RetrievalSet, guiding_half, selecting_half
from mixfluence.errors import RecipeError
from mixfluence.evaluation import Evaluation, score_rankings, write_evaluation
from mixfluence.evaluation.dev_queries import rank_dev_sets
from mixfluence.evaluation.retrieval import evaluate, rank_bm25
from mixfluence.files import write_text
from mixfluence.merging import DevScorer, Merged, Merger, MergeSearch, dev_samples, reuse_stage
from mixfluence.policy.initial import read_weights, write_weights
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import dump_recipe, load_recipe
from mixfluence.strategies import Stage, StageResult
from mixfluence.training.callback import probing_cost
from mixfluence.training.checkpoints import LATEST, step_of, writing
from mixfluence.training.trainer import MixtureTrainer

logger = logging.getLogger(__name__)


class Trained(NamedTuple):
    """A trained stage: its trainer, seconds by part, the cost of its probes, and the step of its model."""

    trainer: MixtureTrainer
    seconds: dict[str, float]
    probing: dict[str, float]
    selected_step: int


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
    watch = runs.Stopwatch()
    with watch("data"):
        data = read_data(recipe)
    pool, dataset_shares = _divide(recipe, data, watch)
    *searches, final = recipe.strategy.stages(recipe)
    records: dict[str, dict[str, Any]] = {}
    for stage in searches:
        _finish_stage(recipe, stage, pool, callbacks or [], resume=resume)
        records[stage.name] = _read_stage(stage_folder(folder, stage.name))
        pool = replace(pool, found=records[stage.name]["found"])
    notes: list[str] = []
    if records:
        results = {name: StageResult(record["found"], record["scores"]) for name, record in records.items()}
        training = recipe.training
        rows = final.steps * training.batch_size * training.gradient_accumulation * PartialState().num_processes
        concluded = [recipe.strategy.conclude(recipe, results, pool.train.sizes, rows)]
        # Processes on different machines may round differently.
        found, notes = broadcast_object_list(concluded)[0]
        pool = replace(pool, found=found)
    if final.merges:
        trained = _merge(recipe, final, pool, {name: record["found"] for name, record in records.items()})
    else:
        trained = _train(recipe, final, pool, callbacks or [], resume=resume)
    trainer = trained.trainer
    if not trainer.is_world_process_zero():
        return {}
    write_weights(folder / runs.WEIGHTS_FILE, dataset_shares(trainer.outcome() or trainer.probabilities()))
    with watch("evaluate"):
        scores = _test(recipe, trainer.model, data, show_progress=show_progress)
    seconds = watch.seconds | trained.seconds
    seconds |= {f"stage {name}": sum(record["seconds"].values()) for name, record in records.items()}
    _write_record(recipe, data, trained, records, seconds, scores, notes)
    return scores


def read_data(recipe: Recipe) -> Data:
    """Read training, dev and test data, and drop training rows that contain a test query."""
    sizes = len(recipe.train), len(recipe.dev), len(recipe.test)
    logger.info("%s: reading %d training sets, %d dev sets, %d test sets", recipe.name, *sizes)
    test = {name: read_task(name, source) for name, source in recipe.test.items()}
    train = Mixture({name: read_rows(source) for name, source in recipe.train.items()})
    train, overlaps = without_overlap(train, {name: task.queries for name, task in test.items()}, recipe.overlap)
    dev = {name: read_rows(source) for name, source in recipe.dev.items()}
    for note in (note for rows in (*train.values(), *dev.values()) for note in rows.notes):
        logger.warning("%s", note)
    for overlap in overlaps:
        logger.warning("%s: dropped, see %s", overlap, runs.OVERLAP_FILE)
    selection = []
    if recipe.selection:
        selection = [read_task(name, source) for name, source in recipe.dev.items()]
        if recipe.selection.dev == "halves":
            dev = {name: guiding_half(name, rows) for name, rows in dev.items()}
            selection = [selecting_half(task) for task in selection]
        selection = [task.sample_corpus(recipe.selection.corpus) for task in selection]
    samples = dev_samples(recipe, recipe.strategy.scoring) if recipe.strategy.scoring else []
    return Data(train, {name: name for name in train}, dev, selection, test, overlaps, samples)


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
        found = strategy.divide(data.train, data.dev, least_rows=least_rows, seed=recipe.seed)
    # A cluster of several datasets has their common prompts; the recipe was checked for that.
    sources = {cluster: dataset or next(iter(recipe.train)) for cluster, dataset in found.sources.items()}
    return replace(data, train=found.mixture, sources=sources, found=found.weights), found.shares


def _finish_stage(recipe: Recipe, stage: Stage, data: Data, callbacks: list[TrainerCallback], *, resume: bool) -> None:
    """Train an earlier stage and record it, unless that was done before, in this run or in one to reuse."""
    folder = stage_folder(recipe.output, stage.name)
    if resume and (folder / runs.RECORD_FILE).exists():
        return
    if stage.reuse and (stage.reuse / runs.RECORD_FILE).exists():
        if PartialState().is_main_process:
            reuse_stage(recipe, stage, stage.reuse, folder)
        PartialState().wait_for_everyone()
        return
    logger.info("%s: stage %s, %d steps", recipe.name, stage.name, stage.steps)
    _record_stage(recipe, stage, data, _train(recipe, stage, data, callbacks, resume=resume))


def _train(recipe: Recipe, stage: Stage, data: Data, callbacks: list[TrainerCallback], *, resume: bool) -> Trained:
    """Train a stage to its end and save its model."""
    folder, watch = stage_folder(recipe.output, stage.name), runs.Stopwatch()
    trainer = build_trainer(recipe, stage, data, callbacks)
    with watch("tokenise"):
        _ = trainer.tokenised
    _write_recipe(recipe, trainer, data)
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
    _save_model(trainer, folder)
    best = trainer.state.best_model_checkpoint
    return Trained(trainer, watch.seconds, probing, step_of(best) if best else trainer.state.global_step)


def _merge(recipe: Recipe, stage: Stage, data: Data, found: Mapping[str, Mapping[str, float]]) -> Trained:
    """Merge the models of earlier stages, given their mixtures, by the best weights, and save the result."""
    folder, watch = recipe.output, runs.Stopwatch()
    trainer = build_trainer(recipe, stage, data, [])
    with watch("tokenise"):
        _ = trainer.tokenised
    _write_recipe(recipe, trainer, data)
    merger = Merger(trainer.model, [stage_folder(folder, name) / runs.MODEL_FOLDER for name in found])
    merged: list[Any] = [None]
    if trainer.is_world_process_zero():
        scorer = DevScorer(trainer.model, data.samples, recipe.evaluation.batch_size)
        search = MergeSearch(merger, found, scorer.scores, folder / runs.TRACE_FILE, trainer.describe_datasets())
        merged = [search.run(recipe.strategy.merge_weights)]
    best: Merged = broadcast_object_list(merged)[0]
    merger.merge(best.weights.values())
    # The mixture that the merge stands for, in the card of the model and in weights.json.
    trainer.strategy = stage.strategy(best.mixture)
    trainer.strategy.start(trainer.mixture.sizes)
    trainer.get_train_dataloader()
    trainer.state.global_step = best.evaluations
    probing = probing_cost(folder / runs.TRACE_FILE)
    _save_model(trainer, folder)
    return Trained(trainer, watch.seconds | {"train": 0.0, "probe": probing["seconds"]}, probing, best.step)


def _write_recipe(recipe: Recipe, trainer: MixtureTrainer, data: Data) -> None:
    if trainer.is_world_process_zero():
        write_text(recipe.output / runs.RECIPE_FILE, dump_recipe(recipe))
        _list_dropped_rows(recipe.output, data.overlaps)


def _save_model(trainer: MixtureTrainer, folder: Path) -> None:
    with writing(folder / runs.MODEL_FOLDER):
        trainer.save_model(str(folder / runs.MODEL_FOLDER))
    if trainer.is_world_process_zero():
        # A pickle that nobody should have to load: recipe.yaml has the same settings.
        (folder / runs.MODEL_FOLDER / "training_args.bin").unlink(missing_ok=True)


def _list_dropped_rows(folder: Path, overlaps: list[Overlap]) -> None:
    lines = [
        json.dumps({"dataset": overlap.dataset, "row": row, "anchor": anchor}) + "\n"
        for overlap in overlaps
        for row, anchor in zip(overlap.rows, overlap.anchors, strict=True)
    ]
    if lines:
        write_text(folder / runs.OVERLAP_FILE, "".join(lines))


def _record_stage(recipe: Recipe, stage: Stage, data: Data, trained: Trained) -> None:
    """Write the mixture that a stage has found, its scores on the dev sets if they are wanted, and its cost."""
    folder, trainer, watch = stage_folder(recipe.output, stage.name), trained.trainer, runs.Stopwatch()
    if trainer.is_world_process_zero():
        write_weights(folder / runs.WEIGHTS_FILE, trainer.outcome() or trainer.probabilities())
        with watch("score"):
            samples = data.samples if stage.scored else []
            scores = DevScorer(trainer.model, samples, recipe.evaluation.batch_size).scores()
        seconds = trained.seconds | watch.seconds
        facts = {"steps": stage.steps, "probing": trained.probing, "seconds": seconds, "scores": scores}
        runs.write_record(folder / runs.RECORD_FILE, facts, kind="stage")
    # The other processes read what the first has written.
    trainer.accelerator.wait_for_everyone()


def _read_stage(folder: Path) -> dict[str, Any]:
    record = runs.read_record(folder / runs.RECORD_FILE)
    facts = {name: record[name] for name in ("steps", "probing", "seconds")}
    return facts | {"scores": record.get("scores", {}), "found": read_weights(folder / runs.WEIGHTS_FILE)}


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
    notes: Sequence[str],
) -> None:
    trainer = trained.trainer
    gpus = trainer.args.world_size if trainer.args.device.type == "cuda" else 0
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
        "selected_step": trained.selected_step,
        "notes": [*reading_notes(data.train, data.dev, data.test), *notes],
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
