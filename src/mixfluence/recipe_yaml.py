"""Recipes as YAML files: reading with overrides, errors that name file, line and key, and writing."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from inspect import formatannotation
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe
from mixfluence.runs import RECIPE_FILE, RECORD_FILE, STAGES_FOLDER, TRACE_FILE
from mixfluence.schema import error_message, short

RECIPES = Path(__file__).parent / "recipes"
# Sections that a bare word may stand for: the key whose value it is.
BARE_VALUES = {"strategy": "name", "rule": "name", "reptile": "rate"}
FLOAT = r"[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.?\d+[eE][-+]?\d+|\.\d+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"


# The C parser is several times as fast; every wheel of PyYAML has it.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the types of YAML 1.2, where `no` and dates are text and 2e-5 is a number; unique keys."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                wrong = "duplicate key" if isinstance(key, Hashable) else "keys must be strings or numbers, found"
                raise yaml.MarkedYAMLError(problem=f"{wrong} {short(key)}", problem_mark=key_node.start_mark)
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML 1.1 or the loader above would read as something else."""


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"0|[-+]?[1-9]\d*", list("-+0123456789")),
    ("float", FLOAT, list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^({_pattern})$"), _first)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"^({FLOAT})$"), list("-+.0123456789"))
_Dumper.add_multi_representer(Path, lambda dumper, path: dumper.represent_str(str(path)))


def find_recipe(name: str) -> Path:
    """Return the file that a user means: a path, or the name of a recipe that ships with the package."""
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
    recipe = folder / RECIPE_FILE
    if not recipe.is_file():
        return f"{folder}: expected a recipe file, found a folder without {RECIPE_FILE}"
    message = f"{folder}: expected a recipe file, found a folder; its recipe is {recipe}"
    started = (folder / TRACE_FILE).exists() or (folder / STAGES_FOLDER).exists()
    if started and not (folder / RECORD_FILE).exists():
        message += f", and 'mixfluence train {recipe} --resume' continues its run"
    return message


def load_recipe(
    path: Path,
    overrides: Iterable[str] = (),
    *,
    files_may_be_missing: bool = False,
    upgrade: Callable[[dict[str, Any]], None] | None = None,
) -> Recipe:
    """Read and validate a recipe.

    A recipe with `extends: NAME` inherits every top-level key of that recipe that it does not set itself.

    Args:
        path: The YAML file.
        overrides: Texts such as `training.steps=100`; the value is parsed as YAML.
        files_may_be_missing: Validate the recipe without checking that its data files exist.
        upgrade: Changes the parsed values of a recipe of an earlier version in place.

    Raises:
        RecipeError: Naming file, line and key of the first error.
    """
    data, tree = _read(path)
    if upgrade:
        upgrade(data)
    for override in overrides:
        _apply(override, data)
    try:
        return Recipe.model_validate(data, context={"files_may_be_missing": files_may_be_missing})
    except ValidationError as error:
        raise RecipeError(f"{path}:{_located(tree, error.errors()[0])}") from error


def dump_recipe(recipe: Recipe) -> str:
    """Return a recipe as YAML with all defaults; reading it gives an equal recipe."""
    return yaml.dump(recipe.model_dump(exclude_none=True), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def fit_types(arguments: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """Return `training.trainer_args` with values converted to the annotated types of a class, such as '2' to 2.

    Args:
        arguments: The values; each is an attribute of the class.
        owner: The class of training arguments.

    Raises:
        RecipeError: Naming the first argument of a wrong type, or one that training cannot use.
    """
    hints = get_type_hints(owner)
    fitted = {}
    for name, value in arguments.items():
        expected: TypeAdapter[Any] = TypeAdapter(hints[name], config=ConfigDict(arbitrary_types_allowed=True))
        try:
            fitted[name] = expected.validate_python(value)
        except ValidationError as error:
            wanted = formatannotation(hints[name]).replace(" | ", " or ")
            raise RecipeError(f"training.trainer_args.{name}: expected {wanted}, found {short(value)}") from error
    if fitted.get("neftune_noise_alpha") is not None:
        raise RecipeError("training.trainer_args.neftune_noise_alpha: not supported for sentence-transformers models")
    if fitted.get("use_liger_kernel") and find_spec("liger_kernel") is None:
        raise RecipeError("training.trainer_args.use_liger_kernel: the package liger-kernel is not installed")
    return fitted


def _read(path: Path, extending: tuple[Path, ...] = ()) -> tuple[dict[str, Any], yaml.Node]:
    """Return a recipe's values, with those of the recipe it extends, and its own YAML nodes."""
    try:
        data, tree = _parse(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{path}:{number}: not valid UTF-8 (byte 0x{error.object[error.start]:02x})") from error
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(_yaml_message(path, error)) from error
    if tree is None or not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping with keys such as name, model, train and training")
    if "extends" in data:
        name, place = data.pop("extends"), f"{path}:{_line(tree, ['extends'])}"
        if not isinstance(name, str):
            raise RecipeError(f"{place}: extends: expected the name of a recipe, found {short(name)}")
        parent = find_recipe(name)
        if parent.resolve() in (path.resolve(), *extending):
            raise RecipeError(f"{place}: extends itself")
        data = _read(parent, (path.resolve(), *extending))[0] | data
    return data, tree


def _parse(text: str) -> tuple[Any, yaml.Node | None]:
    """Return the values of a text and the nodes that know their lines."""
    loader = _Loader(text)
    try:
        tree = loader.get_single_node()
        return loader.construct_document(tree) if tree else None, tree
    finally:
        loader.dispose()


def _yaml_message(path: Path, error: Exception) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        number = path.read_bytes().count(b"\n", 0, error.position) + 1
        return f"{path}:{number}: not valid YAML (character {error.character:#x}: {error.reason})"
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}" if mark else str(path)
    return f"{place}: not valid YAML ({getattr(error, 'problem', None) or error})"


def _apply(override: str, data: dict[str, Any]) -> None:
    place, equals, value = override.partition("=")
    if not equals or not place:
        raise RecipeError(f"override {short(override)}: expected key=value, such as training.steps=100")
    *parents, last = place.split(".")
    section: Any = data
    for parent in parents:
        if section.get(parent) is None or isinstance(section[parent], str):
            section[parent] = _spelt_out(parent, section.get(parent))
        section = section[parent]
        if not isinstance(section, dict):
            raise RecipeError(f"override {short(override)}: {parent!r} is not a mapping in the recipe")
    try:
        section[last] = yaml.load(value, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"override {short(override)}: the value is not valid YAML") from error


def _spelt_out(section: str, word: str | None) -> dict[str, Any]:
    """Return the mapping that a word abbreviates, so that an override can add to it; `init: uniform` is replaced."""
    return {BARE_VALUES[section]: word} if word and section in BARE_VALUES else {}


def _located(tree: yaml.Node, error: ErrorDetails) -> str:
    """Return line, key and message of an error."""
    message = error_message(error)
    # An error about several keys has no location, and one about a name that is not registered has that of its
    # section: both messages start with the key.
    first = (
        re.match(r"([\w.]+): ", message) if not error["loc"] or message.startswith(("name: ", "format: ")) else None
    )
    keys = [*error["loc"], *(first[1].split(".") if first else ())]
    message = message.removeprefix(first[0]) if first else message
    line = _line(tree, [*keys, *re.findall(r"unknown key '([^']*)'", message)])
    return f"{line}: {'.'.join(map(str, keys))}{': ' if keys else ''}{message}"


def _line(node: yaml.Node, keys: Sequence[str | int]) -> int:
    """Return the line of the deepest key on a path; keys that the file does not contain are skipped."""
    line = node.start_mark.line + 1
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        for name, value in pairs:
            if name.value == str(key):
                line, node = name.start_mark.line + 1, value
                break
    return line
