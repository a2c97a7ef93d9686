"""`mixfluence sweep`."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT
from typing import Annotated

import typer
import yaml
from typer import Option

from mixfluence.cli.runs import compare
from mixfluence.cli.terminal import Overrides, RecipeName, note, print_line, show_log
from mixfluence.errors import RecipeError

FAILED = 1


def sweep(
    recipe: RecipeName,
    overrides: Overrides = None,
    strategies: Annotated[
        str, Option(help="Such as 'uniform,{name: inf-dds, init: uniform}'; `recipe` is the recipe's own.")
    ] = "recipe",
    seeds: Annotated[int, Option(min=1, help="Runs of each combination.")] = 1,
    axes: Annotated[list[str] | None, Option("--axis", metavar="KEY=VALUE,VALUE", help="Values of a key.")] = None,
    processes: Annotated[int, Option(min=1, help="Runs at the same time.")] = 1,
    gpus: Annotated[int, Option(min=1, help="GPUs of each run.")] = 1,
    folder: Annotated[Path | None, Option("--output", "-o", metavar="DIR", help="Folder of all runs.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="List the runs with their cost; start none.")] = False,
    keep_models: Annotated[bool, Option("--keep-models", help="Keep models of finished runs.")] = False,
) -> None:
    """Train every combination of strategies, values and seeds, then compare. The same command continues a sweep."""
    from mixfluence.sweep import build_jobs, describe_jobs, run_jobs

    _, words = parse_axis(f"strategies={strategies}")
    values = dict(map(parse_axis, axes or []))
    jobs = build_jobs(recipe, overrides or [], strategies=words, axes=values, seeds=seeds, output=folder)
    show_log(verbose=not dry_run)
    if dry_run:
        for line in describe_jobs(jobs, gpus):
            print_line(line)
        return
    try:
        failed = run_jobs(jobs, processes=processes, gpus=gpus, keep_models=keep_models)
    except KeyboardInterrupt as stop:
        note("stopped; the same command continues", "red")
        raise typer.Exit(128 + (stop.args[0] if stop.args else SIGINT)) from stop
    if tested := [job.folder for job in jobs if job.name not in failed and job.recipe.test]:
        compare(tested)
    else:
        note("no finished run with test sets to compare")
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
