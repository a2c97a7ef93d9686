"""`mixfluence data` and `mixfluence cache`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Argument, Option

from mixfluence.cli.terminal import output, print_line, read_recipe, show_log
from mixfluence.display import duration
from mixfluence.errors import RecipeError

Sources = Annotated[list[str], Argument(metavar="SOURCE...", help="Recipes, or files and folders of pairs.")]


def data(
    sources: Sources,
    model: Annotated[str | None, Option(metavar="NAME", help="Count the tokens of this encoder, not words.")] = None,
) -> None:
    """Show a sample row of datasets, with the roles of columns, lengths, duplicates, and rows that were left out.

    Words with a = are options of the sources, such as columns.anchor=question or delimiter=';'.
    """
    show_log(verbose=False)
    changes = [word for word in sources if "=" in word]
    from mixfluence.data.preview import preview_sources, token_counter

    count = None
    if model:
        from mixfluence.encoders import load_encoder

        count = token_counter(load_encoder(model))
    for word in sources:
        if word in changes:
            continue
        path = Path(word)
        if path.exists() and path.suffix not in {".yaml", ".yml"}:
            found = {path.name: _pairs(path, changes)}
        else:
            recipe = read_recipe(word, changes, files_may_be_missing=True)
            found = recipe.train | {f"dev {name}": source for name, source in recipe.dev.items()}
        for line in preview_sources(found, count):
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
