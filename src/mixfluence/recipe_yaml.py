"""Recipes as YAML: reading with overrides, errors that name file, line and key, and writing back."""

from __future__ import annotations

import copy
import re
import reprlib
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mixfluence.config.parts import BARE_VALUES
from mixfluence.config.sources import FORMATS
from mixfluence.config.strategy import RULES
from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe
from mixfluence.runs import RECIPE_FILE, RECORD_FILE, STAGES_FOLDER, TRACE_FILE

RECIPES = Path(__file__).parent / "recipes"
# Recipes are written by hand. A few lines of aliases of aliases would stand for billions of values.
MOST_CHARACTERS, MOST_VALUES = 1_000_000, 100_000


class _Loader(yaml.SafeLoader):
    """Safe YAML without its surprises: 2e-5 is a number, `no` and 2020-01-01 are texts, and no key may stand twice."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _count(node, {}) > MOST_VALUES:
            message = f"more than {MOST_VALUES:,} values, aliases counted as often as they are used"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # a number of too many digits, a month that there is not
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            wrong = "is no key, which is a word or a number" if not isinstance(key, Hashable) else "is there twice"
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{_short(key)} {wrong}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _count(node: yaml.Node, known: dict[int, float]) -> float:
    """Return how many values a node stands for: infinitely many if it holds itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        nodes = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_count(part, known) for part in nodes)
    return known[id(node)]


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float", ":timestamp"))]
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
    if path.is_dir():
        raise RecipeError(_folder_message(path))
    if path.exists():
        return path
    shipped = RECIPES / f"{name.removesuffix('.yaml')}.yaml"
    if shipped.exists() and path.name == name:
        return shipped
    known = ", ".join(sorted(recipe.stem for recipe in RECIPES.glob("*.yaml")))
    raise RecipeError(f"{name}: no such file, and no recipe of that name ships with mixfluence ({known})")


def _folder_message(folder: Path) -> str:
    """Return what somebody may have meant who gives a folder for a recipe: most likely a run."""
    recipe = folder / RECIPE_FILE
    if not recipe.is_file():
        return f"{folder}: a folder, not a recipe, and there is no {RECIPE_FILE} in it"
    message = f"{folder}: a folder, not a recipe; the recipe in it is {recipe}"
    begun = (folder / TRACE_FILE).exists() or (folder / STAGES_FOLDER).exists()
    if begun and not (folder / RECORD_FILE).exists():
        message += f", and 'mixfluence train {recipe} --resume' goes on with its run"
    return message


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
    text = _read_text(path)
    try:
        known, tree = _parse(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError(_yaml_message(path, text, error)) from error
    if tree is None or not isinstance(known, dict):
        raise RecipeError(f"{path}: a recipe is a mapping with keys such as name, model, train and training")
    data = copy.deepcopy(known)
    if "extends" in data:
        name = data.pop("extends")
        if not isinstance(name, str):
            raise RecipeError(f"{path}:{_line(tree, ['extends'])}: extends: expected a recipe, found {_short(name)}")
        parent = find_recipe(name)
        if parent.resolve() in (path.resolve(), *extending):
            raise RecipeError(f"{path}:{_line(tree, ['extends'])}: extends itself")
        data = _read(parent, (path.resolve(), *extending))[0] | data
    return data, tree


# A study reads the same few recipes for every one of its rows, and to read YAML takes most of the time.
@lru_cache(maxsize=32)
def _parse(text: str) -> tuple[Any, yaml.Node | None]:
    """Return the values of a text, which are not to be changed, and the nodes that know their lines."""
    loader = _Loader(text)
    try:
        tree = loader.get_single_node()
        return loader.construct_document(tree) if tree else None, tree
    finally:
        loader.dispose()


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    if len(content) > MOST_CHARACTERS:
        raise RecipeError(f"{path}: no recipe is that long, expected at most {MOST_CHARACTERS:,} characters")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{path}:{number}: not valid UTF-8 (byte 0x{content[error.start]:02x})") from error


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML with every default filled in; reading it gives the same recipe."""
    return yaml.safe_dump(_plain(recipe.model_dump(exclude_none=True)), sort_keys=False, allow_unicode=True)


def _override(data: dict[str, Any], override: str) -> dict[str, Any]:
    place, equals, value = override.partition("=")
    if not equals or not place:
        raise RecipeError(f"override {_short(override)}: expected key=value, such as training.steps=100")
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError(f"override {_short(override)}: the value is not valid YAML") from error
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
            raise RecipeError(f"override {_short(override)}: {parent!r} is not a mapping in the recipe")
    section[last] = parsed
    return data


def _yaml_message(path: Path, text: str, error: Exception) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        number = text.count("\n", 0, error.position) + 1
        return f"{path}:{number}: not valid YAML (character {error.character:#x}: {error.reason})"
    if isinstance(error, RecursionError):
        return f"{path}: not valid YAML (nested too deeply)"
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
        message = f"expected one of {known}, found {_short(found)}"
    elif first["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}, found {_short(first['input'])}"
    place = ".".join(map(str, keys))
    # What concerns several keys has no place but says itself which one it is about.
    line = _line(tree, keys or message.partition(":")[0].split("."))
    return f"{path}:{line}: {place + ': ' if place else ''}{message}"


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


def _short(value: Any) -> str:
    """Return a value as messages show it, on one line and no longer than one."""
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = 100
    return shown.repr(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    return str(value) if isinstance(value, Path) else value
