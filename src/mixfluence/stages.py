"""The runs a method is made of, and the sampler of each: most have one, DoGE two, DoReMi and tDRO three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mixfluence.config.parts import InitialSection, ProbeSection
from mixfluence.config.samplers import (
    AioliSection,
    AlignmentSection,
    CrispSection,
    DoGESection,
    DoReMiSection,
    MultiDDSSection,
    ReplaySection,
    TargetOnlySection,
    TDROSection,
)
from mixfluence.config.strategy import InfDDSSection
from mixfluence.data.weights import read_weights, replayed_weights
from mixfluence.influence import (
    Alignment,
    Metric,
    Probe,
    Reptile,
    distillation_metric,
    info_nce_metric,
    soft_ndcg_metric,
)
from mixfluence.policy import RULES, Initial, Temperature, Weights
from mixfluence.recipe import Recipe
from mixfluence.strategies import STRATEGIES, TDRO, DoGE, DoReMi, Static, Strategy

FINAL = "final"


@dataclass(frozen=True)
class Stage:
    """One of the runs that a method is made of.

    Attributes:
        name: `final` for the last one, whose model is the result.
        steps: How long it trains.
        strategy: Returns its sampler, given the mixture that was found before it.
        against: The stage with whose model the losses of this one are compared; None for plain training.
    """

    name: str
    steps: int
    strategy: Callable[[Mapping[str, float]], Strategy]
    against: str | None = None


def build_stages(recipe: Recipe) -> list[Stage]:
    """Return the runs that a recipe asks for, in their order."""
    section, steps = recipe.strategy, recipe.training.steps
    if isinstance(section, DoGESection):
        return [*_doge_proxies(section, steps, recipe.training.temperature), _with_found(section, steps)]
    if isinstance(section, DoReMiSection | TDROSection):
        initial, proxy = _initial(section.init), _proxy(section)
        return [
            Stage("reference", section.reference_steps or steps, lambda found: Static(initial)),
            Stage("proxy", section.proxy_steps or steps, lambda found: proxy, against="reference"),
            _with_found(section, steps),
        ]
    return [Stage(FINAL, steps, lambda found: build_strategy(recipe, found))]


def build_strategy(recipe: Recipe, found: Mapping[str, float] | None = None) -> Strategy:
    """Set up the sampler of a method with one run.

    Args:
        recipe: What to do.
        found: The probability of each cluster, for a method that draws clusters.
    """
    section, temperature = recipe.strategy, recipe.training.temperature
    match section:
        case CrispSection():
            options: dict[str, Any] = {"weights": found, "max_epochs": section.max_epochs}
        case ReplaySection():
            options = {"weights": replayed_weights(section.run, section.which), "max_epochs": section.max_epochs}
        case _:
            options = section.model_dump(exclude={"name", "preset"})
    match section:
        case InfDDSSection():
            options["probe"] = _probe(section.probe, temperature)
            options["rule"] = RULES[section.rule.name](**section.rule.model_dump(exclude={"name"}))
            options["reptile"] = None if section.reptile.rate == "off" else Reptile(**section.reptile.model_dump())
        case AioliSection():
            options["probe"] = _probe(section.probe, temperature)
        case MultiDDSSection():
            options["alignment"] = _alignment(section.alignment, temperature, "cosine")
        case TargetOnlySection():
            options["targets"] = list(recipe.dev)
    if "init" in options:
        options["init"] = _initial(section.init)  # type: ignore[union-attr]
    return STRATEGIES[section.name](**options)


def _with_found(section: DoGESection | DoReMiSection | TDROSection, steps: int) -> Stage:
    return Stage(FINAL, steps, lambda found: Static(Weights(found), max_epochs=section.max_epochs))


def _doge_proxies(section: DoGESection, steps: int, temperature: float) -> list[Stage]:
    """Return the proxy runs: a second one starts from what the first has found."""
    own = section.model_dump(include={"update_every", "step", "clip", "smoothing"})
    alignment = _alignment(section.alignment, temperature, "projection")

    def strategy(found: Mapping[str, float]) -> Strategy:
        return DoGE(Weights(found) if found else _initial(section.init), alignment=alignment, **own)

    names = ["proxy", "second-proxy"][: section.rounds]
    return [Stage(name, section.proxy_steps or steps, strategy) for name in names]


def _proxy(section: DoReMiSection | TDROSection) -> Strategy:
    if isinstance(section, DoReMiSection):
        return DoReMi(rate=section.rate, smoothing=section.smoothing)
    return TDRO(rate=section.rate, keep=section.keep)


def _probe(section: ProbeSection, temperature: float) -> Probe:
    options: dict[str, Any] = section.model_dump(exclude={"metric"})
    return Probe(metric=_metric(section.metric, temperature), **options)


def _alignment(section: AlignmentSection, temperature: float, score: Literal["cosine", "projection"]) -> Alignment:
    options: dict[str, Any] = section.model_dump(exclude={"metric"})
    return Alignment(metric=_metric(section.metric, temperature), score=score, **options)


def _metric(name: str, temperature: float) -> Metric | Literal["training-loss"]:
    metrics: dict[str, Metric | Literal["training-loss"]] = {
        "info-nce": info_nce_metric(temperature),
        "info-nce-hard": info_nce_metric(temperature, hard_negatives=True),
        "soft-ndcg": soft_ndcg_metric(temperature),
        "distillation": distillation_metric(temperature),
        "training-loss": "training-loss",
    }
    return metrics[name]


def _initial(section: InitialSection) -> Initial:
    if section.temperature is not None:
        return Temperature(section.temperature)
    return Weights(read_weights(section.file) if section.file else section.weights or {})
