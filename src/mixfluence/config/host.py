"""Arguments that a recipe hands on to another program, checked against the types that program gives them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from inspect import formatannotation
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from mixfluence.errors import RecipeError


def fit_types(arguments: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """Return the arguments of `training.host` as a class has them annotated: a text that is a number becomes one.

    Args:
        arguments: What the recipe says; each is an attribute of the class.
        owner: The class that takes them.

    Raises:
        RecipeError: Naming the first argument that is of another type.
    """
    hints = get_type_hints(owner)
    fitted = {}
    for name, value in arguments.items():
        expected: TypeAdapter[Any] = TypeAdapter(hints[name], config=ConfigDict(arbitrary_types_allowed=True))
        try:
            fitted[name] = expected.validate_python(value)
        except ValidationError as error:
            wanted, found = formatannotation(hints[name]).replace(" | ", " or "), reprlib.repr(value)
            raise RecipeError(f"training.host.{name}: expected {wanted}, found {found}") from error
    return fitted
