"""`mixfluence sweep`."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from mixfluence.cli.terminal import errors, output, prepare, print_line
from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from mixfluence.sweep import Job

FAILED = 1


def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with mixfluence.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to every run, such as training.steps=100.")
    ] = None,
    strategies: Annotated[
        str, typer.Option(help="Samplers, such as uniform,proportional,inf-dds; `recipe` is the recipe's own.")
    ] = "recipe",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination.")] = 1,
    axes: Annotated[
        list[str] | None,
        typer.Option("--axis", metavar="KEY=VALUE,VALUE", help="A key of the recipe and the values it takes."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of each run.")] = 1,
    folder: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder of all runs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs with their cost; start none.")] = False,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep models of finished runs.")] = False,
) -> None:
    """Train every combination of strategies, values and seeds, then compare. The same command continues a sweep."""
    from mixfluence.sweep import build_jobs, describe_jobs, run_jobs

    jobs = build_jobs(
        recipe,
        overrides or [],
        strategies=[word.strip() for word in strategies.split(",")],
        axes=dict(map(parse_axis, axes or [])),
        seeds=seeds,
        output=folder,
    )
    prepare(verbose=not dry_run)
    if dry_run:
        for line in describe_jobs(jobs, gpus):
            print_line(line)
        return
    try:
        failed = run_jobs(jobs, processes=processes, gpus=gpus, keep_models=keep_models)
    except KeyboardInterrupt as stop:
        errors.print("stopped; the same command continues", style="red")
        raise typer.Exit(128 + (stop.args[0] if stop.args else SIGINT)) from stop
    _print_comparison([job for job in jobs if job.name not in failed and job.recipe.test])
    if failed:
        raise typer.Exit(FAILED)


def parse_axis(text: str) -> tuple[str, list[str]]:
    """Split `KEY=VALUE,VALUE` into the key and its values, each still YAML; commas inside brackets do not split."""
    key, equals, values = text.partition("=")
    source = f"[{values}]"
    try:
        nodes = yaml.compose(source, yaml.SafeLoader).value if key and equals else []
    except yaml.YAMLError as error:
        raise RecipeError(f"--axis {text}: the values are not valid YAML") from error
    if not nodes:
        raise RecipeError(f"--axis {text}: expected KEY=VALUE,VALUE, such as training.learning_rate=1e-5,2e-5")
    return key, [source[node.start_mark.index : node.end_mark.index] for node in nodes]


def _print_comparison(jobs: list[Job]) -> None:
    if not jobs:
        errors.print("no finished run with test sets to compare", style="dim")
        return
    from mixfluence.report.compare import compare
    from mixfluence.report.summary import to_terminal
    from mixfluence.runs import read_run

    output.print(to_terminal(compare([read_run(job.folder) for job in jobs])))
