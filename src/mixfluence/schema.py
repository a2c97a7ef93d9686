"""What all sections of a recipe share: strict models, number types with bounds, and readable errors."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import ErrorDetails

from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# Far below the largest 32-bit float, so that products with such a number do not overflow.
LARGEST = 1e30
PathLike = Annotated[Path, Field(strict=False)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
WholeNumber = Annotated[int, Field(ge=0, lt=2**31)]
# A batch of one row has no negatives.
BatchSize = Annotated[int, Field(ge=2, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
# A share below one, such as a decay rate.
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]


class _SectionType(ModelMetaclass):
    """Builds sections in Python code: takes positional arguments and turns pydantic's error into ours.

    Sections inside a recipe are built without this call: their errors are reported with file and line.
    """

    def __call__(cls, *args: Any, **options: Any) -> Any:
        section = cast("type[BaseModel]", cls)
        if args and "name" in section.model_fields:
            field = next((name for name in section.model_fields if name not in {"name", "max_epochs"}), "name")
            raise RecipeError(f"{cls.__name__}: takes keyword arguments only, such as {cls.__name__}({field}=...)")
        try:
            return super().__call__(**dict(zip(section.model_fields, args, strict=False)), **options)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (cls.__name__, *first["loc"])))
            raise RecipeError(f"{place}: {error_message(first)}") from error


class Section(BaseModel, metaclass=_SectionType):
    """Base of every part of a recipe: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError(f"expected a mapping with keys such as {', '.join(list(cls.model_fields)[:3])}")
        for key in data:
            if key not in cls.model_fields:
                raise ValueError(unknown_key(key, cls.model_fields))
        return data


def registered(
    registry: Mapping[str, type[Section]], key: str = "name", default: str | None = None
) -> BeforeValidator:
    """Build the section that a mapping's `key` names in a registry; a bare word stands for a mapping of `key` alone.

    The registry is consulted whenever a recipe is read, so that classes can be added to it at any time.
    """

    def build(data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, str):
            data = {key: data}
        if not isinstance(data, dict):
            return data
        data = data if default is None else {key: default, **data}
        word = data.get(key)
        chosen = registry.get(word) if isinstance(word, str) else None
        if chosen is None:
            raise ValueError(f"{key}: expected one of {', '.join(registry)}, found {short(word)}")
        return chosen.model_validate(data, context=info.context)

    return BeforeValidator(build)


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Return the message for a key that does not exist, with the nearest one that does."""
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    return f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")


def error_message(error: ErrorDetails) -> str:
    """Return one of pydantic's errors as a sentence that names the value found."""
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return "this key is missing"
    if error["type"] == "value_error":
        return message
    return f"{message[0].lower()}{message[1:]}, found {short(error['input'])}"


def short(value: Any) -> str:
    """Return a value as messages show it, on one line and no longer than one."""
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = 100
    return shown.repr(value)


def word_or_positive(*words: str) -> BeforeValidator:
    """Accept one of some words, or a positive number."""

    def check(value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value in words or (number and 0 < value <= LARGEST):
            return value
        raise ValueError(f"expected {', '.join(words)} or a number above 0, found {value!r}")

    return BeforeValidator(check)
