"""Short labels for samplers, starts, stages and dataset pools. The only module of this package that knows samplers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mixfluence.config.parts import InitialSection
from mixfluence.config.samplers import (
    CooldownSection,
    CrispSection,
    DoGESection,
    DoReMiSection,
    ReplaySection,
    TDROSection,
)
from mixfluence.recipe import GUIDED, Recipe
from mixfluence.runs import Group

FINAL = "final"
_SAMPLERS = {
    "static": "Static",
    "cooldown": "Cooldown",
    "inf-dds": "Inf-DDS",
    "multidds": "MultiDDS",
    "doge": "DoGE",
    "doremi": "DoReMi",
    "tdro": "tDRO",
    "aioli": "Aioli",
    "target-only": "Target only",
    "replay": "Replay",
}
# Their last stage samples by what an earlier one found.
_PROXIES = {"doge", "doremi", "tdro"}
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
    recipe = group.recipe
    return Method(sampler_label(recipe), initial_label(recipe), tuple(recipe.train), guides(recipe))


def sampler_label(recipe: Recipe) -> str:
    """Return the sampler's name as papers write it; CRISP with its number of clusters."""
    section = recipe.strategy
    if isinstance(section, CrispSection):
        return f"CRISP-{section.branching**section.levels}"
    return _SAMPLERS.get(section.name, section.name)


def initial_label(recipe: Recipe) -> str:
    """Return where the probabilities start: a temperature, or their source."""
    section = recipe.strategy
    if isinstance(section, CooldownSection):
        return f"τ={_number(section.hot)}→{_number(section.cold)}"
    if isinstance(section, CrispSection):
        return "clusters"
    if isinstance(section, ReplaySection):
        return f"{section.which} of {section.run.name}"
    start = _start_label(section.init)
    return f"proxy, {start}" if section.name in _PROXIES else start


def guides(recipe: Recipe) -> tuple[str, ...]:
    """Return the dev sets that guide sampling; none if the sampler uses none."""
    return tuple(recipe.dev) if recipe.strategy.name in GUIDED else ()


def draws_clusters(recipe: Recipe) -> bool:
    """Return whether batches are drawn from clusters instead of datasets."""
    return isinstance(recipe.strategy, CrispSection)


def stage_steps(recipe: Recipe) -> dict[str, int]:
    """Return the names and steps of a recipe's stages, in order."""
    section, steps = recipe.strategy, recipe.training.steps
    stages = {}
    if isinstance(section, DoReMiSection | TDROSection):
        stages = {"reference": section.reference_steps, "proxy": section.proxy_steps}
    elif isinstance(section, DoGESection):
        stages = dict.fromkeys(["proxy", "second-proxy"][: section.rounds], section.proxy_steps)
    return {name: own or steps for name, own in stages.items()} | {FINAL: steps}


def pool_labels(pools: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the datasets of each pool if they are few, else their number; a letter tells equal numbers apart."""
    long = [pool for pool in dict.fromkeys(pools) if len(", ".join(pool)) > _WIDEST_POOL]
    labels = {pool: ", ".join(pool) or "-" for pool in pools if pool not in long}
    for pool in long:
        alike = [other for other in long if len(other) == len(pool)]
        letter = f" ({chr(ord('a') + alike.index(pool))})" if len(alike) > 1 else ""
        labels[pool] = f"{len(pool)} set{'s' if len(pool) > 1 else ''}{letter}"
    return [labels[pool] for pool in pools]


def _start_label(start: InitialSection) -> str:
    if start.temperature is not None:
        return f"τ={_number(start.temperature)}"
    return f"from {start.file.name}" if start.file else "given weights"


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"
