"""`mixfluence cache`."""

from __future__ import annotations

import time
from typing import Annotated

from rich.table import Table
from typer import Option

from mixfluence.cli.terminal import output, print_line
from mixfluence.display import duration


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
