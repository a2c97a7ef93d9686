"""Which sampler a recipe asks for, and how it is to work."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from mixfluence.config.parts import Bounds, InitialSection, ProbeSection, bare
from mixfluence.config.presets import PRESETS
from mixfluence.config.samplers import (
    AioliSection,
    CooldownSection,
    CrispSection,
    DoGESection,
    DoReMiSection,
    MultiDDSSection,
    ReplaySection,
    StaticSection,
    TargetOnlySection,
    TDROSection,
)
from mixfluence.schema import Count, Positive, Section, Share, word_or_positive

RULES = ("gradient", "mirror", "matching", "anchored")


class GradientSection(Section):
    """The paper's rule."""

    name: Literal["gradient"]
    step: Positive = 0.02
    optimizer: Literal["adam", "sgd"] = "adam"


class MirrorSection(Section):
    """Standardised influences add up."""

    name: Literal["mirror"]
    step: Positive = 0.3


class MatchingSection(Section):
    """Probabilities follow the shares of the rewards."""

    name: Literal["matching"]
    step: Annotated[float, Field(gt=0, lt=1)] = 0.1


class AnchoredSection(Section):
    """The start plus the running mean of standardised influence."""

    name: Literal["anchored"]
    reach: Positive = 2.0
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.9


AnyRule = Annotated[GradientSection | MirrorSection | MatchingSection | AnchoredSection, Field(discriminator="name")]


class ReptileSection(Section):
    """How the model follows its probes. A bare word is the rate; `off` goes back exactly."""

    rate: Annotated[str | float, word_or_positive("off", "relative", "literal")] = "off"
    weights: Literal["softmax", "sum"] = "softmax"


class InfDDSSection(Bounds):
    """Sampling guided by influence on the dev sets. A preset fills in what the recipe does not say.

    It is not kept: values written out with its name would read otherwise where one is null, or the preset has changed.
    """

    name: Literal["inf-dds"]
    preset: Literal["paper", "paper-sentence-transformers", "paper-mldr"] | None = None
    init: InitialSection = InitialSection(temperature=1.0)
    update_every: Count = 50
    warmup_steps: Annotated[int, Field(ge=0)] = 25
    inner_steps: Annotated[int, Field(ge=0)] = 3
    subset: Annotated[int, Field(ge=2)] | None = None
    probe: ProbeSection = ProbeSection()
    rule: Annotated[AnyRule, bare("rule")] = AnchoredSection(name="anchored")
    reptile: Annotated[ReptileSection, bare("reptile")] = ReptileSection()
    shrink: bool = True
    gate: bool = True
    freeze_below: Share = 0.1

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        name = data.get("preset") if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in PRESETS:
            return data
        preset = PRESETS[name]
        # A section that both have is merged key by key, so that one key of it can be changed.
        merged = {key: preset[key] | data[key] for key in data if _both_mappings(preset.get(key), data[key])}
        return {**preset, **data, **merged, "preset": None}


def _both_mappings(first: Any, second: Any) -> bool:
    return isinstance(first, dict) and isinstance(second, dict) and second.get("name") in (None, first.get("name"))


AnyStrategy = Annotated[
    StaticSection
    | InfDDSSection
    | CooldownSection
    | MultiDDSSection
    | DoGESection
    | DoReMiSection
    | CrispSection
    | TDROSection
    | AioliSection
    | TargetOnlySection
    | ReplaySection,
    Field(discriminator="name"),
]


def _static_unless_named(data: Any) -> Any:
    return {"name": "static", **data} if isinstance(data, dict) else data


Strategy = Annotated[AnyStrategy, BeforeValidator(_static_unless_named), bare("strategy")]
