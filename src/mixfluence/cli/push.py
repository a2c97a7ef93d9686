"""`mixfluence push`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mixfluence.cli.terminal import print_line, show_log


def push(
    run: Annotated[Path, Argument(metavar="RUN", help="A finished run.")],
    repository: Annotated[str, Argument(metavar="REPO", help="A repository of the hub, such as me/my-retriever.")],
    private: Annotated[bool, Option("--private", help="Create the repository as a private one.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be published, with the card.")] = False,
) -> None:
    """Publish the model of a run on the Hugging Face hub, with its mixture, scores and recipe.

    The card contains a few training rows as examples, and the recipe has the paths of your files: look at both with
    --dry-run first.
    """
    show_log()
    from mixfluence.publish import card_of, files_of
    from mixfluence.publish import push as publish
    from mixfluence.runs import read_run

    found = read_run(run)
    if not dry_run:
        print_line(publish(found, repository, private=private))
        return
    for path, source in files_of(found).items():
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        print_line(f"{size / 1e6:10,.2f} MB  {repository}/{path}")
    for line in card_of(found).splitlines():
        print_line(line)
