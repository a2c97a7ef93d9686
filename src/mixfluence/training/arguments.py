"""Arguments of `MixtureTrainer`: what may be written in short, and what is refused before anything is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from inspect import isclass
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, DatasetDict
from sentence_transformers.base.sampler import BatchSamplers, MultiDatasetBatchSamplers
from sentence_transformers.base.training_args import BaseTrainingArguments

from mixfluence.data.columns import ColumnMap
from mixfluence.data.mixture import Mixture, text_columns
from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import RowSet
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import Alignment
from mixfluence.schema import short, unknown_key
from mixfluence.strategies import STRATEGIES, Static, Strategy
from mixfluence.training.losses import LABELLED, TAUGHT, GroupLoss, has_part

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureMixin

logger = logging.getLogger(__name__)

# Training arguments that cannot work with a mixture, the value that can, and why.
FIXED: dict[str, tuple[Any, str]] = {
    "auto_find_batch_size": (False, "the draws depend on the batch size"),
    "save_only_model": (False, "a checkpoint without its optimizer cannot be resumed exactly"),
    "ignore_data_skip": (False, "a resumed run could not repeat its draws"),
    "dataloader_persistent_workers": (False, "a resumed run could not repeat its draws"),
    "neftune_noise_alpha": (None, "sentence-transformers models do not take it"),
    "deepspeed": (None, "probes cannot restore the parameters and optimizer that it divides; use fsdp"),
    "batch_sampler": (BatchSamplers.BATCH_SAMPLER, "batches already contain no duplicates; leave it out"),
    "multi_dataset_batch_sampler": (MultiDatasetBatchSamplers.PROPORTIONAL, "give a strategy instead"),
}


def check_arguments(args: BaseTrainingArguments) -> None:
    """Refuse training arguments that cannot work with a mixture."""
    if args.n_gpu > 1:
        raise RecipeError(
            f"{args.n_gpu} GPUs are visible to one process, which trains on one: "
            f"use torchrun --nproc-per-node {args.n_gpu} for all, or CUDA_VISIBLE_DEVICES=0 for the first"
        )
    for name, (value, reason) in FIXED.items():
        if getattr(args, name) != value:
            raise RecipeError(f"{name}: not supported, {reason}")


def check_engine(trainer: MixtureMixin) -> None:
    """Refuse ways to divide a model among processes, and what does not work with FSDP2 or fp16."""
    if trainer.is_deepspeed_enabled:
        raise RecipeError(f"deepspeed: not supported, {FIXED['deepspeed'][1]}")
    probing = trainer.strategy.probing
    if probing and trainer.accelerator.mixed_precision not in {"no", "bf16"}:
        raise RecipeError("fp16: not supported with probes, which would change its loss scale; use bf16 or fp32")
    if not trainer.is_fsdp_enabled:
        if trainer.args.fsdp:
            raise RecipeError("fsdp: the trainer library shards models on GPUs only")
        return
    unsupported = {
        "version 1; set fsdp_config.version: 2": not trainer.accelerator.is_fsdp2,
        "packing or compiled": trainer.packing or trainer.compiled,
        "an evaluator or selection during training": trainer.evaluator is not None,
        "test_dataset; test the saved model": trainer.test,
        "gradient alignment; use inf-dds": probing and isinstance(probing.method, Alignment),
        "strategy.reptile; set it to off": probing and probing.reptile,
        "strategy.probe.processes: divided; set it to together": probing and probing.method.alone,
    }
    for what, found in unsupported.items():
        if found:
            raise RecipeError(f"fsdp: not supported with {what}")
    trainer.packing = False
    # Where accelerate looks for the last norm of a model. It would shard a `Normalize` of sentence-transformers, and
    # fail.
    trainer.model.base_model_prefix = "transformers_model"


def check_model(model: object, expected: type) -> None:
    """Refuse a model of another kind than a trainer expects; name the trainer for it."""
    from mixfluence.training.kinds import TRAINERS_BY_KIND

    if model is not None and not isinstance(model, expected):
        fitting = [kind.__name__ for kind in TRAINERS_BY_KIND.values() if isinstance(model, kind.model_class)]
        hint = f"; use {fitting[0]}" if fitting else ""
        raise RecipeError(f"model: expected a {expected.__name__}, found {_kind(model)}{hint}")


def read_datasets(
    train: object, dev: object, test: object, columns: Mapping[str, ColumnMap]
) -> tuple[Mixture, Mixture | None, dict[str, RetrievalSet]]:
    """Return the training, dev and test sets of a script; `columns` may name any that is not a retrieval task."""
    train = _named_datasets("train_dataset", train)
    dev = _named_datasets("dev_dataset", dev) if dev else {}
    test = _named_datasets("test_dataset", test, RetrievalSet) if test else {}
    pairs = [name for name, task in test.items() if not isinstance(task, RetrievalSet)]
    check_names({"columns": columns}, [*train, *dev, *pairs])
    tasks = {
        name: retrieval_from_rows(name, Mixture({name: task}, columns, "test set")[name]) if name in pairs else task
        for name, task in test.items()
    }
    return Mixture(train, columns), Mixture(dev, columns, "dev set") if dev else None, tasks


def _named_datasets(argument: str, datasets: object, *other: type) -> Mapping[str, Any]:
    """Return datasets, or objects of another class, by name; refuse anything else, and say how to write them."""
    if not isinstance(datasets, Mapping) or not datasets:
        how = f"{argument}={{'name': dataset}}"
        raise DataError(f"{argument}: expected at least one dataset by name, found {_kind(datasets)}; write {how}")
    for name, dataset in datasets.items():
        if not isinstance(dataset, (Dataset, RowSet, *other)):
            how = "Dataset.from_generator for a stream, Dataset.from_list for rows in memory"
            raise DataError(f"{argument}[{name!r}]: expected a Dataset, found {_kind(dataset)}; use {how}")
    return datasets


def check_dev(strategy: Strategy, dev: Mapping[str, Any], *, evaluated: bool) -> None:
    """Refuse dev sets that a strategy cannot work with; `evaluated` says whether there is an `eval_dataset`."""
    if strategy.probing and not dev:
        hint = "; eval_dataset is for the log alone, write dev_dataset={'name': dataset}" if evaluated else ""
        raise DataError(f"dev_dataset: {type(strategy).__name__} needs at least one dev set{hint}")
    try:
        strategy.check_guards(dev)
    except ValueError as error:
        raise RecipeError(str(error)) from error


def check_loss(loss: object, strategy: Strategy, model: object, datasets: Iterable[str]) -> None:
    """Refuse a loss that is missing or that cannot train the model on rows of a mixture, with the strategy."""
    losses: Mapping[str, object] = {"loss": loss}
    if isinstance(loss, Mapping):
        if missing := [name for name in datasets if name not in loss]:
            raise RecipeError(
                f"loss: missing for {', '.join(missing)}; give one loss for all, or one for each by name"
            )
        losses = {f"loss[{name!r}]": own for name, own in loss.items()}
    for place, own in losses.items():
        # None for all datasets is the default loss.
        if not callable(own) and not (own is loss is None):
            raise RecipeError(f"{place}: expected a loss such as info_nce(model), found {short(own)}")
        if model is not None and getattr(own, "model", model) is not model:
            raise RecipeError(f"{place}: trains another model than the one that was given")
        if has_part(own, *LABELLED):
            raise RecipeError(f"{place}: {_kind(own)} needs labels, but every row is trained as a positive pair")
    if type(strategy).weigh is not Strategy.weigh and not all(has_part(own, GroupLoss) for own in losses.values()):
        how = "loss=group_losses(model, reference, strategy, names)"
        raise RecipeError(
            f"loss: {strategy.label} compares the model with a reference and weighs its losses; write {how}"
        )


def evaluated_sets(dev: Mixture, loss: object, *, warn: bool) -> DatasetDict | None:
    """Return the dev sets whose loss can be computed, for the Trainer to evaluate; perhaps warn about the others."""
    losses = loss if isinstance(loss, Mapping) else dict.fromkeys(dev, loss)
    # Without the scores that some losses need.
    found = [name for name in dev if name in losses and not has_part(losses[name], *TAUGHT)]
    for name in dev if warn else ():
        if name not in found:
            reason = "its loss needs a teacher's scores" if name in losses else "there is none by its name"
            logger.warning("dev set %s: no loss is logged for it, because %s", name, reason)
    return text_columns({name: dev[name] for name in found}) or None


def check_counts(argument: str, counts: object, datasets: Iterable[str], *, least: int) -> None:
    """Refuse whole numbers by dataset that are none, are too small or name a dataset that does not exist."""
    expected = f"expected a whole number of at least {least}"
    if not isinstance(counts, Mapping):
        raise RecipeError(f"{argument}: {expected} for each dataset by name, found {short(counts)}")
    check_names({argument: counts}, datasets)
    for name, count in counts.items():
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < least:
            raise RecipeError(f"{argument}[{name!r}]: {expected}, found {short(count)}")


def check_names(arguments: Mapping[str, Mapping[str, Any]], datasets: Iterable[str]) -> None:
    """Refuse an argument by dataset that names one that does not exist."""
    for argument, values in arguments.items():
        for name in values:
            if name not in datasets:
                raise DataError(f"{argument}: {unknown_key(name, datasets)}")


def build_strategy(strategy: Strategy | type[Strategy] | str | None) -> Strategy:
    """Return a strategy, given one, its class, or its name in recipes; by default, draws proportional to size."""
    if isinstance(strategy, str):
        if strategy not in STRATEGIES:
            raise RecipeError(f"strategy: expected one of {', '.join(STRATEGIES)}, found {strategy!r}")
        strategy = STRATEGIES[strategy]
    if isclass(strategy) and issubclass(strategy, Strategy):
        return strategy()
    if strategy is not None and not isinstance(strategy, Strategy):
        raise RecipeError(f"strategy: expected one such as InfDDS() or 'inf-dds', found {short(strategy)}")
    return strategy or Static()


def _kind(value: object) -> str:
    return "none" if value is None or (isinstance(value, Mapping) and not value) else f"a {type(value).__name__}"
