"""`mixfluence train`."""

from __future__ import annotations

from typing import Annotated

import typer

from mixfluence.cli.terminal import errors, output, prepare, print_line


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with mixfluence.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes, such as training.steps=100.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
) -> None:
    """Train and test as a recipe says."""
    from mixfluence.config.files import find_recipe, load_recipe

    parsed = load_recipe(find_recipe(recipe), overrides or [])
    prepare()
    from mixfluence.experiment import run
    from mixfluence.report.tables import score_table
    from mixfluence.training.progress import ProgressDisplay

    scores = run(
        parsed, resume=resume, show_progress=errors.is_terminal, callbacks=[ProgressDisplay(errors, parsed.name)]
    )
    if scores:
        print_line("NDCG@10:")
        output.print(score_table({parsed.name: scores}))
    print_line(f"run folder: {parsed.output}")
