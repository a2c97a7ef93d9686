"""`mixfluence recipes`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from mixfluence.cli.terminal import Overrides, RecipeName, print_line, read_recipe, show_log
from mixfluence.errors import RecipeError

app = typer.Typer(help="The recipes that ship with mixfluence.", invoke_without_command=True)


@app.callback()
def list_recipes(context: typer.Context) -> None:
    """List the recipes that ship with mixfluence."""
    if context.invoked_subcommand:
        return
    from mixfluence.recipe_yaml import shipped_recipes

    for path in shipped_recipes():
        purpose = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        print_line(f"{path.stem:<22} {purpose}")


@app.command()
def show(recipe: RecipeName) -> None:
    """Print a recipe as written; `check` adds its defaults."""
    from mixfluence.recipe_yaml import find_recipe

    # Refuses files that are not recipes.
    read_recipe(recipe, files_may_be_missing=True)
    for line in find_recipe(recipe).read_text(encoding="utf-8").rstrip().splitlines():
        print_line(line)


@app.command()
def copy(
    recipe: RecipeName,
    target: Annotated[Path | None, Argument(help="Default: the name of the recipe, in this folder.")] = None,
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
def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Check a recipe and its data as `train` would, and print the recipe with all defaults."""
    from mixfluence.plan import plan_run
    from mixfluence.recipe_yaml import dump_recipe

    parsed = read_recipe(recipe, overrides)
    show_log(verbose=False)
    plan_run(parsed)
    for line in dump_recipe(parsed).rstrip().splitlines():
        print_line(line)
