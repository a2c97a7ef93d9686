"""Recipes as YAML files: reading with overrides, errors that name file, line and key, and writing."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError

from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe
from mixfluence.runs import RECIPE_FILE
from mixfluence.schema import did_you_mean, error_message, short, unknown_key

RECIPES = Path(__file__).parent / "recipes"
# Mappings of keys, merged with those of the recipe that is extended. Others are replaced: datasets, weights.
SECTIONS = {
    *("model", "defaults", "training", "trainer_args", "selection", "evaluation"),
    *("strategy", "rule", "probe", "alignment", "reptile"),
}
DATASETS = {"train", "dev", "test"}
# Sections whose keys depend on their name; of a model these, while lengths are the recipe's choice for any.
NAMED = ["model"], ["strategy"], ["rule"]
OF_A_MODEL = {"pooling", "revision", "trust_remote_code"}
# Sections that a bare word may stand for: the key whose value it is.
BARE_VALUES = {"strategy": "name", "rule": "name", "loss": "name", "reptile": "rate"}
FLOAT = r"[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.?\d+[eE][-+]?\d+|\.\d+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"


# The C parser is several times as fast; every wheel of PyYAML has it.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the types of YAML 1.2, where `no` and dates are text and 2e-5 is a number; unique keys."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                mark = node.value[number][0].start_mark
                raise yaml.MarkedYAMLError(problem=f"duplicate key {short(key)}", problem_mark=mark)
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
        inside = f"; its recipe is {path / RECIPE_FILE}" if (path / RECIPE_FILE).is_file() else ""
        raise RecipeError(f"{path}: expected a recipe file, found a folder{inside}")
    if path.is_file():
        return path
    if path.exists():
        raise RecipeError(f"{path}: expected a recipe file, found a pipe or a device")
    shipped = RECIPES / f"{name.removesuffix('.yaml')}.yaml"
    if shipped.exists() and path.name == name:
        return shipped
    if path.suffix not in {"", ".yaml"} or path.name != name:
        raise RecipeError(f"{name}: no such file")
    known = [recipe.stem for recipe in shipped_recipes()]
    near = did_you_mean(path.stem, known) or f" ({', '.join(known)})"
    raise RecipeError(f"{name}: no such file, and no recipe of that name ships with mixfluence{near}")


def shipped_recipes() -> list[Path]:
    """Return the recipes that ship with the package, by name."""
    return sorted(RECIPES.glob("*.yaml"), key=lambda path: path.stem)


def load_recipe(
    path: str | Path,
    overrides: Iterable[str] = (),
    *,
    files_may_be_missing: bool = False,
    upgrade: Callable[[dict[str, Any]], None] | None = None,
) -> Recipe:
    """Read and validate a recipe, with overrides such as `training.steps=100`, whose values are YAML.

    `path` may be the name of a recipe that ships with the package. A recipe with `extends: NAME` inherits every key of
    that recipe that it does not set itself. Keys of a strategy, rule or model are not inherited by one of another
    name; datasets and initial weights are replaced as a whole. `upgrade` changes the values of a recipe of an earlier
    version in place.
    """
    path = find_recipe(str(path))
    data, tree = _read(path)
    if upgrade:
        upgrade(data)
    for override in overrides:
        apply_override(override, data)
    try:
        return Recipe.model_validate(data, context={"files_may_be_missing": files_may_be_missing})
    except ValidationError as error:
        raise RecipeError("\n".join(f"{path}:{text}" for text in _described(tree, error))) from error


def dump_recipe(recipe: Recipe) -> str:
    """Return a recipe as YAML with all defaults; reading it gives an equal recipe."""
    return yaml.dump(recipe.model_dump(exclude_none=True), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _read(path: Path, extending: tuple[Path, ...] = ()) -> tuple[dict[str, Any], yaml.Node]:
    """Return a recipe's values, with those of the recipe it extends, and its own YAML nodes."""
    try:
        loader = _Loader(path.read_bytes().decode("utf-8"))
        tree = loader.get_single_node()
        data = loader.construct_document(tree) if tree else None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{path}:{number}: not valid UTF-8 (byte 0x{error.object[error.start]:02x})") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise RecipeError(f"{place}: not valid YAML ({reason})") from error
    if tree is None or not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping with keys such as name, model, train and training")
    if "extends" in data:
        name, place = data.pop("extends"), f"{path}:{_line(tree, ['extends'])}"
        if not isinstance(name, str):
            raise RecipeError(f"{place}: extends: expected the name of a recipe, found {short(name)}")
        parent = find_recipe(name)
        if parent.resolve() in (path.resolve(), *extending):
            raise RecipeError(f"{place}: extends itself")
        data = _merged(_read(parent, (path.resolve(), *extending))[0], data)
    return data, tree


def _merged(inherited: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = inherited | own
    for key in SECTIONS & inherited.keys() & own.keys():
        old, new = (_spelled_out(key, values[key]) for values in (inherited, own))
        if isinstance(old, dict) and isinstance(new, dict) and not _renamed(key, old, new):
            merged[key] = _merged(old, new)
    return merged


def _renamed(key: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether a section names another strategy, rule or model, whose keys are not those of the old one."""
    before = old.get("name", "static" if key == "strategy" else None)
    return "name" in new and new["name"] != before


def _spelled_out(key: str, value: Any) -> Any:
    """Return the mapping that a word abbreviates."""
    return {BARE_VALUES[key]: value} if isinstance(value, str) and key in BARE_VALUES else value


def apply_override(override: str, data: dict[str, Any]) -> None:
    """Change a value of a recipe by a text such as `training.steps=100`, whose value is YAML."""
    place, equals, text = override.partition("=")
    if not equals or not place:
        raise RecipeError(f"override {short(override)}: expected key=value, such as training.steps=100")
    *parents, last = place.split(".")
    section: Any = data
    for depth, parent in enumerate(parents):
        value = _spelled_out(parent, section.get(parent))
        if isinstance(value, list) and depth == 0:
            value = dict.fromkeys(map(str, value))
        if depth == 1 and parents[0] in DATASETS and parent not in section:
            raise RecipeError(f"override {short(override)}: {unknown_key(parent, section)}")
        section[parent] = {} if value is None or isinstance(value, str) else value
        section = section[parent]
        if not isinstance(section, dict):
            raise RecipeError(f"override {short(override)}: {parent!r} is not a mapping in the recipe")
    try:
        new = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"override {short(override)}: the value is not valid YAML") from error
    if last == "name" and parents[-1:] in NAMED and _renamed(parents[-1], section, {"name": new}):
        for key in OF_A_MODEL & section.keys() if parents == ["model"] else list(section):
            del section[key]
    section[last] = new


def _described(tree: yaml.Node, error: ValidationError) -> Iterator[str]:
    """Yield line, key and message of every error; keys with the same error on the same line share one."""
    found: dict[tuple[int, str], list[str]] = {}
    for details in error.errors():
        for message in error_message(details).split("\n"):
            keys = list(details["loc"])
            # An error about several keys has no location, and one about a name that is not registered has that of its
            # section: both messages start with the key.
            if not keys or message.startswith(("name: ", "format: ")):
                first, separator, rest = message.partition(": ")
                if separator and re.fullmatch(r"[\w.]+", first):
                    keys, message = [*keys, *first.split(".")], rest
            line = _line(tree, [*keys, *re.findall(r"unknown key '([^']*)'", message)])
            found.setdefault((line, message), []).append(".".join(map(str, keys)))
    for (line, message), places in sorted(found.items()):
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"{line}: {places[0]}{more}{': ' if places[0] else ''}{message}"


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
