"""Runs, samplers, starts and pools in the few words that a table has room for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mixfluence.config.parts import InitialSection
from mixfluence.config.samplers import CooldownSection, CrispSection, ReplaySection
from mixfluence.recipe import GUIDED, Recipe

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
# Their last run draws by what an earlier one found.
_PROXIES = {"doge", "doremi", "tdro"}
_WIDEST_POOL = 24


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or the whole paths if that would make two runs look like one."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def sampler_label(recipe: Recipe) -> str:
    """Return the method's name as papers write it; CRISP with its number of clusters."""
    section = recipe.strategy
    if isinstance(section, CrispSection):
        return f"CRISP-{section.branching**section.levels}"
    return _SAMPLERS.get(section.name, section.name)


def initial_label(recipe: Recipe) -> str:
    """Return where the probabilities start: a temperature, or what they are taken from."""
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
    """Return the dev sets that guide sampling: none if the sampler does not look at any."""
    return tuple(recipe.dev) if recipe.strategy.name in GUIDED else ()


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


def _start_label(start: InitialSection) -> str:
    if start.temperature is not None:
        return f"τ={_number(start.temperature)}"
    return f"from {start.file.name}" if start.file else "given weights"


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"
