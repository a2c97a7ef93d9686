"""Arms: clusters of a dataset that are drawn in its place. An arm is named after its dataset, such as `nq/3`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mixfluence.errors import RecipeError
from mixfluence.policy.bounds import Vector
from mixfluence.policy.initial import Initial, Weights
from mixfluence.schema import Count, Section

Number = TypeVar("Number", int, float)


class Arms(Section):
    """Draw clusters of each dataset instead of datasets.

    Every training set is cut by k-means of its queries' embeddings before training. A cluster starts with its part, by
    rows, of its dataset's weight; from then on it is measured and drawn like a dataset. Helps where only a part of a
    dataset suits the targets. More arms cost more to measure: use one inner step, a subset or a budget.

    A batch of one cluster also has harder in-batch negatives than one of the whole dataset. Two controls separate this
    from the effect of the weights: `static` with the same arms has the harder negatives and no learned weights, and
    `batches: dataset` has the learned weights and ordinary negatives.

    Cost: one forward pass of the encoder over the queries before training.

    Attributes:
        clusters: Most clusters of a dataset.
        per: What is cut. A cluster of the whole pool would have no weight to start with.
        rows_per_cluster: A dataset has one cluster for so many rows. Clusters that do not fill a batch are merged.
        batches: Rows of a batch: of one `cluster`, or of one `dataset` with its clusters mixed by their weights.
        encoder: The encoder that gives the vectors, as in `model.name`; the model that is trained if None.
    """

    clusters: Annotated[int, Field(ge=2, le=1024)] = 8
    per: Literal["dataset"] = "dataset"
    rows_per_cluster: Count = 250
    batches: Literal["cluster", "dataset"] = "cluster"
    encoder: str | None = None

    @property
    def label(self) -> str:
        """A short description for tables."""
        return f"{self.clusters} clusters" + (", mixed batches" if self.batches == "dataset" else "")

    def number(self, rows: int) -> int:
        """Return into how many clusters a dataset is cut, before small ones are merged."""
        return max(1, min(self.clusters, rows // self.rows_per_cluster))

    def expected_sizes(self, train: Mapping[str, int]) -> dict[str, int]:
        """Return arms with their rows as if all clusters of a dataset were equally large."""
        return {
            arm_name(name, place): len(range(place, rows, number))
            for name, rows in train.items()
            for number in [self.number(rows)]
            for place in range(number)
        }

    def logits(self, init: Initial, sizes: Mapping[str, int]) -> Vector:
        """Return the initial logits of arms: each has its part of its dataset's weight.

        Weights that name all arms, as an earlier stage finds them, are taken as they are.
        """
        if isinstance(init, Weights) and init.weights.keys() == sizes.keys():
            return init.logits(sizes)
        if uncut := [name for name in sizes if not dataset_of(name)]:
            raise RecipeError(
                f"arms: {uncut[0]!r} is not cut into clusters; use a recipe, or call cut_into_arms first"
            )
        datasets = totals(sizes)
        logits = dict(zip(datasets, init.logits(datasets).tolist(), strict=True))
        parts = [logits[dataset_of(name)] + np.log(size / datasets[dataset_of(name)]) for name, size in sizes.items()]
        return np.array(parts)


def arm_name(dataset: str, place: int) -> str:
    """Return the name of a cluster of a dataset."""
    return f"{dataset}/{place}"


def dataset_of(arm: str) -> str:
    """Return the dataset of an arm; an empty text for a name that is not an arm's."""
    return arm.rpartition("/")[0]


def siblings(arms: Iterable[str]) -> NDArray[np.int64]:
    """Return a number per arm that is the same for arms of one dataset."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(dataset_of(arm), len(numbers)) for arm in arms], np.int64)


def totals(values: Mapping[str, Number]) -> dict[str, Number]:
    """Return the sum over the arms of each dataset."""
    found: dict[str, Number] = {}
    for arm, value in values.items():
        dataset = dataset_of(arm)
        found[dataset] = found[dataset] + value if dataset in found else value
    return found
