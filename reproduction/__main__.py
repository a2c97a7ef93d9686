"""`python -m reproduction STUDY`: runs a study of the paper and shows its tables beside the paper's."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT
from typing import Annotated

import typer
from rich.console import Console

from mixfluence import MixfluenceError, RecipeError
from mixfluence.sweep import State, describe_jobs, run_jobs
from reproduction.cells import Cell, build_cells, missing_files
from reproduction.findings import Findings, find
from reproduction.schema import load_setting, load_study, study_names
from reproduction.trajectories import trajectory_lines, write_figure

logger = logging.getLogger("mixfluence.reproduction")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
FAILED, BAD_INPUT = 1, 2
# Terminals wrap longer lines by themselves, so that no number is cut off.
WIDEST = 1_000


@app.command()
def study(
    name: Annotated[str | None, typer.Argument(help="A study, by name or file; without it all are listed.")] = None,
    setting: Annotated[str, typer.Option(help="`paper`, or a small `twin`; the list shows the choice.")] = "paper",
    data: Annotated[Path | None, typer.Option(help="The folder that recipes call data.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of all runs, shared by the studies of a setting."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of each run, instead of the setting's.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each row, instead of the study's.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change every recipe, as for train.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs with their cost; start none.")] = False,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep models of finished runs.")] = False,
) -> None:
    """Run a study and show its tables beside the paper's. The same command continues a study."""
    if name is None:
        for found in map(load_study, study_names()):
            typer.echo(f"{found.name:<22} {found.purpose} ({', '.join(found.settings)})")
        return
    chosen = load_study(name)
    place = chosen.place(setting)
    gpus = gpus or load_setting(place.setting).gpus
    target = folder or Path("runs") / "studies" / place.setting
    cells = build_cells(chosen, place, target, data=data, seeds=seeds, changes=changes or [])
    if dry_run:
        for line in describe_jobs(cells, gpus):
            typer.echo(line)
        return
    try:
        _prepare(cells)
        failed = run_jobs(cells, processes=processes, gpus=gpus, keep_models=keep_models)
    except KeyboardInterrupt as stop:
        logger.error("stopped; the same command continues")
        raise typer.Exit(128 + (stop.args[0] if stop.args else SIGINT)) from stop
    _show(find(chosen, setting, cells, failed), target)
    if failed:
        raise typer.Exit(FAILED)


def _prepare(cells: Sequence[Cell]) -> None:
    """Check that the data exists, and write the rows that are derived from it."""
    todo = [cell for cell in cells if cell.state() is not State.FINISHED]
    if missing := missing_files(todo):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RecipeError(f"no such file or folder: {missing[0]}{more}; --data replaces the folder data")
    for path, derivation in {file.path: file for cell in todo for file in cell.derivations}.items():
        if not path.exists():
            logger.info("writing %s", path)
            derivation.write()


def _show(found: Findings, folder: Path) -> None:
    console = Console(width=WIDEST)
    for table in found.tables:
        console.print(table.title, style="bold", markup=False, highlight=False)
        console.print(table.to_rich(), "")
    for note in found.notes:
        console.print(note, style="dim", markup=False, highlight=False)
    study = found.results.study
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{study.name}.md").write_text(found.to_markdown(), encoding="utf-8")
    (folder / f"{study.name}.json").write_text(found.to_json(), encoding="utf-8")
    logger.info("wrote %s and .json", folder / f"{study.name}.md")
    lines = trajectory_lines(found.results.outcomes) if "trajectories" in study.views else []
    if not lines:
        return
    try:
        logger.info("wrote %s and %s", *write_figure(lines, folder, study.name))
    except ImportError:
        logger.warning("no figure of the trajectories: pip install matplotlib")


def main() -> None:
    """Run the command line; a mistake in the input ends in one message."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("mixfluence").setLevel(logging.INFO)
    try:
        app()
    except MixfluenceError as error:
        logger.error("error: %s", error)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
