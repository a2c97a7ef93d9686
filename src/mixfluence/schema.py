"""What all sections of a recipe share: strict models, number types with bounds, and readable errors."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# Messages in place of pydantic's that name types of Python, by the type of the error.
EXPECTED = {
    "dict_type": "expected a mapping",
    "path_type": "expected a path",
    "too_short": "expected {min_length} or more entries",
}
# Far below the largest 32-bit float, so that products with such a number do not overflow.
LARGEST = 1e30
# The type of errors whose messages are complete sentences already.
OURS = "mixfluence"
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
            places = [".".join(map(str, (cls.__name__, *each["loc"]))) for each in error.errors()]
            lines = [f"{place}: {error_message(each)}" for place, each in zip(places, error.errors(), strict=True)]
            raise RecipeError("\n".join(lines)) from error


class Section(BaseModel, metaclass=_SectionType):
    """Base of every part of a recipe: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield what differs from the defaults."""
        for name, field in type(self).model_fields.items():
            if getattr(self, name) != field.get_default(call_default_factory=True, validated_data={}):
                yield name, getattr(self, name)

    __str__ = BaseModel.__repr__

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, data: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return build(data)
        except ValidationError as error:
            details = [_readable(cls, each) for each in error.errors()]
            raise ValidationError.from_exception_data(cls.__name__, details) from error


def _readable(section: type[Section], error: ErrorDetails) -> InitErrorDetails:
    """Return an error of a section with a readable message, for an unknown key with the nearest known one."""
    keys, message = error["loc"], error_message(error)
    if error["type"] == "extra_forbidden" and len(keys) == 1:
        message = unknown_key(keys[0], section.model_fields, _nested_keys(section))
        keys = ()
    elif error["type"] == "model_type" and not keys:
        message = f"expected a mapping with keys such as {', '.join(list(section.model_fields)[:3])}"
    own = PydanticCustomError(OURS, "{message}", {"message": message})
    return InitErrorDetails(type=own, loc=keys, input=error["input"])


def _nested_keys(section: type[Section]) -> dict[str, str]:
    """Return where keys of sections inside a section are: `steps` is `training.steps`."""
    inside: dict[str, str] = {}
    for name, field in section.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                inside |= {key: f"{name}.{key}" for key in kind.model_fields}
    return inside


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
            found = f"{short(word)}{did_you_mean(word, registry)}" if isinstance(word, str) else short(word)
            raise ValueError(f"{key}: expected one of {', '.join(registry)}, found {found if word else 'none'}")
        return chosen.model_validate(data, context=info.context)

    return BeforeValidator(build)


def unknown_key(key: object, known: Iterable[str], nested: Mapping[str, str] | None = None) -> str:
    """Return the message for a key that does not exist, with the nearest one that does, or the same one elsewhere."""
    near = f"; did you mean {nested[str(key)]!r}?" if nested and key in nested else did_you_mean(key, known)
    return f"unknown key {key!r}" + (near or f"; known are {', '.join(known)}")


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return the end of a message that names the nearest of the known words; nothing if none is near."""
    return "".join(f"; did you mean {near!r}?" for near in get_close_matches(str(word), known, n=1, cutoff=0.5))


def error_message(error: ErrorDetails) -> str:
    """Return one of pydantic's errors as a sentence that names the value found."""
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return "this key is missing"
    if error["type"] in {"value_error", OURS}:
        return message
    own = EXPECTED.get(error["type"], "").format_map(error.get("ctx", {}))
    return f"{own or message[0].lower() + message[1:]}, found {short(error['input'])}"


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
