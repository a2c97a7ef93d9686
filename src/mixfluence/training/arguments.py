"""Arguments of `MixtureTrainer`: what may be written in short, and what is refused before anything is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import isclass
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from sentence_transformers.base.sampler import BatchSamplers, MultiDatasetBatchSamplers
from sentence_transformers.base.training_args import BaseTrainingArguments

from mixfluence.data.columns import ColumnMap
from mixfluence.data.mixture import Mixture
from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import RowSet
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import Alignment
from mixfluence.schema import short, unknown_key
from mixfluence.strategies import STRATEGIES, Static, Strategy
from mixfluence.training.losses import GroupLoss, has_part

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureMixin

# Training arguments that cannot work with a mixture, the value that can, and why.
FIXED: dict[str, tuple[Any, str]] = {
    "auto_find_batch_size": (False, "the draws depend on the batch size"),
    "save_only_model": (False, "a checkpoint without its optimizer cannot be resumed exactly"),
    "ignore_data_skip": (False, "a resumed run could not repeat its draws"),
    "dataloader_persistent_workers": (False, "a resumed run could not repeat its draws"),
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


def check_dev(strategy: Strategy, dev: Mapping[str, Any]) -> None:
    """Refuse dev sets that a strategy cannot work with."""
    if strategy.probing and not dev:
        raise DataError(f"dev_dataset: {type(strategy).__name__} needs at least one dev set")
    try:
        strategy.check_guards(dev)
    except ValueError as error:
        raise RecipeError(str(error)) from error


def check_loss(strategy: Strategy, loss: object) -> None:
    """Refuse losses that a strategy which weighs them cannot weigh."""
    losses = loss.values() if isinstance(loss, Mapping) else [loss]
    if type(strategy).weigh is not Strategy.weigh and not all(has_part(own, GroupLoss) for own in losses):
        how = "loss=group_losses(model, reference, strategy, names)"
        raise RecipeError(
            f"loss: {strategy.label} compares the model with a reference and weighs its losses; write {how}"
        )


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
