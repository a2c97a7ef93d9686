"""What is tried before any data is read: the environment, and whatever the host builds of its arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from textwrap import shorten
from typing import Any

from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments
from transformers.utils import strtobool

from mixfluence.errors import RecipeError

# What torchrun tells each process of a group.
GROUP = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Of ports there are no more, and of processes there need not be.
MOST = 2**16 - 1

Build = Callable[[Mapping[str, Any]], TrainingArguments]


def check_environment() -> None:
    """Refuse variables of a launcher from which the host could not tell which process this is.

    Raises:
        RecipeError: Naming the variable.
    """
    processes = _whole_number("WORLD_SIZE", least=1, default=1)
    ranks = {"RANK": _whole_number("RANK", least=0, default=0)}
    ranks["LOCAL_RANK"] = _whole_number("LOCAL_RANK", least=-1, default=-1)
    _whole_number("MASTER_PORT", least=0, default=0)
    missing = [name for name in GROUP if not os.environ.get(name)]
    if missing and (processes > 1 or ranks["LOCAL_RANK"] >= 0):
        given = ", ".join(name for name in GROUP if name not in missing)
        raise RecipeError(f"{given} without {', '.join(missing)}: torchrun sets them all, a single process needs none")
    for name, rank in ranks.items():
        if rank >= processes:
            raise RecipeError(f"{name}: expected less than WORLD_SIZE, which is {processes}, found {rank}")
    for name, value in os.environ.items():
        if name.startswith("ACCELERATE_USE_"):
            _refuse_no_truth(name, value)


def rehearse(build: Build, host: Mapping[str, Any]) -> None:
    """Let the host set up a training of nothing, so that it refuses now what it would refuse after hours of reading.

    Args:
        build: Makes the host's arguments of those that a recipe hands on.
        host: What the recipe hands on.

    Raises:
        RecipeError: Naming the argument, or the variable of the environment, without which it would work.
    """
    error = _refusal(build, host)
    if error is not None:
        names = ", ".join(_culprits(build, host)) or "training"
        reason = shorten(str(error) or repr(error), 300, placeholder=" ...")
        raise RecipeError(f"{names}: refused by the host ({reason})") from error
    refuse_several_gpus(build(host))


def refuse_several_gpus(args: TrainingArguments) -> None:
    """Refuse one process for several GPUs: the host would enlarge the batch and cut it into pieces behind our back.

    Raises:
        RecipeError: Saying how to use them all, or one.
    """
    if args.n_gpu > 1:
        raise RecipeError(
            f"{args.n_gpu} GPUs are visible to one process, which trains on one: "
            f"torchrun --nproc-per-node {args.n_gpu} uses them all, CUDA_VISIBLE_DEVICES=0 the first"
        )


def _refusal(build: Build, host: Mapping[str, Any]) -> Exception | None:
    try:
        _set_up(build(host))
    except Exception as error:  # the host, torch and every tracker raise their own kinds
        return error
    return None


def _set_up(args: TrainingArguments) -> None:
    """Build accelerator, trackers, optimizer, schedule and loader around a model of a few numbers."""
    sizes = {"vocab_size": 2, "hidden_size": 2, "intermediate_size": 2, "max_position_embeddings": 2}
    model = BertForMaskedLM(BertConfig(num_hidden_layers=1, num_attention_heads=1, **sizes))
    rows = [{"input_ids": [0]}]
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
    # Its modules have other names than those that the optimizer is to be kept to.
    if not args.optim_target_modules:
        trainer.create_optimizer_and_scheduler(args.max_steps)
    trainer.get_train_dataloader()


def _culprits(build: Build, host: Mapping[str, Any]) -> list[str]:
    """Return whatever could be left out to make it work: arguments, or else variables of the environment."""

    def works_without(name: str) -> bool:
        return _refusal(build, {other: value for other, value in host.items() if other != name}) is None

    def works_unset(variable: str) -> bool:
        value = os.environ.pop(variable)
        try:
            return _refusal(build, host) is None
        finally:
            os.environ[variable] = value

    arguments = [f"training.trainer_args.{name}" for name in host if works_without(name)]
    return arguments or [name for name in sorted(os.environ.keys() - set(GROUP)) if works_unset(name)]


def _whole_number(variable: str, *, least: int, default: int) -> int:
    value = os.environ.get(variable, str(default))
    with suppress(ValueError):
        if least <= int(value) <= MOST:
            return int(value)
    raise RecipeError(f"{variable}: expected a whole number from {least} to {MOST}, found {value!r}")


def _refuse_no_truth(variable: str, value: str) -> None:
    try:
        strtobool(value)
    except ValueError as error:
        raise RecipeError(f"{variable}: expected true or false, found {value!r}") from error
