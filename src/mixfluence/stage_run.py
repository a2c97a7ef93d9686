"""One stage of a run: model, trainer, training, and what it cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from torch import nn
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.assembly import build_model, read_selection_tasks, training_arguments
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet
from mixfluence.data.weights import read_weights, write_weights
from mixfluence.evaluation.selection import DevEvaluator
from mixfluence.recipe import ModelSection, Recipe
from mixfluence.runs import (
    MODEL_FOLDER,
    RECORD_FILE,
    STAGES_FOLDER,
    TRACE_FILE,
    WEIGHTS_FILE,
    Stopwatch,
    read_record,
    write_record,
)
from mixfluence.stages import FINAL, Stage
from mixfluence.strategies import GroupDRO, Strategy
from mixfluence.training.checkpoints import list_checkpoints, newest_whole, step_of, writing
from mixfluence.training.distillation import M3Distillation
from mixfluence.training.group_losses import group_losses
from mixfluence.training.losses import info_nce
from mixfluence.training.trace import probing_cost, seconds_until
from mixfluence.training.trainer import MixtureTrainer

logger = logging.getLogger(__name__)


@dataclass
class Pool:
    """What a run draws from, and what guides it.

    Attributes:
        mixture: Datasets, or clusters of their rows.
        sources: For each of them the training set of the recipe that its prompts are those of.
        guides: The dev rows that may guide sampling.
        found: The probability of each, if something before training has found one.
    """

    mixture: Mixture
    sources: Mapping[str, str]
    guides: Mapping[str, RowSet]
    found: Mapping[str, float] = field(default_factory=dict)


class _AtStart(TrainerCallback):
    """Calls back when sampler and probes are set up and nothing is left that could be refused."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._ready()


class StageRun:
    """Trains one stage of a recipe in its folder, from the start or from its last checkpoint.

    Args:
        recipe: The whole run.
        stage: Which part of it.
        pool: What to draw from.
        callbacks: Further callbacks of the host's trainer.

    Attributes:
        folder: Where it writes: that of the run for the last stage, `stages/<name>` in it for others.
    """

    def __init__(self, recipe: Recipe, stage: Stage, pool: Pool, callbacks: list[TrainerCallback]) -> None:
        self._recipe = _recipe_of(recipe, stage)
        self._stage = stage
        self._whole = recipe
        self._pool = pool
        self._callbacks = callbacks
        self.folder = self._recipe.output
        self.watch = Stopwatch()
        self.probing: dict[str, float] = {}

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return (self.folder / RECORD_FILE).exists()

    def train(self, ready: Callable[[], None], *, resume: bool) -> MixtureTrainer:
        """Train to the end and save the model.

        Args:
            ready: Called when nothing but training is left to do.
            resume: Go on from the last checkpoint, if there is one.
        """
        model = build_model(self._recipe.model)
        trainer = self._build_trainer(model)
        trainer.add_callback(_AtStart(ready))
        with self.watch("tokenise"):
            _ = trainer.tokenised
        trace = self.folder / TRACE_FILE
        checkpoint = self._find_checkpoint(trainer.args) if resume else None
        if checkpoint and trace.exists():
            self.watch.seconds["train"] = seconds_until(trace, step_of(checkpoint))
        with self.watch("train"):
            trainer.train(resume_from_checkpoint=checkpoint)
        self.probing = probing_cost(trace)
        self.watch.seconds["probe"] = self.probing["seconds"]
        self.watch.seconds["train"] -= self.probing["seconds"]
        if self.probing["rounds"]:
            logger.info(
                "%d rounds of probes took %.0f s beside %.0f s of training, and memory for %.1f times the parameters",
                *(self.probing["rounds"], self.probing["seconds"], self.watch.seconds["train"]),
                self.probing["parameter_sizes"],
            )
        with writing(self.folder / MODEL_FOLDER):
            trainer.save_model(str(self.folder / MODEL_FOLDER))
        if trainer.is_world_process_zero():
            # A pickle of the host's arguments, which nobody should have to unpickle: recipe.yaml says the same.
            (self.folder / MODEL_FOLDER / "training_args.bin").unlink(missing_ok=True)
        return trainer

    def find_mixture(self, ready: Callable[[], None], *, resume: bool) -> dict[str, Any]:
        """Do what is left of a stage before the last; return its record: what it cost and the mixture it found."""
        if not (resume and self.finished):
            logger.info("%s: stage %s, %d steps", self._whole.name, self._stage.name, self._stage.steps)
            trainer = self.train(ready, resume=resume)
            if trainer.is_world_process_zero():
                write_weights(self.folder / WEIGHTS_FILE, trainer.outcome() or trainer.probabilities())
                facts = {"steps": self._stage.steps, "probing": self.probing, "seconds": self.watch.seconds}
                write_record(self.folder / RECORD_FILE, facts, kind="stage")
            # What the first process has written, the others read.
            trainer.accelerator.wait_for_everyone()
        record = read_record(self.folder / RECORD_FILE)
        facts = {name: record[name] for name in ("steps", "probing", "seconds")}
        return facts | {"found": read_weights(self.folder / WEIGHTS_FILE)}

    def _find_checkpoint(self, args: SentenceTransformerTrainingArguments) -> str | None:
        """Return the checkpoint to go on from, the same on every process."""
        found: list[str | None] = [None]
        if args.process_index == 0 and list_checkpoints(args.output_dir):
            whole = newest_whole(args.output_dir)
            found = [str(whole) if whole else None]
            if whole is None:
                logger.warning("%s: no checkpoint can be used, starting again from step 0", args.output_dir)
        broadcast_object_list(found)
        return found[0]

    def _build_trainer(self, model: SentenceTransformer) -> MixtureTrainer:
        strategy = self._stage.strategy(self._pool.found)
        args = training_arguments(self._recipe, model, self._pool.sources)
        if self._stage.against:
            # Clipping a batch of one dataset would undo the weight that its loss was given.
            args.max_grad_norm = 0.0
        tasks = read_selection_tasks(self._recipe)
        trainer = MixtureTrainer(
            model=model,
            args=args,
            train_dataset=self._pool.mixture,
            dev_dataset=self._pool.guides,
            strategy=strategy,
            loss=self._build_loss(model, strategy, args),
            num_negatives=self._recipe.training.hard_negatives,
            packing=self._recipe.training.packing,
            compiled=self._recipe.training.compiled,
            evaluator=DevEvaluator(tasks, batch_size=self._recipe.evaluation.batch_size) if tasks else None,
            trace_path=self.folder / TRACE_FILE,
            callbacks=self._callbacks,
        )
        # It prints every log as a dictionary, our probabilities included; `callbacks` may bring a calmer display.
        trainer.remove_callback(ProgressCallback)
        return trainer

    def _build_loss(
        self, model: SentenceTransformer, strategy: Strategy, args: SentenceTransformerTrainingArguments
    ) -> nn.Module | dict[str, nn.Module]:
        training = self._recipe.training
        gathered = training.cross_device_negatives and args.world_size > 1
        if self._stage.against is None:
            build = {"info-nce": info_nce, "m3-kd": M3Distillation}[training.loss]
            return build(
                model,
                training.temperature,
                mini_batch_size=training.mini_batch_size,
                gather_across_devices=gathered,
            )
        assert isinstance(strategy, GroupDRO)
        folder = stage_folder(self._whole.output, self._stage.against)
        return group_losses(
            model,
            build_model(ModelSection(name=str(folder / MODEL_FOLDER))),
            strategy,
            list(self._pool.mixture),
            training.temperature,
            autocast=torch.bfloat16 if args.bf16 else None,
            gather_across_devices=gathered,
        )


def stage_folder(output: Path, stage: str) -> Path:
    """Return where a stage of a run writes."""
    return output if stage == FINAL else output / STAGES_FOLDER / stage


def _recipe_of(recipe: Recipe, stage: Stage) -> Recipe:
    """Return the recipe as a stage has it: one before the last selects no checkpoint, but saves as many."""
    if stage.name == FINAL:
        return recipe
    save_every = recipe.selection.every if recipe.selection else recipe.training.save_every
    training = recipe.training.model_copy(update={"steps": stage.steps, "save_every": save_every})
    output = stage_folder(recipe.output, stage.name)
    return recipe.model_copy(update={"output": output, "selection": None, "training": training})
