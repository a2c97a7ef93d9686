"""Pieces of a recipe's strategy that several samplers share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mixfluence.schema import NonNegative, PathLike, Positive, Section, Share, word_or_positive

# Infinity stands for uniform sampling.
Temperature = Annotated[float, Field(gt=0)]


# Sections for which a bare value may stand: the key whose value it is.
BARE_VALUES = {"strategy": "name", "rule": "name", "reptile": "rate"}


def bare(section: str) -> BeforeValidator:
    """Let a bare value stand for a section."""

    def spell_out(data: Any) -> Any:
        bare = isinstance(data, str | float | int) and not isinstance(data, bool)
        return {BARE_VALUES[section]: data} if bare else data

    return BeforeValidator(spell_out)


class InitialSection(Section):
    """The starting distribution: exactly one of a temperature, weights, or a file of weights.

    The words `uniform` and `proportional` stand for the temperatures infinity and 1.
    """

    temperature: Temperature | None = None
    weights: dict[str, NonNegative] | None = None
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
        if self.weights is not None and not any(self.weights.values()):
            raise ValueError("at least one weight must be above 0")
        return self


class ProbeSection(Section):
    """How datasets are tried out and judged; see `mixfluence.influence.Probe`."""

    state: Literal["inherited", "momentum-free"] = "inherited"
    learning_rate: Annotated[str | float, word_or_positive("current", "floored")] = "current"
    batch_size: Annotated[int, Field(ge=2)] | None = None
    dev_batch_size: Annotated[int, Field(ge=2)] = 256
    metric: Literal["info-nce", "info-nce-hard", "soft-ndcg", "distillation", "training-loss"] = "info-nce"
    aggregate: Literal["mean", "relative", "worst"] = "mean"
    snapshot: Literal["device", "host"] = "device"


class Bounds(Section):
    """What any sampler may be held to."""

    floor: Share = 0.0
    max_epochs: Positive | None = None
