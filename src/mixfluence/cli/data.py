"""`mixfluence data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from mixfluence.cli.terminal import print_line, read_recipe, show_log
from mixfluence.errors import RecipeError

Sources = Annotated[list[str], Argument(metavar="SOURCE...", help="Recipes, or files and folders of pairs.")]


def data(
    sources: Sources,
    model: Annotated[
        str | None, Option(metavar="NAME", help="Count its tokens; default: of the recipe's encoder, or words.")
    ] = None,
) -> None:
    """Show a sample row of datasets, with the roles of columns, lengths, duplicates, and rows that were left out.

    Words with a = are options of the sources, such as columns.anchor=question or delimiter=';'.
    """
    show_log(verbose=False)
    changes = [word for word in sources if "=" in word]
    from mixfluence.data.preview import preview_sources, token_counter
    from mixfluence.preflight import recipe_counter

    count = None
    if model:
        from mixfluence.encoders import load_encoder

        count = token_counter(load_encoder(model))
    for word in sources:
        if word in changes:
            continue
        path = Path(word)
        if path.exists() and path.suffix not in {".yaml", ".yml"}:
            found, own = {path.name: _pairs(path, changes)}, count
        else:
            recipe = read_recipe(word, changes, files_may_be_missing=True)
            own = count or recipe_counter(recipe)
            found = recipe.train | {f"dev {name}": source for name, source in recipe.dev.items()}
        for line in preview_sources(found, own):
            print_line(line)


def _pairs(path: Path, changes: list[str]) -> Any:
    import yaml

    from mixfluence.data.pairs import PairsSource

    options: dict[str, Any] = {"path": path}
    for change in changes:
        key, _, text = change.partition("=")
        section, _, inner = key.partition(".")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RecipeError(f"{change}: the value is not valid YAML") from error
        options[section] = options.get(section, {}) | {inner: value} if inner else value
    return PairsSource(**options)
