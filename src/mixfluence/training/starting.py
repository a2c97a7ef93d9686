"""Arguments of the host with which training would not start, refused when a trainer is set up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING

import torch
from torch import nn

from mixfluence.errors import RecipeError
from mixfluence.training.rehearsal import refuse_several_gpus

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureTrainer


def refuse_unstartable(trainer: MixtureTrainer) -> None:
    """Let the host refuse now what it would refuse when every text has been tokenised.

    What needs neither a model nor a mixture is refused earlier still, by `mixfluence.training.rehearsal`.

    Args:
        trainer: Of which the part of the host is set up.

    Raises:
        RecipeError: Naming the argument.
    """
    args = trainer.args
    refuse_several_gpus(args)
    if args.auto_find_batch_size:
        raise RecipeError("auto_find_batch_size: the batch size decides what is drawn, so it must be given")
    if args.torch_compile_mode is not None:
        with _refusal_of("torch_compile_mode"):
            torch.compile(nn.Identity(), **trainer.accelerator.state.dynamo_plugin.to_kwargs())
    if args.learning_rate_mapping:
        with _refusal_of("learning_rate_mapping"):
            trainer.get_optimizer_cls_and_kwargs(args, trainer.model)


@contextmanager
def _refusal_of(argument: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # torch, regular expressions and every optimizer raise their own kinds
        reason = shorten(str(error) or repr(error), 300, placeholder=" ...")
        raise RecipeError(f"{argument}: refused by the host ({reason})") from error
