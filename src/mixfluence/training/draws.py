"""The host's arguments, read as decisions about draws: how many, how large, from which seed, under which prompt."""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformerTrainingArguments

from mixfluence.data.tokenize import Prompts
from mixfluence.data.tokens import TokenisedRows
from mixfluence.errors import RecipeError
from mixfluence.strategies import Strategy
from mixfluence.training.part_streams import PartStream
from mixfluence.training.permutation import mix
from mixfluence.training.sampler import MixtureBatchSampler
from mixfluence.training.streams import Rows, RowStream

logger = logging.getLogger(__name__)


def build_sampler(
    args: SentenceTransformerTrainingArguments,
    strategy: Strategy,
    tokenised: Mapping[str, TokenisedRows],
    negatives: Mapping[str, int],
    parts: Mapping[str, Mapping[str, int]],
) -> MixtureBatchSampler:
    """Set up the draws of a whole run.

    Args:
        args: The host's. Without `max_steps`, an epoch has as many batches as all rows would fill.
        strategy: Decides the probabilities.
        tokenised: The datasets.
        negatives: Hard negatives per row of each dataset.
        parts: Rows of each dataset that belong together, by name and number; none if it is all of one kind.
    """
    seed = data_seed(args)
    sizes = batch_sizes(args.train_batch_size, args.world_size, tokenised)

    def stream(number: int, name: str) -> RowStream:
        rows, key = tokenised[name], mix(seed, 1 + number)

        def text_keys(chosen: Rows) -> NDArray[np.uint64]:
            return rows.text_keys(chosen, negatives[name])

        if not parts[name]:
            return RowStream(len(rows), text_keys, key)
        return PartStream(len(rows), text_keys, key, list(parts[name].values()), least=sizes[name])

    wanted = args.train_batch_size * args.world_size
    per_epoch, epochs = args.max_steps * args.gradient_accumulation_steps, 1
    if args.max_steps <= 0:
        per_epoch = math.ceil(sum(map(len, tokenised.values())) / wanted)
        epochs = math.ceil(args.num_train_epochs)
    for name, size in sizes.items():
        if size < wanted and args.process_index == 0:
            positives = tokenised[name].distinct_positives
            logger.warning("%s: %d distinct positives, so its batches hold %d rows", name, positives, size)
    return MixtureBatchSampler(
        [stream(number, name) for number, name in enumerate(tokenised)],
        strategy.weights,
        batch_sizes=list(sizes.values()),
        draws_per_epoch=per_epoch,
        epochs=epochs,
        seed=mix(seed),
        max_epochs=strategy.max_epochs,
        rank=args.process_index,
        world=args.world_size,
    )


def batch_sizes(wanted: int, world: int, tokenised: Mapping[str, TokenisedRows]) -> dict[str, int]:
    """Return rows per draw over all processes: a batch cannot hold more rows than distinct positives.

    Args:
        wanted: Rows per process.
        world: Processes that share a batch.
        tokenised: The datasets.
    """
    return {name: max(1, min(wanted, rows.distinct_positives // world)) * world for name, rows in tokenised.items()}


def negatives_per_row(tokenised: Mapping[str, TokenisedRows], wanted: int | None) -> dict[str, int]:
    """Return how many hard negatives rows are trained with; if none are wanted in particular, as many as all have.

    Args:
        tokenised: The datasets.
        wanted: For all of them; rows that have fewer repeat or borrow some.
    """
    if wanted is not None:
        return dict.fromkeys(tokenised, wanted)
    for name, rows in tokenised.items():
        least, most = rows.least_negatives, rows.most_negatives
        if least < most:
            logger.warning("%s: rows have %d to %d hard negatives; %d are used", name, least, most, least)
    return {name: rows.least_negatives for name, rows in tokenised.items()}


def dev_negatives_per_row(dev: Mapping[str, TokenisedRows], wanted: int | None) -> dict[str, int]:
    """Return how many hard negatives dev rows are judged with: a row without any must not take them from the others.

    Args:
        dev: The dev sets; one that has no negatives at all is judged without.
        wanted: As for training; None, or 0 where training has none, for as many as any row has.
    """
    return {name: min(wanted or rows.most_negatives, rows.most_negatives) for name, rows in dev.items()}


def fixed_settings(args: SentenceTransformerTrainingArguments) -> dict[str, int]:
    """Return what a resumed run must share with its checkpoint to draw the same batches."""
    return {
        "seed": data_seed(args),
        "batch size": args.train_batch_size * args.world_size,
        "gradient accumulation": args.gradient_accumulation_steps,
    }


def prompts_of(args: SentenceTransformerTrainingArguments, dataset: str, datasets: Container[str]) -> Prompts:
    """Read the host's `prompts` for a dataset: one text, a text per column, or either of these per dataset."""
    prompts: Any = args.prompts or {}
    if isinstance(prompts, dict):
        prompts = prompts.get(dataset, prompts)
    if isinstance(prompts, str):
        return Prompts(prompts, prompts)
    for name in prompts:
        if name not in {"anchor", "positive"} and name not in datasets:
            raise RecipeError(f"prompts: {name!r} is neither a dataset nor one of the columns anchor and positive")
    columns = {name: prompt for name, prompt in prompts.items() if isinstance(prompt, str)}
    return Prompts(columns.get("anchor", ""), columns.get("positive", ""))


def data_seed(args: SentenceTransformerTrainingArguments) -> int:
    """Return the seed of everything that is drawn."""
    return int(args.seed if args.data_seed is None else args.data_seed)
