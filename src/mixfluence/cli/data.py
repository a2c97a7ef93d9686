"""Commands about the inputs of runs: `data`, `cache` and `recipes`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Option

from mixfluence.cli.terminal import Overrides, RecipeName, output, print_line, read_recipe, show_log
from mixfluence.display import duration
from mixfluence.errors import MixfluenceError, RecipeError, collecting

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
    from mixfluence.data.reading import preview_sources, token_counter
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
    from mixfluence.data.pairs import PairsSource
    from mixfluence.recipe_yaml import apply_override

    options: dict[str, Any] = {"path": path}
    for change in changes:
        apply_override(change, options)
    return PairsSource(**options)


def cache(
    clean: Annotated[bool, Option("--clean", help="Delete what is listed.")] = False,
    unused: Annotated[float, Option(min=0, metavar="DAYS", help="Only what was not used for so many days.")] = 0.0,
) -> None:
    """List converted rows, token ids, embeddings and clusters on disk, or delete them; they are built again if needed.

    The folder is $MIXFLUENCE_CACHE, by default mixfluence in the user's cache folder. With $MIXFLUENCE_CACHE_LIMIT
    (such as 200GB), what was not used for longest is deleted when the cache grows beyond it.
    """
    from mixfluence.data.cache import cache_root, delete, entries

    now = time.time()
    found = [entry for entry in entries() if now - entry.used >= unused * 86_400]
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("content", "entries", "size", "last used"):
        table.add_column(heading, justify="left" if heading == "content" else "right")
    for kind in sorted({entry.folder.parent.name for entry in found}):
        own = [entry for entry in found if entry.folder.parent.name == kind]
        used = f"{duration(now - max(entry.used for entry in own))} ago"
        table.add_row(kind, f"{len(own):,}", f"{sum(entry.size for entry in own) / 1e6:,.1f} MB", used)
    print_line(f"{cache_root()}: {sum(entry.size for entry in found) / 1e6:,.1f} MB")
    if found:
        output.print(table)
    if clean:
        for entry in found:
            delete(entry)
        print_line(f"deleted {len(found)} entries")


recipes = typer.Typer(help="The recipes that ship with mixfluence.", invoke_without_command=True)


@recipes.callback()
def list_recipes(context: typer.Context) -> None:
    """List the recipes that ship with mixfluence."""
    if context.invoked_subcommand:
        return
    from mixfluence.recipe_yaml import shipped_recipes

    for path in shipped_recipes():
        purpose = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        print_line(f"{path.stem:<22} {purpose}")


@recipes.command()
def show(recipe: RecipeName) -> None:
    """Print a recipe as written; `check` adds its defaults."""
    from mixfluence.recipe_yaml import find_recipe

    # Refuses files that are not recipes.
    read_recipe(recipe, files_may_be_missing=True)
    for line in find_recipe(recipe).read_text(encoding="utf-8").rstrip().splitlines():
        print_line(line)


@recipes.command()
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


@recipes.command()
def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Check a recipe and its data as `train` would, and print the recipe with all defaults."""
    from mixfluence.plan import plan_run
    from mixfluence.recipe_yaml import dump_recipe

    missing: list[MixfluenceError] = []
    with collecting(missing):
        read_recipe(recipe, overrides)
    # Anything wrong but missing files is an error here.
    parsed = read_recipe(recipe, overrides, files_may_be_missing=True)
    show_log(verbose=False)
    plan_run(parsed, missing=missing)
    for line in dump_recipe(parsed).rstrip().splitlines():
        print_line(line)
