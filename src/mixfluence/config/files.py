"""Recipes as YAML: reading with overrides, errors that name file, line and key, and writing back."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mixfluence.config.parts import BARE_VALUES
from mixfluence.config.recipe import Recipe
from mixfluence.config.sources import FORMATS
from mixfluence.config.strategy import RULES
from mixfluence.errors import RecipeError

RECIPES = Path(__file__).parents[1] / "recipes"


class _Loader(yaml.SafeLoader):
    """Safe YAML without its surprises: 2e-5 is a number, `no` is a text, and no key may stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.?\d+[eE][-+]?\d+|\.\d+|\.(inf|nan))$"),
    list("-+.0123456789"),
)


def find_recipe(name: str) -> Path:
    """Return the file a user means: a path, or the name of a recipe that ships with the package."""
    path = Path(name)
    if path.exists():
        return path
    shipped = RECIPES / f"{name.removesuffix('.yaml')}.yaml"
    if shipped.exists() and path.name == name:
        return shipped
    known = ", ".join(sorted(recipe.stem for recipe in RECIPES.glob("*.yaml")))
    raise RecipeError(f"{name}: no such file, and no recipe of that name ships with mixfluence ({known})")


def load_recipe(path: Path, overrides: Iterable[str] = (), *, files_may_be_missing: bool = False) -> Recipe:
    """Read and check a recipe.

    A recipe that says `extends: NAME` has all keys of that recipe which it does not set itself.

    Args:
        path: The YAML file.
        overrides: Texts such as `training.steps=100`; the value is read as YAML.
        files_may_be_missing: Check the recipe alone, not whether its data is on this machine.

    Raises:
        RecipeError: Naming file, line and key of the first thing that is wrong.
    """
    data, tree = _read(path)
    for override in overrides:
        data = _override(data, override)
    try:
        return Recipe.model_validate(data, context={"files_may_be_missing": files_may_be_missing})
    except ValidationError as error:
        raise RecipeError(_validation_message(path, tree, error)) from error


def _read(path: Path, extending: tuple[Path, ...] = ()) -> tuple[dict[str, Any], yaml.Node]:
    """Return a recipe with the keys of those it extends, and its own text as YAML has it."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise RecipeError(_yaml_message(path, error)) from error
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping with keys such as name, model, train and training")
    if "extends" in data:
        parent = find_recipe(str(data.pop("extends")))
        if parent in (path, *extending):
            raise RecipeError(f"{path}: extends itself")
        data = _read(parent, (path, *extending))[0] | data
    return data, tree


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML with every default filled in; reading it gives the same recipe."""
    return yaml.safe_dump(_plain(recipe.model_dump(exclude_none=True)), sort_keys=False, allow_unicode=True)


def _override(data: dict[str, Any], override: str) -> dict[str, Any]:
    place, equals, value = override.partition("=")
    if not equals or not place:
        raise RecipeError(f"override {override!r}: expected key=value, such as training.steps=100")
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {override!r}: the value is not valid YAML") from error
    data = copy.deepcopy(data)
    *parents, last = place.split(".")
    section: Any = data
    for parent in parents:
        # A word may stand for a whole section, which the override then spells out; `init: uniform` gives way to it.
        if section.get(parent) is None or isinstance(section[parent], str):
            word = section.get(parent)
            section[parent] = {BARE_VALUES[parent]: word} if word and parent in BARE_VALUES else {}
        section = section[parent]
        if not isinstance(section, dict):
            raise RecipeError(f"override {override!r}: {parent!r} is not a mapping in the recipe")
    section[last] = parsed
    return data


def _yaml_message(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}" if mark else str(path)
    return f"{place}: not valid YAML ({getattr(error, 'problem', None) or error})"


def _validation_message(path: Path, tree: yaml.Node, error: ValidationError) -> str:
    first = error.errors()[0]
    keys = _keys(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message = "this key is missing"
    elif first["type"].startswith("union_tag"):
        tag = first["ctx"]["discriminator"].strip("'")
        known = first["ctx"].get("expected_tags", ", ".join(FORMATS if tag == "format" else RULES)).replace("'", "")
        keys.append(tag)
        found = first["input"].get(tag) if isinstance(first["input"], dict) else first["input"]
        message = f"expected one of {known}, found {found!r}"
    elif first["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}, found {first['input']!r}"
    place = ".".join(map(str, keys))
    return f"{path}:{_line(tree, keys)}: {place + ': ' if place else ''}{message}"


def _keys(place: Sequence[str | int]) -> list[str | int]:
    """Return a place as the recipe has it: pydantic puts the chosen format, strategy or rule into it."""
    added = {2} if place and place[0] in {"train", "dev", "test"} else set()
    added |= {i + 1 for i, key in enumerate(place) if key == "strategy" or (key == "rule" and i + 1 < len(place))}
    return [key for i, key in enumerate(place) if i not in added]


def _line(node: yaml.Node, keys: Sequence[str | int]) -> int:
    """Return the line of the deepest key of the path that stands in the file."""
    line = node.start_mark.line + 1
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            break
        for key_node, value_node in node.value:
            if key_node.value == str(key):
                line, node = key_node.start_mark.line + 1, value_node
                break
        else:
            break
    return line


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    return str(value) if isinstance(value, Path) else value
