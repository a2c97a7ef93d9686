"""`mixfluence recipes`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from mixfluence.cli.terminal import print_line
from mixfluence.errors import RecipeError

app = typer.Typer(help="The recipes that ship with mixfluence.", invoke_without_command=True)


@app.callback()
def list_recipes(context: typer.Context) -> None:
    """List the recipes that ship with mixfluence."""
    if context.invoked_subcommand:
        return
    from mixfluence.recipe_yaml import RECIPES

    for path in recipes_in(RECIPES):
        purpose = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        print_line(f"{path.stem:<22} {purpose}")


@app.command()
def show(name: Annotated[str, typer.Argument(help="Name or file.")]) -> None:
    """Print a recipe as it was written; `check` fills in its defaults."""
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    path = find_recipe(name)
    # What is no recipe is not printed: it may be anything.
    load_recipe(path, files_may_be_missing=True)
    print_line(path.read_text(encoding="utf-8").rstrip())


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="Name of a recipe.")],
    target: Annotated[Path | None, typer.Argument(help="Where to; NAME.yaml here if not given.")] = None,
) -> None:
    """Take a recipe home to edit it."""
    from mixfluence.recipe_yaml import find_recipe

    source = find_recipe(name)
    path = target or Path(source.name)
    if path.exists():
        raise RecipeError(f"{path}: already exists")
    shutil.copyfile(source, path)
    print_line(f"wrote {path}")


@app.command()
def check(
    name: Annotated[str | None, typer.Argument(help="Name or file; all recipes that ship if not given.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
) -> None:
    """Check a recipe and that its data is there; print it with every default filled in.

    Without a name, check every recipe that ships, whether or not its data is there.
    """
    from mixfluence.recipe_yaml import RECIPES, dump_recipe, find_recipe, load_recipe

    if name is None:
        print_line(f"{check_folder(RECIPES)} recipes are valid")
        return
    recipe = load_recipe(find_recipe(name), overrides or [])
    print_line(dump_recipe(recipe).rstrip())


def check_folder(folder: Path) -> int:
    """Print a line for every recipe of a folder, data or not, and return how many there are.

    Raises:
        RecipeError: Naming the first one that is wrong, before anything is printed.
    """
    from mixfluence.recipe_yaml import load_recipe

    recipes = {path.stem: load_recipe(path, files_may_be_missing=True) for path in recipes_in(folder)}
    for name, recipe in recipes.items():
        sets = f"{len(recipe.train)} training sets, {len(recipe.dev)} dev, {len(recipe.test)} test"
        print_line(f"{name:<22} {recipe.strategy.name:<12} {sets}")
    return len(recipes)


def recipes_in(folder: Path) -> list[Path]:
    """Return the recipes of a folder by name, so that `beir7` comes before those that extend it."""
    return sorted(folder.glob("*.yaml"), key=lambda path: path.stem)
