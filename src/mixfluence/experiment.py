"""One run from start to end: read data, divide it, train each stage, test, record.

docs/ARCHITECTURE.md lists the files of a run folder.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from mixfluence import runs
from mixfluence.adapters import merge_lora
from mixfluence.build import build_model, build_trainer, check_training_arguments, stage_folder
from mixfluence.clustering import Partition
from mixfluence.data.mixture import Overlap
from mixfluence.data.reading import Data, lengths, preview, read_data, token_counter
from mixfluence.data.rows import RowSet
from mixfluence.display import counted, duration
from mixfluence.encoders import is_linear, refuse_missing_folder
from mixfluence.errors import DataError, RecipeError
from mixfluence.evaluation import Evaluation
from mixfluence.files import locked, sync_folder, write_text
from mixfluence.inputs import INPUTS_FILE, Inputs, check_inputs, collect_inputs, refuse_taken_folder, write_inputs
from mixfluence.merging import DevScorer, Merged, Merger, MergeSearch, check_reuse, copy_stage, merge_scorer
from mixfluence.policy.initial import read_weights, write_weights
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.selection import Selected, select_rows
from mixfluence.strategies import Stage, StageResult
from mixfluence.testing import rehearse_tests, score_run
from mixfluence.training.callback import probing_cost
from mixfluence.training.checkpoints import LATEST, changed_file, hash_parameters, measure, measure_files, writing
from mixfluence.training.folder import record_facts, test_facts
from mixfluence.training.trainer import MixtureMixin

logger = logging.getLogger(__name__)


class Trained(NamedTuple):
    """A trained stage: its trainer, seconds by part, the cost of its probes, and what else the record says of it."""

    trainer: MixtureMixin
    seconds: dict[str, float]
    probing: dict[str, float]
    facts: Mapping[str, Any] = {}
    notes: Sequence[str] = ()


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
    try:
        recipe.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecipeError(f"{recipe.output}: cannot be written ({error.strerror})") from error
    first = os.environ.get("RANK", "0") == "0"
    with locked(recipe.output) if first else nullcontext():
        return _run(recipe, resume, show_progress, callbacks or [])


def _run(recipe: Recipe, resume: bool, show_progress: bool, callbacks: list[TrainerCallback]) -> dict[str, Evaluation]:
    folder = recipe.output
    refuse_taken_folder(folder, recipe, resume=resume)
    check_training_arguments(recipe)
    refuse_missing_folder(recipe.model.name)
    for sentence in recipe.warnings():
        logger.warning("%s", sentence)
    watch = runs.Stopwatch()
    with watch("data"):
        data = read_data(recipe)
        for line in (line for name, rows in data.train.items() for line in preview(name, rows)):
            logger.info("%s", line)
    data, selected = _select(recipe, data, watch)
    inputs = collect_inputs(recipe, data)
    pool, divided = data, None
    if recipe.strategy.clusters:
        with watch("cluster"):
            divided = _divide(recipe, data)
        pool = replace(data, train=divided.mixture, sources=divided.sources, found=divided.weights)
    *searches, final = recipe.strategy.stages(recipe)
    if not resume:
        check_reuse(recipe, searches)
    records: dict[str, dict[str, Any]] = {}
    for stage in searches:
        _finish_stage(recipe, stage, pool, inputs, callbacks, resume=resume)
        records[stage.name] = _read_stage(stage_folder(folder, stage.name), stage)
        pool = replace(pool, found=records[stage.name]["found"])
    notes: list[str] = []
    if records:
        results = {name: StageResult(record["found"], record["scores"]) for name, record in records.items()}
        rows = final.steps * recipe.training.rows_per_step * PartialState().num_processes
        concluded = [recipe.strategy.conclude(recipe, results, pool.train.sizes, rows)]
        # Processes on different machines may round differently.
        found, notes = broadcast_object_list(concluded)[0]
        pool = replace(pool, found=found)
    if final.merges:
        trained = _merge(recipe, final, pool, inputs, {name: own["found"] for name, own in records.items()})
    else:
        trained = _train(recipe, final, pool, inputs, callbacks, resume=resume)
    trainer = trained.trainer
    if not trainer.is_world_process_zero():
        return {}
    weights = trainer.outcome() or trainer.probabilities()
    write_weights(folder / runs.WEIGHTS_FILE, divided.shares(weights) if divided else weights)
    with watch("evaluate"):
        scores = score_run(recipe, trainer.model, data, show_progress=show_progress)
    seconds = watch.seconds | trained.seconds
    seconds |= {f"stage {name}": sum(record["seconds"].values()) for name, record in records.items()}
    record = {
        "name": recipe.name,
        "seed": recipe.seed,
        "versions": inputs["versions"],
        "inputs": {kind: hashes for kind, hashes in inputs.items() if kind not in {"recipe", "versions"}},
        **record_facts(trainer, seconds, trained.probing),
        **trained.facts,
        "notes": [*data.notes, *notes, *trained.notes],
        "overlap_dropped": {overlap.dataset: len(overlap.rows) for overlap in data.overlaps},
        "stages": records,
        "select": {name: own._asdict() for name, own in selected.items()},
        **test_facts(data.test, scores),
    }
    runs.write_record(folder / runs.RECORD_FILE, record)
    return scores


def _select(recipe: Recipe, data: Data, watch: runs.Stopwatch) -> tuple[Data, dict[str, Selected]]:
    """Return the data with the rows that the recipe selects, and what was kept of each dataset."""
    if recipe.select is None:
        return data, {}
    sources = {**recipe.dev, **recipe.train}
    with watch("select"), PartialState().main_process_first():
        train, selected = select_rows(
            data.train,
            _targets(recipe, data),
            build_model(recipe.model),
            keep=recipe.select.keep,
            batch_size=recipe.training.batch_size,
            seed=recipe.seed,
            prompts={name: (source.query_prompt, source.passage_prompt) for name, source in sources.items()},
        )
    return replace(data, train=train), selected


def _divide(recipe: Recipe, data: Data) -> Partition:
    """Return the clusters that the strategy draws: the first process finds them, the others read its cache."""
    processes = PartialState()
    with processes.main_process_first():
        least_rows = max(map(recipe.batch_size_of, recipe.train)) * processes.num_processes
        return recipe.strategy.divide(data.train, _targets(recipe, data), recipe, least_rows)


def _targets(recipe: Recipe, data: Data) -> dict[str, RowSet]:
    """Return the dev sets that the run is for: those that are not guards."""
    return {name: rows for name, rows in data.dev.items() if name not in recipe.strategy.guards}


def _finish_stage(
    recipe: Recipe, stage: Stage, data: Data, inputs: Inputs, callbacks: list[TrainerCallback], *, resume: bool
) -> None:
    """Train an earlier stage and record it, unless that was done before, in this run or in one to reuse."""
    folder = stage_folder(recipe.output, stage.name)
    if resume and (folder / runs.RECORD_FILE).exists():
        return
    if stage.reuse and stage.reused:
        if PartialState().is_main_process:
            copy_stage(stage.reuse, folder)
        PartialState().wait_for_everyone()
        return
    logger.info("%s: stage %s, %d steps", recipe.name, stage.name, stage.steps)
    trained = _train(recipe, stage, data, inputs, callbacks, resume=resume)
    trainer, watch = trained.trainer, runs.Stopwatch()
    if trainer.is_world_process_zero():
        write_weights(folder / runs.WEIGHTS_FILE, trainer.outcome() or trainer.probabilities())
        with watch("score"):
            scorer = DevScorer(trainer.model, data.samples if stage.scored else [], recipe.evaluation.batch_size)
            scores = scorer.scores()
        files = measure_files(folder, runs.MODEL_FOLDER) | {runs.WEIGHTS_FILE: measure(folder / runs.WEIGHTS_FILE)}
        # Its model card has the time of training.
        files.pop(f"{runs.MODEL_FOLDER}/README.md", None)
        facts = {"steps": stage.steps, "probing": trained.probing, "seconds": trained.seconds | watch.seconds}
        facts |= {"scores": scores, "files": files}
        runs.write_record(folder / runs.RECORD_FILE, facts, kind="stage")
    # The other processes read what the first has written.
    trainer.accelerator.wait_for_everyone()


def _train(
    recipe: Recipe, stage: Stage, data: Data, inputs: Inputs, callbacks: list[TrainerCallback], *, resume: bool
) -> Trained:
    """Train a stage to its end and save its model, unless only its score is wanted."""
    folder, watch = stage_folder(recipe.output, stage.name), runs.Stopwatch()
    trainer = _prepare(recipe, stage, data, inputs, callbacks, watch)
    with watch("train"):
        trainer.train(resume_from_checkpoint=LATEST if resume else None)
    probing = probing_cost(folder / runs.TRACE_FILE)
    watch.seconds["probe"] = probing["seconds"]
    watch.seconds["train"] += trainer.seconds_before - probing["seconds"]
    if probing["rounds"]:
        logger.info(
            "%s of probes took %s beside %s of training, and memory for %.1f times the parameters",
            counted(int(probing["rounds"]), "round"),
            duration(probing["seconds"]),
            duration(watch.seconds["train"]),
            probing["parameter_sizes"],
        )
    # Nothing reads the model of a scored stage again; a sharded one is scored as it was saved.
    if not stage.scored or trainer.is_fsdp_enabled:
        _save_model(recipe, trainer, folder)
    return Trained(trainer, watch.seconds, probing)


def _merge(
    recipe: Recipe, stage: Stage, data: Data, inputs: Inputs, found: Mapping[str, Mapping[str, float]]
) -> Trained:
    """Merge the models of earlier stages, given their mixtures, by the best weights, and save the result."""
    folder, watch = recipe.output, runs.Stopwatch()
    trainer = _prepare(recipe, stage, data, inputs, [], watch)
    merger = Merger(trainer.model, [stage_folder(folder, name) / runs.MODEL_FOLDER for name in found])
    merged: list[Any] = [None]
    if trainer.is_world_process_zero():
        scorer = DevScorer(trainer.model, data.samples, recipe.evaluation.batch_size)
        scores = merge_scorer(merger, scorer)
        search = MergeSearch(found, scores, folder / runs.TRACE_FILE, trainer.describe_datasets())
        merged = [search.run(recipe.strategy.merge_weights)]
    best: Merged = broadcast_object_list(merged)[0]
    merger.merge(best.weights.values())
    # The mixture that the merge stands for, in the card of the model and in weights.json.
    trainer.strategy = stage.strategy(best.mixture)
    trainer.strategy.start(trainer.mixture.sizes)
    trainer.get_train_dataloader()
    trainer.state.global_step = best.evaluations
    probing = probing_cost(folder / runs.TRACE_FILE)
    _save_model(recipe, trainer, folder)
    seconds = watch.seconds | {"train": 0.0, "probe": probing["seconds"]}
    encodings = merger.models if is_linear(merger.model) else best.evaluations
    return Trained(trainer, seconds, probing, {"selected_step": best.step, "encodings": encodings}, [best.note])


def _prepare(
    recipe: Recipe, stage: Stage, data: Data, inputs: Inputs, callbacks: list[TrainerCallback], watch: runs.Stopwatch
) -> MixtureMixin:
    """Return the trainer of a stage with its data tokenised.

    Before that, inputs are compared with those that the run was started with, and what comes after training is tried
    once; after it, they are written.
    """
    trainer = build_trainer(recipe, stage, data, callbacks)
    if trainer.is_fsdp_enabled and _merges_adapter(recipe):
        raise RecipeError("model.lora.merged: the adapter of a model in shards is saved alone; set merged to false")
    first = trainer.is_world_process_zero()
    if first:
        if "encoder" not in inputs:
            count = token_counter(trainer.model)
            for name, rows in {data.sources[name]: rows.whole for name, rows in data.train.items()}.items():
                logger.info("%s: %s", name, lengths(rows, count))
            rehearse_tests(recipe, trainer.model, data, recipe.output)
        inputs["encoder"] = {"parameters": hash_parameters(trainer.model)}
        if (recipe.output / INPUTS_FILE).exists():
            check_inputs(recipe.output, inputs)
    with watch("tokenise"):
        _ = trainer.tokenised
    if first:
        # An extended run is no longer finished.
        (stage_folder(recipe.output, stage.name) / runs.RECORD_FILE).unlink(missing_ok=True)
        write_text(recipe.output / runs.RECIPE_FILE, dump_recipe(recipe))
        write_inputs(recipe.output, inputs)
        _list_dropped_rows(recipe.output, data.overlaps)
    return trainer


def _save_model(recipe: Recipe, trainer: MixtureMixin, folder: Path) -> None:
    saved = folder / runs.MODEL_FOLDER
    with writing(saved):
        trainer.save_model(str(saved))
        if _merges_adapter(recipe) and trainer.is_world_process_zero():
            for file in saved.glob("adapter_*"):
                file.unlink()
            merge_lora(trainer.model).save_pretrained(str(saved), create_model_card=False)
    if trainer.is_world_process_zero():
        if trainer.is_fsdp_enabled:
            # The other processes, which have the rest of it, do not take part in testing.
            trainer.model = build_model(recipe.model, saved).to(trainer.args.device)
        # A pickle that nobody should have to load: recipe.yaml has the same settings.
        (saved / "training_args.bin").unlink(missing_ok=True)
        sync_folder(saved)


def _merges_adapter(recipe: Recipe) -> bool:
    return recipe.model.lora is not None and recipe.model.lora.merged


def _list_dropped_rows(folder: Path, overlaps: list[Overlap]) -> None:
    lines = [
        json.dumps({"dataset": overlap.dataset, "row": row, "anchor": anchor}) + "\n"
        for overlap in overlaps
        for row, anchor in zip(overlap.rows, overlap.anchors, strict=True)
    ]
    if lines:
        write_text(folder / runs.OVERLAP_FILE, "".join(lines))


def _read_stage(folder: Path, stage: Stage) -> dict[str, Any]:
    record = runs.read_record(folder / runs.RECORD_FILE)
    if reason := changed_file(folder, record.get("files", {})):
        raise DataError(f"{folder}: {reason}; delete this folder to train the stage again")
    if record["steps"] != stage.steps:
        raise RecipeError(f"{folder}: trained for {record['steps']} steps, the recipe now says {stage.steps}")
    facts = {name: record[name] for name in ("steps", "probing", "seconds")}
    return facts | {"scores": record.get("scores", {}), "found": read_weights(folder / runs.WEIGHTS_FILE)}
