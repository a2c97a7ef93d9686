"""Initial sampling distributions: by size, by given weights or by a file of weights."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from mixfluence.errors import DataError, RecipeError
from mixfluence.files import write_text
from mixfluence.policy.bounds import Vector
from mixfluence.schema import NonNegative, PathLike, Section, did_you_mean, error_message


class Initial(Section):
    """Where sampling starts."""

    @abstractmethod
    def logits(self, sizes: Mapping[str, int]) -> Vector:
        """Return one logit per dataset, in the order of `sizes`; their softmax is the distribution."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A short description for tables."""


class Temperature(Initial):
    """Sample dataset i in proportion to size_i ** (1 / temperature).

    A temperature of 1 is proportional to size, infinity is uniform, and one below 1 favours large datasets more
    than their size does. Use `Weights` when you already know the shares you want.
    """

    temperature: Annotated[float, Field(gt=0)] = 1.0

    if TYPE_CHECKING:

        def __init__(self, temperature: float = 1.0) -> None: ...

    def logits(self, sizes: Mapping[str, int]) -> Vector:
        sizes_log = np.log(np.fromiter(sizes.values(), dtype=np.float64))
        with np.errstate(over="ignore"):  # minus infinity: near a temperature of 0 only the largest is drawn
            return np.asarray((sizes_log - sizes_log.max()) / self.temperature)

    @model_serializer
    def _word(self) -> Any:
        return next((word for word, own in _WORDS.items() if own == self), {"temperature": self.temperature})

    @property
    def label(self) -> str:
        """The temperature."""
        return "uniform" if math.isinf(self.temperature) else f"τ={temperature_label(self.temperature)}"


class Weights(Initial):
    """Sample by given numbers, one per dataset, such as expert weights or what an earlier run learned.

    They need not sum to one; a dataset of weight zero is never drawn. Use `Temperature` when only the sizes
    should count.
    """

    weights: dict[str, NonNegative]

    if TYPE_CHECKING:

        def __init__(self, weights: Mapping[str, float]) -> None: ...

    @model_validator(mode="after")
    def _some_above_zero(self) -> Weights:
        if not any(self.weights.values()):
            raise ValueError("at least one weight must be above 0")
        return self

    def logits(self, sizes: Mapping[str, int]) -> Vector:
        for name in self.weights:
            if name not in sizes:
                raise RecipeError(f"weight for {name!r}, which is not a training dataset{did_you_mean(name, sizes)}")
        if missing := [name for name in sizes if name not in self.weights]:
            raise RecipeError(f"no weight for {', '.join(map(repr, missing))}")
        with np.errstate(divide="ignore"):
            return np.log(np.array([self.weights[name] for name in sizes], dtype=np.float64))

    @property
    def label(self) -> str:
        return "given weights"


class WeightsFile(Initial):
    """Sample by the weights in a JSON file, such as the `weights.json` of an earlier run."""

    file: PathLike

    def logits(self, sizes: Mapping[str, int]) -> Vector:
        return Weights(read_weights(self.file)).logits(sizes)

    @property
    def label(self) -> str:
        return f"from {self.file.name}"


UNIFORM, PROPORTIONAL = Temperature(math.inf), Temperature(1.0)
_KINDS: dict[str, type[Initial]] = {"temperature": Temperature, "weights": Weights, "file": WeightsFile}
_WORDS = {"uniform": UNIFORM, "proportional": PROPORTIONAL}
_WEIGHTS = TypeAdapter(Annotated[dict[str, NonNegative], Field(min_length=1)], config=ConfigDict(strict=True))


def _from_recipe(data: Any) -> Any:
    """Return the distribution that a word, or a mapping with the key of exactly one kind, stands for."""
    if isinstance(data, str):
        if data not in _WORDS:
            raise ValueError(f"expected uniform, proportional, temperature, weights or file, found {data!r}")
        return _WORDS[data]
    if not isinstance(data, dict):
        return data
    given = {key: value for key, value in data.items() if value is not None}
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        found = ", ".join(map(str, given)) or "none"
        raise ValueError(f"give exactly one of temperature, weights and file, found {found}")
    return _KINDS[kinds[0]].model_validate(given)


InitialField = Annotated[SerializeAsAny[Initial], BeforeValidator(_from_recipe)]


def temperature_label(temperature: float) -> str:
    """Return a temperature as tables show it."""
    return "∞" if math.isinf(temperature) else f"{temperature:g}"


def read_weights(path: Path) -> dict[str, float]:
    """Read a weight file."""
    if not path.is_file():
        raise DataError(f"{path}: no such weight file")
    try:
        return _WEIGHTS.validate_python(json.loads(path.read_bytes()))
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{key!r}: " for key in first["loc"])
        raise DataError(f"{path}: not a weight file ({place}{error_message(first)})") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a weight file ({error})") from error


def write_weights(path: Path, weights: Mapping[str, float]) -> None:
    """Write weights that a later run can start from."""
    write_text(path, json.dumps(dict(weights), indent=1) + "\n")
