"""Arguments that a recipe hands on to another program, checked against the types that program gives them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from importlib.util import find_spec
from inspect import formatannotation
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from mixfluence.errors import RecipeError


def fit_types(arguments: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """Return `training.trainer_args` with the types that a class annotates: text that is a number becomes one.

    Args:
        arguments: What the recipe says; each is an attribute of the class.
        owner: The class that takes them.

    Raises:
        RecipeError: Naming the first argument that is of another type, or with which no training can start.
    """
    hints = get_type_hints(owner)
    fitted = {}
    for name, value in arguments.items():
        expected: TypeAdapter[Any] = TypeAdapter(hints[name], config=ConfigDict(arbitrary_types_allowed=True))
        try:
            fitted[name] = expected.validate_python(value)
        except ValidationError as error:
            wanted, found = formatannotation(hints[name]).replace(" | ", " or "), reprlib.repr(value)
            raise RecipeError(f"training.trainer_args.{name}: expected {wanted}, found {found}") from error
    _refuse_unusable(fitted)
    return fitted


def _refuse_unusable(arguments: Mapping[str, Any]) -> None:
    """Refuse what the host takes and stumbles over when training starts."""
    if arguments.get("neftune_noise_alpha") is not None:
        raise RecipeError("training.trainer_args.neftune_noise_alpha: not supported for sentence-transformers models")
    if arguments.get("use_liger_kernel") and find_spec("liger_kernel") is None:
        raise RecipeError("training.trainer_args.use_liger_kernel: the package liger-kernel is not installed")
