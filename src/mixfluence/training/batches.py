"""Row numbers become the host's batches: token ids are looked up, then padded or laid end to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from mixfluence.data.tokens import TokenisedRows, TokenLayout
from mixfluence.training.packing import Packing


@dataclass(frozen=True)
class TokenBatch:
    """Token ids of one dataset's rows: a list of texts per column, and teacher scores if there are any."""

    dataset: str
    columns: dict[str, list[NDArray[np.int32]]]
    layouts: dict[str, TokenLayout]
    scores: NDArray[np.float32] | None


class MixtureRows(Dataset[TokenBatch]):
    """All datasets of a mixture as one long list of rows, looked up a batch at a time.

    Args:
        datasets: Token ids of each dataset, in the order in which rows are numbered.
        negatives: Hard negatives per row of each dataset.
    """

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


class Collator:
    """Turns token ids into the features the host's losses take; teacher scores become the label.

    Args:
        name_datasets: Whether the batch says which dataset it is of, as a dict of losses needs it.
        packing: How texts are laid end to end; None pads them.
    """

    def __init__(self, name_datasets: bool = False, packing: Packing | None = None) -> None:
        self._name_datasets = name_datasets
        self._packing = packing

    def __call__(self, batch: TokenBatch) -> dict[str, Any]:
        """Return the batch as the host's trainer takes it."""
        inputs: dict[str, Any] = {"dataset_name": batch.dataset} if self._name_datasets else {}
        for column, texts in batch.columns.items():
            layout = batch.layouts[column]
            features = self._packing.features(layout, texts) if self._packing else layout.features(texts)
            inputs |= {f"{column}_{name}": value for name, value in features.items()}
        if batch.scores is not None:
            inputs["label"] = torch.from_numpy(batch.scores)
        return inputs


class PlacedLoader(DataLoader[TokenBatch]):
    """A loader whose batches are already on their device, copied while the device still works on the step before.

    Args:
        device: Where to put them.
        **options: As for the parent.
    """

    def __init__(self, *args: Any, device: torch.device, **options: Any) -> None:
        super().__init__(*args, **options)
        self._device = device

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield batches where they are needed."""
        for batch in super().__iter__():
            yield send_to_device(batch, self._device, non_blocking=True)
