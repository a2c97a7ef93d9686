"""Rows become the Trainer's batches: datasets are tokenised once, then looked up by row and padded or packed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.training_args import BaseTrainingArguments
from torch.utils.data import DataLoader, Dataset

from mixfluence.data.mixture import Mixture
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.data.tokens import TokenisedRows, TokenLayout
from mixfluence.errors import RecipeError
from mixfluence.training.packing import Packing
from mixfluence.training.sampler import MixtureBatchSampler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenBatch:
    """Token ids of rows of one dataset: a list of texts per column, and teacher scores if it has any."""

    dataset: str
    columns: dict[str, list[NDArray[np.int32]]]
    layouts: dict[str, TokenLayout]
    scores: NDArray[np.float32] | None


Collate = Callable[..., dict[str, Any]]
# Hard negatives per row, or by dataset; None, or a name that is missing, for as many as every row has.
NumNegatives = int | Mapping[str, int] | None


class MixtureRows(Dataset[TokenBatch]):
    """All datasets of a mixture as one list of rows, looked up a batch at a time, with some negatives per row."""

    def __init__(self, datasets: Mapping[str, TokenisedRows], negatives: Mapping[str, int]) -> None:
        self._names = list(datasets)
        self._datasets = list(datasets.values())
        self._negatives = [negatives[name] for name in self._names]
        self._ends = np.cumsum([len(dataset) for dataset in self._datasets])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitems__(self, numbers: Sequence[int]) -> TokenBatch:
        """Return the rows with these numbers, which must be of one dataset."""
        which = int(np.searchsorted(self._ends, numbers[0], side="right"))
        first = self._ends[which] - len(self._datasets[which])
        return self.batch(which, np.array(numbers, np.int64) - first)

    def batch(self, which: int, rows: NDArray[np.int64]) -> TokenBatch:
        """Return rows of a dataset, both counted from 0."""
        dataset = self._datasets[which]
        passages, scores = dataset.candidates(rows, self._negatives[which])
        names = ["positive", *(f"negative_{i}" for i in range(1, passages.shape[1]))]
        columns = {"anchor": dataset.queries.token_ids(dataset.anchors[rows])}
        columns |= {name: dataset.documents.token_ids(passages[:, i]) for i, name in enumerate(names)}
        layouts = {name: dataset.documents.layout for name in names} | {"anchor": dataset.queries.layout}
        return TokenBatch(self._names[which], columns, layouts, scores if dataset.has_scores else None)


def collate(batch: TokenBatch, *, name_datasets: bool = False, packing: Packing | None = None) -> dict[str, Any]:
    """Return a batch as the Trainer takes it, padded unless packed, with teacher scores as the label.

    A dict of losses needs the name of the dataset.
    """
    inputs: dict[str, Any] = {"dataset_name": batch.dataset} if name_datasets else {}
    for column, texts in batch.columns.items():
        layout = batch.layouts[column]
        if layout.text:
            inputs[column] = layout.decode(texts)
            continue
        features = packing.features(layout, texts) if packing else layout.features(texts)
        inputs |= {f"{column}_{name}": value for name, value in features.items()}
    if batch.scores is not None:
        inputs["label"] = torch.from_numpy(batch.scores)
    return inputs


class PlacedLoader(DataLoader[TokenBatch]):
    """A loader that copies each batch to the device while the device still works on the previous step.

    It must not be prepared by accelerate: the sampler already gives each process its shard, and accelerate would read
    one batch ahead, which delays new weights by a step.
    """

    def __init__(
        self,
        args: BaseTrainingArguments,
        rows: MixtureRows,
        sampler: MixtureBatchSampler,
        collate_fn: Collate,
    ) -> None:
        super().__init__(
            rows,
            batch_sampler=sampler,
            collate_fn=collate_fn,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        self._device = args.device

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield send_to_device(batch, self._device, non_blocking=True)


def tokenise_all(
    datasets: Mixture, model: BaseModel, args: BaseTrainingArguments, names: Container[str]
) -> dict[str, TokenisedRows]:
    """Return the token ids of every dataset, from the cache if possible; prompts may refer to any of `names`."""
    tokeniser = Tokeniser(model)
    console = Console(stderr=True)
    # All processes tokenise; the cache makes the others wait for the first one, without the process group's timeout.
    silent = args.disable_tqdm or not console.is_terminal or args.local_process_index > 0
    with Progress(console=console, transient=True, disable=silent) as progress:
        wholes = {rows.whole.fingerprint: len(rows.whole) for rows in datasets.values()}
        bar = progress.add_task("tokenising", total=sum(wholes.values()))
        found = {
            name: tokenise(
                datasets[name], tokeniser, prompts_of(args, name, names), lambda count: progress.advance(bar, count)
            )
            for name in _own_first(list(datasets), args)
        }
        return {name: found[name] for name in datasets}


def _own_first(names: list[str], args: BaseTrainingArguments) -> list[str]:
    """Return the datasets in the order in which a process opens them.

    Each node begins with another share of them, so that nodes with a shared cache divide the tokenising.
    """
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))
    first = len(names) * (args.process_index // per_node) * per_node // args.world_size
    return names[first:] + names[:first]


def prompts_of(args: BaseTrainingArguments, dataset: str, datasets: Container[str]) -> Prompts:
    """Read the argument `prompts` for a dataset: one text, a text per column, or either of these per dataset."""
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


def negatives_per_row(tokenised: Mapping[str, TokenisedRows], wanted: NumNegatives) -> dict[str, int]:
    """Return the number of hard negatives per row: as many as every row has, unless a number is wanted."""
    chosen = chosen_negatives(wanted, tokenised)
    least = {name: rows.least_negatives for name, rows in tokenised.items()}
    for name, fewest in least.items():
        if name not in chosen and fewest < (most := tokenised[name].most_negatives):
            logger.warning("%s: rows have %d to %d hard negatives; using %d", name, fewest, most, fewest)
    return least | chosen


def chosen_negatives(wanted: NumNegatives, datasets: Iterable[str]) -> dict[str, int]:
    """Return the hard negatives per row of the datasets for which a number is wanted."""
    given = wanted if isinstance(wanted, Mapping) else dict.fromkeys(datasets, wanted)
    return {name: number for name, number in given.items() if number is not None}


def dev_negatives_per_row(dev: Mapping[str, TokenisedRows], wanted: NumNegatives) -> dict[str, int]:
    """Return the number of hard negatives of dev rows: as many as any row has, but no more than training uses.

    A limit for some training sets only does not apply, because all targets are measured alike.
    """
    wanted = None if isinstance(wanted, Mapping) else wanted
    return {name: min(wanted or rows.most_negatives, rows.most_negatives) for name, rows in dev.items()}
