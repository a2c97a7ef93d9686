"""Build the parts of a run from a recipe: training arguments, loss and trainer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from inspect import formatannotation, signature
from pathlib import Path
from textwrap import shorten
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.training_args import BaseTrainingArguments
from sentence_transformers.util import get_device_name
from torch import distributed, nn
from transformers import BertConfig, BertForMaskedLM, ProgressCallback, Trainer, TrainerCallback
from transformers.integrations import get_available_reporting_integrations

from mixfluence.data.reading import Data
from mixfluence.embedding import prompt_of
from mixfluence.encoders import load_encoder
from mixfluence.errors import MixfluenceError, RecipeError, collecting, refuse
from mixfluence.evaluation.retrieval import DevEvaluator
from mixfluence.recipe import ModelSection, Recipe
from mixfluence.runs import CHECKPOINTS_FOLDER, MODEL_FOLDER, STAGES_FOLDER, TRACE_FILE
from mixfluence.schema import did_you_mean, short
from mixfluence.strategies import FINAL, Stage, Strategy
from mixfluence.training.arguments import FIXED, check_arguments
from mixfluence.training.batches import NumNegatives
from mixfluence.training.kinds import TRAINERS_BY_KIND
from mixfluence.training.losses import LossSettings, build_loss, group_losses
from mixfluence.training.trainer import MixtureMixin

# Variables that torchrun sets for each process.
LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LOST_AFTER_SECONDS = 1_800
# Most steps that a long run may lose if its recipe does not mention checkpoints.
SAVE_EVERY = 500
# Experiment trackers that write to this machine, and need no account.
LOCAL_TRACKERS = ("mlflow", "tensorboard", "trackio")


def stage_folder(output: Path, stage: str) -> Path:
    """Return the folder of a stage: that of the run for the last one, `stages/<name>` in it for others."""
    return output if stage == FINAL else output / STAGES_FOLDER / stage


def stage_recipe(recipe: Recipe, stage: Stage) -> Recipe:
    """Return the recipe of a stage; only the last one selects a checkpoint, but all save as often."""
    if stage.name == FINAL:
        return recipe
    save_every = recipe.selection.every if recipe.selection else recipe.training.save_every
    changes = {"steps": stage.steps, "warmup_steps": stage.warmup_steps(recipe.training), "save_every": save_every}
    training = recipe.training.model_copy(update=changes)
    output = stage_folder(recipe.output, stage.name)
    return recipe.model_copy(update={"output": output, "selection": None, "training": training})


def build_model(section: ModelSection, saved: Path | None = None) -> BaseModel:
    """Load the encoder, or one like it that was trained and saved in a folder."""
    whole = {"name": str(saved), "revision": None, "lora": None} if saved else {}
    return load_encoder(**section.model_dump() | whole)


def build_trainer(recipe: Recipe, stage: Stage, data: Data, callbacks: list[TrainerCallback]) -> MixtureMixin:
    """Build the trainer of a stage of a recipe."""
    own = stage_recipe(recipe, stage)
    model = build_model(own.model)
    strategy = stage.strategy(data.found)
    args = training_arguments(own, model, data.sources)
    if stage.name != FINAL:
        # A tracker shows a run once, not each of dozens of experts or proxies, whose traces are in the run folder.
        args.report_to = []
    if stage.against:
        # Clipping a batch of one dataset would undo the weight of its loss.
        args.max_grad_norm = 0.0
    select = own.selection and DevEvaluator(data.selection, batch_size=own.evaluation.batch_size)
    trainer = TRAINERS_BY_KIND[own.model.kind](
        model=model,
        args=args,
        train_dataset=data.train,
        dev_dataset=data.dev,
        strategy=strategy,
        loss=_build_loss(recipe, stage, strategy, model, args, data.sources),
        num_negatives=_hard_negatives(own, data.sources),
        batch_sizes={
            name: size for name, source in data.sources.items() if (size := own.train[source].batch_size) is not None
        },
        packing=own.training.packing,
        compiled=own.training.compiled,
        evaluator=select,
        trace_path=own.output / TRACE_FILE,
        callbacks=callbacks,
        model_card=stage.name == FINAL,
    )
    # It prints every log as a dictionary, with all probabilities; `callbacks` may contain a display.
    trainer.remove_callback(ProgressCallback)
    return trainer


def _build_loss(
    recipe: Recipe,
    stage: Stage,
    strategy: Strategy,
    model: BaseModel,
    args: BaseTrainingArguments,
    sources: Mapping[str, str],
) -> nn.Module | dict[str, nn.Module]:
    training = recipe.training
    gathered = training.cross_device_negatives and args.world_size > 1
    if stage.against is None:
        settings = LossSettings(training.temperature, training.mini_batch_size, gathered)
        sections = {name: recipe.loss_of(source) for name, source in sources.items()}
        different = {repr(section): section for section in sections.values()}
        losses = {text: build_loss(section, model, settings) for text, section in different.items()}
        # One loss of all datasets is also that of the dev sets.
        if len(losses) == 1:
            return losses.popitem()[1]
        return {name: losses[repr(section)] for name, section in sections.items()}
    reference = stage_folder(recipe.output, stage.against) / MODEL_FOLDER
    return group_losses(
        model,
        build_model(ModelSection(name=str(reference))),
        strategy,
        list(sources),
        training.temperature,
        autocast=torch.bfloat16 if args.bf16 else None,
        gather_across_devices=gathered,
    )


def _hard_negatives(recipe: Recipe, sources: Mapping[str, str]) -> NumNegatives:
    """Return the hard negatives per row, by dataset if one has a number of its own."""
    general = recipe.training.hard_negatives
    by_source = {name: recipe.train[source].hard_negatives for name, source in sources.items()}
    own = {name: number for name, number in by_source.items() if number is not None}
    if not own:
        return general
    return own if general is None else dict.fromkeys(sources, general) | own


def check_training_arguments(recipe: Recipe, *, planning: bool = False) -> None:
    """Refuse, before any data is read, an environment or arguments with which training cannot start."""
    given = _trainer_args(recipe)
    if planning and torch.cuda.device_count() > 1:
        return  # the run will be started with torchrun
    if not planning:
        check_environment()
    device = torch.device(get_device_name())
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not planning and device.type == "cpu" and several and not distributed.is_initialized():
        # The trainer library passes its timeout for lost processes on to GPUs only.
        timeout = timedelta(seconds=given.get("ddp_timeout", LOST_AFTER_SECONDS))
        distributed.init_process_group(given.get("ddp_backend") or "gloo", timeout=timeout)
    dry_run(_own_arguments(recipe, device, {}), given, _arguments_class(recipe))


def check_environment() -> None:
    """Refuse DeepSpeed, and an incomplete set of launcher variables: each process would train a run of its own."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        raise RecipeError(f"deepspeed: not supported, {FIXED['deepspeed'][1]}")
    missing = [name for name in LAUNCHER if not os.environ.get(name)]
    several = os.environ.get("WORLD_SIZE", "1") != "1" or os.environ.get("LOCAL_RANK", "-1") != "-1"
    if missing and several:
        given = ", ".join(name for name in LAUNCHER if name in os.environ)
        raise RecipeError(
            f"{given} without {', '.join(missing)}: torchrun sets all of them, a single process needs none"
        )


def dry_run(own: Mapping[str, Any], given: Mapping[str, Any], kind: Callable[..., BaseTrainingArguments]) -> None:
    """Set up a Trainer around a tiny model, so that a bad one of the `given` arguments fails now and is named."""

    def failure(options: Mapping[str, Any]) -> Exception | None:
        try:
            _set_up(kind(**{**own, **options}))
        except Exception as error:  # transformers, torch and every tracker raise their own kinds
            return error
        return None

    error = failure(given)
    if isinstance(error, RecipeError):
        raise error
    if error is not None:
        alone = [name for name in given if failure({k: v for k, v in given.items() if k != name}) is None]
        names = ", ".join(f"training.trainer_args.{name}" for name in alone) or "training"
        reason = shorten(str(error) or repr(error), 300, placeholder=" ...")
        raise RecipeError(f"{names}: refused by the trainer library ({reason})") from error


def _set_up(args: BaseTrainingArguments) -> None:
    check_arguments(args)
    sizes = {"vocab_size": 2, "hidden_size": 2, "intermediate_size": 2, "max_position_embeddings": 2}
    model = BertForMaskedLM(BertConfig(num_hidden_layers=1, num_attention_heads=1, **sizes))
    rows = [{"input_ids": [0]}]
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
    if args.torch_compile_mode is not None:
        torch.compile(nn.Identity(), **trainer.accelerator.state.dynamo_plugin.to_kwargs())
    # The module names of this model are not those that `optim_target_modules` refers to.
    if not args.optim_target_modules:
        trainer.create_optimizer_and_scheduler(args.max_steps)
    trainer.get_train_dataloader()


def training_arguments(recipe: Recipe, model: BaseModel, sources: Mapping[str, str]) -> BaseTrainingArguments:
    """Translate the recipe of a stage into the arguments of the trainer; `sources` is that of its `Data`."""
    own = _own_arguments(recipe, model.device, _prompts(recipe, model, sources))
    return _arguments_class(recipe)(**own | _trainer_args(recipe))


def _arguments_class(recipe: Recipe) -> type[BaseTrainingArguments]:
    found: type[BaseTrainingArguments] = TRAINERS_BY_KIND[recipe.model.kind].training_args_class
    return found


def _own_arguments(recipe: Recipe, device: torch.device, prompts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return the arguments that the recipe's own keys determine."""
    training, selection = recipe.training, recipe.selection
    bf16 = training.precision == "bf16"
    if training.precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    save_every = selection.every if selection else training.save_every
    if save_every is None and training.steps > SAVE_EVERY:
        save_every = SAVE_EVERY
    return {
        "output_dir": str(recipe.output / CHECKPOINTS_FOLDER),
        "seed": recipe.seed,
        "max_steps": training.steps,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "bf16": bf16,
        "use_cpu": device.type == "cpu",
        "logging_steps": training.log_every,
        "save_strategy": "steps" if save_every else "no",
        "save_steps": save_every or training.steps,
        "save_total_limit": 2,
        "eval_strategy": "steps" if selection else "no",
        "eval_steps": selection.every if selection else None,
        "eval_on_start": selection is not None,
        "load_best_model_at_end": selection is not None,
        "metric_for_best_model": "eval_ndcg@10" if selection else None,
        "greater_is_better": True if selection else None,
        "prompts": prompts,
        "disable_tqdm": False,
        "report_to": _trackers(),
        # Trackers would invent a name.
        "run_name": str(recipe.output),
    }


def _trackers() -> list[str]:
    """Return the installed experiment trackers that need no account, or whose key is set."""
    wanted = {*LOCAL_TRACKERS, *(["wandb"] if os.environ.get("WANDB_API_KEY") else [])}
    return sorted(wanted & set(get_available_reporting_integrations()))


def _trainer_args(recipe: Recipe) -> dict[str, Any]:
    """Return `training.trainer_args` with values converted to the annotated types, such as '2' to 2."""
    types = get_type_hints(_arguments_class(recipe))
    known = set(signature(_arguments_class(recipe)).parameters)
    own = _own_arguments(recipe, torch.device("cpu"), {}).keys() - {"report_to", "run_name"}
    converted = {}
    problems: list[MixfluenceError] = []
    for name, value in recipe.training.trainer_args.items():
        with collecting(problems):
            if name not in known or name in own:
                reason = "is set by the recipe's own keys" if name in own else "is not a training argument"
                raise RecipeError(f"training.trainer_args: {name!r} {reason}{did_you_mean(name, known - own)}")
            converted[name] = _converted(name, value, types[name])
    refuse(problems)
    # Before the trainer library asks for the package of one of them.
    for name, (value, reason) in FIXED.items():
        if converted.get(name, value) != value:
            raise RecipeError(f"training.trainer_args.{name}: not supported, {reason}")
    if converted.get("use_liger_kernel") and find_spec("liger_kernel") is None:
        raise RecipeError("training.trainer_args.use_liger_kernel: the package liger-kernel is not installed")
    return converted


def _converted(name: str, value: Any, type_: Any) -> Any:
    expected: TypeAdapter[Any] = TypeAdapter(type_, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        return expected.validate_python(value)
    except ValidationError as error:
        wanted = formatannotation(type_).replace(" | ", " or ")
        raise RecipeError(f"training.trainer_args.{name}: expected {wanted}, found {short(value)}") from error


def _prompts(recipe: Recipe, model: BaseModel, sources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the prompts of each dataset; the model's own where the source gives none, as in testing."""
    return {
        name: {
            "anchor": prompt_of(model, "query", source.query_prompt),
            "positive": prompt_of(model, "document", source.passage_prompt),
        }
        for name, source in {**recipe.dev, **{name: recipe.train[own] for name, own in sources.items()}}.items()
    }
