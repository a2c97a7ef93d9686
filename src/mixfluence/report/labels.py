"""Short labels for methods and dataset pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mixfluence.runs import Group

_WIDEST_POOL = 24


class Method(NamedTuple):
    """What a table says of a group: sampler, start of its probabilities, training sets, dev sets that guide it."""

    sampler: str
    start: str
    train: tuple[str, ...]
    dev: tuple[str, ...]


def method_of(group: Group) -> Method:
    """Return the method of a group; a model that was only tested has a name and nothing else."""
    if name := group.runs[0].untrained:
        return Method("BM25" if name == "bm25" else name, "-", (), ())
    recipe, strategy = group.recipe, group.recipe.strategy
    dev = tuple(recipe.dev) if strategy.needs_dev else ()
    return Method(strategy.label, strategy.start_label, tuple(recipe.train), dev)


def pool_labels(pools: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the datasets of each pool if they are few, else their number; a letter tells equal numbers apart."""
    long = [pool for pool in dict.fromkeys(pools) if len(", ".join(pool)) > _WIDEST_POOL]
    labels = {pool: ", ".join(pool) or "-" for pool in pools if pool not in long}
    for pool in long:
        alike = [other for other in long if len(other) == len(pool)]
        letter = f" ({chr(ord('a') + alike.index(pool))})" if len(alike) > 1 else ""
        labels[pool] = f"{len(pool)} set{'s' if len(pool) > 1 else ''}{letter}"
    return [labels[pool] for pool in pools]
