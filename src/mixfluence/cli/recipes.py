"""`mixfluence recipes`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from mixfluence.cli.terminal import Overrides, RecipeName, print_line, read_recipe
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
def show(recipe: RecipeName) -> None:
    """Print a recipe as written; `check` adds its defaults."""
    from mixfluence.recipe_yaml import find_recipe

    # Refuses files that are not recipes.
    read_recipe(recipe, files_may_be_missing=True)
    print_line(find_recipe(recipe).read_text(encoding="utf-8").rstrip())


@app.command()
def copy(
    recipe: RecipeName,
    target: Annotated[Path | None, typer.Argument(help="Default: the name of the recipe, in this folder.")] = None,
) -> None:
    """Copy a recipe to edit it."""
    from mixfluence.recipe_yaml import find_recipe

    source = find_recipe(recipe)
    path = target or Path(source.name)
    if path.exists():
        raise RecipeError(f"{path}: already exists")
    shutil.copyfile(source, path)
    print_line(f"wrote {path}")


@app.command()
def check(
    recipe: Annotated[str | None, typer.Argument(help="Name or file; default: every recipe that ships.")] = None,
    overrides: Overrides = None,
) -> None:
    """Validate a recipe, check that its data exists, and print it with all defaults.

    Without a name, validate every recipe that ships, without their data.
    """
    from mixfluence.recipe_yaml import RECIPES, dump_recipe

    if recipe is None:
        print_line(f"{check_folder(RECIPES)} recipes are valid")
    else:
        print_line(dump_recipe(read_recipe(recipe, overrides)).rstrip())


def check_folder(folder: Path) -> int:
    """Print a line for every recipe of a folder, without checking their data, and return their number."""
    from mixfluence.recipe_yaml import load_recipe

    recipes = {path.stem: load_recipe(path, files_may_be_missing=True) for path in recipes_in(folder)}
    for name, recipe in recipes.items():
        sets = f"{len(recipe.train)} training sets, {len(recipe.dev)} dev, {len(recipe.test)} test"
        print_line(f"{name:<22} {recipe.strategy.name:<12} {sets}")
    return len(recipes)


def recipes_in(folder: Path) -> list[Path]:
    """Return the recipes of a folder by name, so that `beir7` comes before those that extend it."""
    return sorted(folder.glob("*.yaml"), key=lambda path: path.stem)
