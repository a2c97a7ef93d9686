"""Runs, samplers, starts and pools in the few words that a table has room for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mixfluence.recipe import Recipe

_WIDEST_POOL = 24


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or the whole paths if that would make two runs look like one."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def sampler_label(recipe: Recipe) -> str:
    """Return the method's name as papers write it."""
    return recipe.strategy.label


def initial_label(recipe: Recipe) -> str:
    """Return where the probabilities start."""
    return recipe.strategy.start_label


def guides(recipe: Recipe) -> tuple[str, ...]:
    """Return the dev sets that guide sampling: none if the sampler needs none."""
    return tuple(recipe.dev) if recipe.strategy.needs_dev else ()


def pool_labels(pools: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the names of each pool's sets if there is room for them, else how many they are.

    Different pools of as many sets are told apart by a letter.
    """
    long = [pool for pool in dict.fromkeys(pools) if len(", ".join(pool)) > _WIDEST_POOL]
    labels = {pool: ", ".join(pool) or "-" for pool in pools if pool not in long}
    for pool in long:
        alike = [other for other in long if len(other) == len(pool)]
        letter = f" ({chr(ord('a') + alike.index(pool))})" if len(alike) > 1 else ""
        labels[pool] = f"{len(pool)} set{'s' if len(pool) > 1 else ''}{letter}"
    return [labels[pool] for pool in pools]
