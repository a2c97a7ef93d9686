"""Checks that run before data is read or tokenised: the launcher's variables and the Trainer's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureTrainer

# Variables that torchrun sets for each process.
LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

Build = Callable[[Mapping[str, Any]], TrainingArguments]


def check_environment() -> None:
    """Refuse an incomplete set of launcher variables, with which each process would train a run of its own."""
    missing = [name for name in LAUNCHER if not os.environ.get(name)]
    several = os.environ.get("WORLD_SIZE", "1") != "1" or os.environ.get("LOCAL_RANK", "-1") != "-1"
    if missing and several:
        given = ", ".join(name for name in LAUNCHER if name in os.environ)
        raise RecipeError(
            f"{given} without {', '.join(missing)}: torchrun sets all of them, a single process needs none"
        )


def dry_run(build: Build, options: Mapping[str, Any]) -> None:
    """Set up a Trainer around a tiny model, so that a bad one of `training.trainer_args` fails now and is named."""
    error = _failure(build, options)
    if error is not None:
        alone = [name for name in options if _failure(build, {k: v for k, v in options.items() if k != name}) is None]
        names = ", ".join(f"training.trainer_args.{name}" for name in alone) or "training"
        raise RecipeError(f"{names}: {_reason(error)}") from error
    refuse_several_gpus(build(options))


def check_arguments(trainer: MixtureTrainer) -> None:
    """Refuse arguments that cannot work with a mixture or with this model, before texts are tokenised."""
    refuse_several_gpus(trainer.args)
    if trainer.args.auto_find_batch_size:
        raise RecipeError("auto_find_batch_size: not supported, the draws depend on the batch size")
    if trainer.args.learning_rate_mapping:
        try:
            trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
        except Exception as error:  # regular expressions and optimizers raise their own kinds
            raise RecipeError(f"learning_rate_mapping: {_reason(error)}") from error


def refuse_several_gpus(args: TrainingArguments) -> None:
    """Refuse one process with several GPUs, for which the Trainer would enlarge and split the batch."""
    if args.n_gpu > 1:
        raise RecipeError(
            f"{args.n_gpu} GPUs are visible to one process, which trains on one: "
            f"use torchrun --nproc-per-node {args.n_gpu} for all, or CUDA_VISIBLE_DEVICES=0 for the first"
        )


def _failure(build: Build, options: Mapping[str, Any]) -> Exception | None:
    sizes = {"vocab_size": 2, "hidden_size": 2, "intermediate_size": 2, "max_position_embeddings": 2}
    rows = [{"input_ids": [0]}]
    try:
        args = build(options)
        model = BertForMaskedLM(BertConfig(num_hidden_layers=1, num_attention_heads=1, **sizes))
        trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
        if args.torch_compile_mode is not None:
            torch.compile(nn.Identity(), **trainer.accelerator.state.dynamo_plugin.to_kwargs())
        # The module names of this model are not those that `optim_target_modules` refers to.
        if not args.optim_target_modules:
            trainer.create_optimizer_and_scheduler(args.max_steps)
        trainer.get_train_dataloader()
    except Exception as error:  # transformers, torch and every tracker raise their own kinds
        return error
    return None


def _reason(error: Exception) -> str:
    return f"refused by the trainer library ({shorten(str(error) or repr(error), 300, placeholder=' ...')})"
