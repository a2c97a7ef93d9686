"""Fills the reference pages from the code: recipe keys, the command line, and the public names."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import griffe
import typer
import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

import mixfluence
from mixfluence.cli import app
from mixfluence.recipe import Recipe
from mixfluence.schema import Section

BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}
WORDS = {int: "integer", float: "number", str: "string", bool: "true or false", Path: "path", Any: "any value"}
MEANINGS: dict[str, str] = yaml.safe_load((Path(__file__).parent / "meanings.yaml").read_text(encoding="utf-8"))
# Required by the schema, but filled in when a recipe is read.
FILLED_IN = {"output", "split"}
# A bound of this size only keeps arithmetic from overflowing; readers need not see it.
LARGE = 2**31
OTHER_TRAINERS = ("SparseMixtureTrainer", "MultiVectorMixtureTrainer", "RerankerMixtureTrainer")
GROUPS = (
    ("Training", ("MixtureTrainer", *OTHER_TRAINERS, "info_nce", "group_losses", "load_encoder", "Mixture")),
    ("Recipes and runs", ("load_recipe", "Recipe", "read_data", "run", "read_run", "Run", "merge_runs")),
    ("Strategies", ("Strategy",)),
    ("Starting distributions", ("Temperature", "Weights", "UNIFORM")),
    ("Update rules", ("Fair", "Anchored", "PolicyGradient")),
    ("Measuring influence", ("Probe", "Reptile", "Alignment", "Metric")),
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the markers of the reference pages (called by mkdocs)."""
    for marker, generate in {"recipe keys": recipe_keys, "commands": commands, "api": api}.items():
        comment = f"<!-- generated: {marker} -->"
        markdown = markdown.replace(comment, generate()) if comment in markdown else markdown
    # A number and its interval stay on one line.
    return markdown.replace(" ± ", "\u00a0±\u00a0")


# Recipe keys


def recipe_keys() -> str:
    """Return one table for each section of a recipe."""
    places: dict[type[Section], list[str]] = {}
    for section, place in walk(Recipe):
        known = places.setdefault(section, [])
        known.extend([place] if place not in known else [])
    tables = [_table("Top level", Recipe, "")]
    return "\n\n".join([*tables, *(_table(_title(cls, at), cls, f"{at[0]}.") for cls, at in places.items())])


def walk(section: type[Section], place: str = "") -> Iterator[tuple[type[Section], str]]:
    """Yield every section below another with the keys that lead to it."""
    for key, field in section.model_fields.items():
        for inner in sections_in(field.annotation):
            yield inner, f"{place}{key}"
            yield from walk(inner, f"{place}{key}.")


def sections_in(annotation: Any) -> list[type[Section]]:
    """Return the sections that a field may hold, where a base stands for its subclasses."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        concrete = [cls for cls in _subclasses(annotation) if not inspect.isabstract(cls)]
        if inspect.isabstract(annotation):
            return concrete
        named = [cls for cls in concrete if _word(cls)]
        return named if named and not _word(annotation) else [annotation]
    return [section for inner in get_args(annotation) for section in sections_in(inner)]


def _subclasses(cls: type[Section]) -> Iterator[type[Section]]:
    for inner in cls.__subclasses__():
        yield from [inner] if inner.__module__.startswith("mixfluence.") else []
        yield from _subclasses(inner)


def _word(cls: type[Section]) -> str | None:
    """Return what selects a section among its alternatives: its `name` or `format`, which has one value."""
    for key in ("name", "format"):
        values = get_args(cls.model_fields[key].annotation) if key in cls.model_fields else ()
        if len(values) == 1 and get_origin(cls.model_fields[key].annotation) is Literal:
            return f"{key}: {values[0]}"
    return None


def _label(cls: type[Section]) -> str | None:
    """Return what distinguishes a section from its alternatives: its word, or else its first key."""
    abstract = any(inspect.isabstract(base) for base in cls.__mro__[1:])
    return _word(cls) or (next(iter(cls.model_fields)) if abstract and len(cls.model_fields) == 1 else None)


def _title(cls: type[Section], places: list[str]) -> str:
    return ", ".join(f"`{place}`" for place in places) + (f" with `{_label(cls)}`" if _label(cls) else "")


def _table(title: str, cls: type[Section], place: str) -> str:
    # The key that selects the section comes first.
    word = (_word(cls) or "").partition(":")[0]
    fields = sorted(cls.model_fields.items(), key=lambda item: item[0] != word)
    meanings = meanings_of(cls, place)
    rows = [f"| `{key}` | {_kind(field)} | {_default(key, field)} | {_cell(meanings[key])} |" for key, field in fields]
    head = f"## {title} {{ #{_anchor(cls)} }}\n\n{_summary(cls)}"
    return "\n".join([head, "", "| key | type | default | meaning |", "|---|---|---|---|", *rows])


def meanings_of(cls: type[Section], place: str) -> dict[str, str]:
    """Return the meaning of each key: from its field, the docstring of its class, or `meanings.yaml`."""
    written, word = _documented(cls), (_word(cls) or "").partition(":")[0]
    found = {
        key: field.description or written.get(key) or MEANINGS.get(f"{place}{key}", "")
        for key, field in cls.model_fields.items()
    }
    return found | ({word: "Selects this section."} if word else {})


def _anchor(cls: type[Section]) -> str:
    return str(cls.__name__).lower()


def _summary(cls: type[Section]) -> str:
    """Return the prose of a section's docstring, without the list of its fields."""
    parsed = griffe.Docstring(inspect.getdoc(cls) or "", parser="google").parse()
    texts = [part.value for part in parsed if part.kind is griffe.DocstringSectionKind.text]
    return "\n\n".join(texts)


def _documented(cls: type[Section]) -> dict[str, str]:
    """Return what the docstrings of a section and its bases say of each field."""
    kinds = (griffe.DocstringSectionKind.attributes, griffe.DocstringSectionKind.parameters)
    found: dict[str, str] = {}
    for base in cls.__mro__:
        text = base.__dict__.get("__doc__") if issubclass(base, Section) else None
        for part in griffe.Docstring(inspect.cleandoc(text or ""), parser="google").parse():
            if part.kind in kinds:
                found = {item.name: item.description for item in part.value} | found
    return found


def _kind(field: FieldInfo) -> str:
    shown = _describe(field.annotation)
    bounds = [text for item in field.metadata if (text := _bound(item))]
    return " ".join([shown, *bounds])


def _bound(item: Any) -> str:
    for kind, (sign, name) in BOUNDS.items():
        if isinstance(item, kind) and abs(getattr(item, name)) < LARGE:
            return f"{sign} {getattr(item, name):g}"
    return f"with at least {item.min_length} entry" if isinstance(item, MinLen) else ""


def _describe(annotation: Any) -> str:
    """Return a type as a reader of YAML would say it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return f"mapping of {_describe(inner[0])} to {_describe(inner[1])}"
    if sections := dict.fromkeys(sections_in(annotation)):
        links = ", ".join(f"[{(_label(cls) or 'section').split()[-1]}](#{_anchor(cls)})" for cls in sections)
        others = [_describe(part) for part in inner if isinstance(part, type) and not sections_in(part)]
        return " or ".join(["one of " + links if len(sections) > 1 else links, *others])
    if origin is Annotated:
        bounds = [text for item in inner[1:] for part in getattr(item, "metadata", [item]) if (text := _bound(part))]
        return " ".join([_describe(inner[0]), *bounds])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_describe, inner)))
    if origin is list:
        return f"list of {_describe(inner[0])}"
    if annotation is type(None):
        return "null"
    return WORDS.get(annotation) or f"`{getattr(annotation, '__name__', annotation)}`"


def _default(key: str, field: FieldInfo) -> str:
    if field.is_required():
        return "filled in" if key in FILLED_IN else "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ""
    if isinstance(value, Section):
        whole = _label(type(value)) and not _word(type(value))
        changed: Any = value.model_dump(mode="json", exclude_defaults=not whole)
        # Some are written as a word.
        changed = changed if isinstance(changed, str) else changed | _named(value)
        return _cell(f"`{changed}`" if changed else "its defaults")
    words: dict[Any, str] = {None: "null", True: "`true`", False: "`false`"}
    return words[value] if value is None or isinstance(value, bool) else _cell(f"`{value}`")


def _named(value: Section) -> dict[str, str]:
    key, _, word = (_word(type(value)) or "").partition(": ")
    return {key: word} if key else {}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# Command line


def commands() -> str:
    """Return usage, arguments and options of every command, as typer writes them."""
    root = typer.main.get_command(app)
    text = get_docs_for_click(obj=root, ctx=typer.Context(root, info_name="mixfluence"), name="mixfluence")
    # The page has a title, an introduction and the exit codes; `--help` is the same everywhere.
    first = text.index("\n## ")
    return text[first:].replace("* `--help`: Show this message and exit.\n", "").replace("**Options**:\n\n\n", "")


# Public names


def api() -> str:
    """Return a heading and a directive for each public name, by group."""
    public = {name: getattr(mixfluence, name) for name in vars(mixfluence)["__all__"]}
    strategy = public["Strategy"]
    groups = {title: list(names) for title, names in GROUPS}
    listed = {name for names in groups.values() for name in names}
    for name, value in public.items():
        if name in listed:
            continue
        if isinstance(value, type) and issubclass(value, strategy):
            groups["Strategies"].append(name)
        elif name.endswith("_metric"):
            groups["Measuring influence"].append(name)
        else:
            groups.setdefault("Data, evaluation and errors", []).append(name)
    return "\n\n".join(
        "\n\n".join([f"## {title}", *(_entry(name, public[name]) for name in names if name in public)])
        for title, names in groups.items()
    )


def _entry(name: str, value: Any) -> str:
    if inspect.isclass(value) or inspect.isfunction(value):
        # Methods are shown where users call or override them.
        members = {"Strategy": "null", "MixtureTrainer": "[train]"}.get(name, "false")
        return f"::: {value.__module__}.{value.__qualname__}\n    options:\n      members: {members}"
    return f"### {name}\n\n`{name} = {value!r}`"
