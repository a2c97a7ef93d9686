"""Which sampler a recipe asks for, and how it is to work."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mixfluence.config.presets import PRESETS
from mixfluence.config.sources import PathLike, Section

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


# Sections for which a bare value may stand: the key whose value it is.
BARE_VALUES = {"strategy": "name", "rule": "name", "reptile": "rate"}
RULES = ("gradient", "mirror", "matching", "anchored")


def _bare(section: str) -> BeforeValidator:
    """Let a bare value stand for a section."""

    def spell_out(data: Any) -> Any:
        bare = isinstance(data, str | float | int) and not isinstance(data, bool)
        return {BARE_VALUES[section]: data} if bare else data

    return BeforeValidator(spell_out)


def _word_or_positive(*words: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value in words or (number and 0 < value < math.inf):
            return value
        raise ValueError(f"expected {', '.join(words)} or a number above 0, found {value!r}")

    return BeforeValidator(check)


class InitialSection(Section):
    """The starting distribution: exactly one of a temperature, weights, or a file of weights.

    The words `uniform` and `proportional` stand for the temperatures infinity and 1.
    """

    temperature: Positive | None = None
    weights: dict[str, float] | None = None
    file: PathLike | None = None

    @model_validator(mode="before")
    @classmethod
    def _words(cls, data: Any) -> Any:
        words = {"uniform": {"temperature": float("inf")}, "proportional": {"temperature": 1.0}}
        if isinstance(data, str):
            if data not in words:
                raise ValueError(f"expected uniform, proportional, temperature, weights or file, found {data!r}")
            return words[data]
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("temperature", "weights", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of temperature, weights and file, found {', '.join(given) or 'none'}")
        return self


class StaticSection(Section):
    """Sampling that never changes: where it is, and the bounds it keeps."""

    name: Literal["static"] = "static"
    init: InitialSection = InitialSection(temperature=1.0)
    floor: Share = 0.0
    max_epochs: Positive | None = None


class ProbeSection(Section):
    """How datasets are tried out and judged; see `mixfluence.influence.Probe`."""

    state: Literal["inherited", "momentum-free"] = "inherited"
    learning_rate: Annotated[str | float, _word_or_positive("current", "floored")] = "current"
    batch_size: Annotated[int, Field(ge=2)] | None = None
    dev_batch_size: Annotated[int, Field(ge=2)] = 256
    metric: Literal["info-nce", "info-nce-hard", "soft-ndcg", "distillation", "training-loss"] = "info-nce"
    aggregate: Literal["mean", "relative", "worst"] = "mean"
    snapshot: Literal["device", "host"] = "device"


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

    rate: Annotated[str | float, _word_or_positive("off", "relative", "literal")] = "off"
    weights: Literal["softmax", "sum"] = "softmax"


class InfDDSSection(Section):
    """Sampling guided by influence on the dev sets. A preset fills in what the recipe does not say."""

    name: Literal["inf-dds"]
    preset: Literal["paper", "paper-sentence-transformers", "paper-mldr"] | None = None
    init: InitialSection = InitialSection(temperature=1.0)
    update_every: Count = 50
    warmup_steps: Annotated[int, Field(ge=0)] = 25
    inner_steps: Annotated[int, Field(ge=0)] = 3
    subset: Annotated[int, Field(ge=2)] | None = None
    probe: ProbeSection = ProbeSection()
    rule: Annotated[AnyRule, _bare("rule")] = AnchoredSection(name="anchored")
    reptile: Annotated[ReptileSection, _bare("reptile")] = ReptileSection()
    shrink: bool = True
    gate: bool = True
    freeze_below: Share = 0.1
    floor: Share = 0.0
    max_epochs: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        name = data.get("preset") if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in PRESETS:
            return data
        preset = PRESETS[name]
        # A section that both have is merged key by key, so that one key of it can be changed.
        merged = {key: preset[key] | data[key] for key in data if _both_mappings(preset.get(key), data[key])}
        return {**preset, **data, **merged}


def _both_mappings(first: Any, second: Any) -> bool:
    return isinstance(first, dict) and isinstance(second, dict) and second.get("name") in (None, first.get("name"))


AnyStrategy = Annotated[StaticSection | InfDDSSection, Field(discriminator="name")]


def _static_unless_named(data: Any) -> Any:
    return {"name": "static", **data} if isinstance(data, dict) else data


Strategy = Annotated[AnyStrategy, BeforeValidator(_static_unless_named), _bare("strategy")]
