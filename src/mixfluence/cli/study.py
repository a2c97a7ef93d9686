"""`mixfluence study`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mixfluence.cli.signals import StopSignals
from mixfluence.cli.terminal import errors, output, prepare, print_line
from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mixfluence.study import Cell, Findings, Study

FAILED = 1


def study(
    name: Annotated[str | None, typer.Argument(help="Which study; without a name all are listed.")] = None,
    setting: Annotated[str, typer.Option(help="`paper`, or a small `twin`; the list says what there is.")] = "paper",
    data: Annotated[Path | None, typer.Option(help="The folder that recipes call data.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of all runs, shared by the studies of a setting."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of each run, instead of the setting's.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each cell, instead of the study's.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change every recipe, as for train.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and what they cost; run none.")] = False,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Do not delete the models of finished runs.")
    ] = False,
) -> None:
    """Run a study of the paper: a grid of runs, then its table beside the paper's. Finished runs are not run again."""
    from mixfluence.study.grid import build_cells
    from mixfluence.study.schema import load_setting, load_study

    if name is None:
        _list()
        return
    chosen = load_study(name)
    place = chosen.place(setting)
    gpus = gpus or load_setting(place.setting).gpus
    if gpus > 1 and processes > 1:
        raise RecipeError(
            f"--processes {processes}: runs on {gpus} GPUs take turns; with --gpus 1 they can run side by side"
        )
    target = folder or Path("runs") / "studies" / place.setting
    cells = build_cells(chosen, place, target, data=data, seeds=seeds, changes=changes or [])
    if dry_run:
        _print_cells(cells, gpus)
        return
    with StopSignals():
        try:
            failed = _run(cells, processes, gpus, keep_models)
        except KeyboardInterrupt as stop:
            errors.print("stopped; the same command goes on where it was", style="red")
            raise typer.Exit(128 + (stop.args[0] if stop.args else 2)) from stop
    _show(chosen, setting, cells, failed, target)
    if failed:
        raise typer.Exit(FAILED)


def _list() -> None:
    from mixfluence.study.schema import load_study, study_names

    for name in study_names():
        found = load_study(name)
        print_line(f"{name:<22} {found.purpose} ({', '.join(found.settings)})")


def _print_cells(cells: Sequence[Cell], gpus: int) -> None:
    from mixfluence.planning import plan_run
    from mixfluence.study.cell import state_of

    prepare(verbose=False)
    costs: dict[tuple[str, str | None], float] = {}
    for cell in cells:
        key = cell.title, cell.target
        if key not in costs:
            costs[key] = 0.0 if cell.row.reference else plan_run(cell.recipe, processes=gpus).cost
        print_line(f"{costs[key]:>9.0f} steps  {cell.name} ({state_of(cell)})")
    total = sum(costs[cell.title, cell.target] for cell in cells)
    shared = f", each run on {gpus} GPUs" if gpus > 1 else ""
    print_line(f"{total:>9.0f} steps  in {len(cells)} cells{shared}; a step is one of plain training")


def _run(cells: Sequence[Cell], processes: int, gpus: int, keep_models: bool) -> dict[str, str]:
    from mixfluence.study.cell import State, state_of
    from mixfluence.study.grid import missing_files
    from mixfluence.study.launch import check_gpus, count_gpus
    from mixfluence.study.workers import run_cells

    todo = [cell for cell in cells if state_of(cell) is not State.FINISHED]
    if missing := missing_files(todo):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RecipeError(f"no such file or folder: {missing[0]}{more}; --data says where the folder data is")
    if gpus > 1 and not all(cell.row.reference for cell in todo):
        check_gpus(gpus, count_gpus())
    prepare()
    errors.print(f"{len(todo)} cells to run, {len(cells) - len(todo)} are finished", style="dim", highlight=False)
    for path, derivation in {file.path: file for cell in todo for file in cell.derivations}.items():
        if not path.exists():
            errors.print(f"making {path}", style="dim", markup=False, highlight=False, soft_wrap=True)
            derivation.write()
    left = len(todo)

    def tell(cell: Cell, error: str | None) -> None:
        nonlocal left
        left -= 1
        text = f"{cell.name}: {'failed, ' + error if error else 'done'}, {left} left"
        errors.print(text, style="red" if error else "dim", markup=False, highlight=False, soft_wrap=True)

    return run_cells(todo, processes=processes, gpus=gpus, keep_models=keep_models, tell=tell)


def _show(chosen: Study, setting: str, cells: Sequence[Cell], failed: dict[str, str], folder: Path) -> None:
    from mixfluence.cli.result import write_result
    from mixfluence.report.tables import Screen
    from mixfluence.study.pages import find, to_json, to_markdown

    found = find(chosen, setting, cells, failed)
    output.print(Screen(found.sheets, found.notes))
    write_result(folder / f"{chosen.name}.md", to_markdown(found))
    write_result(folder / f"{chosen.name}.json", to_json(found))
    if "trajectories" in chosen.views:
        _draw(found, folder)


def _draw(found: Findings, folder: Path) -> None:
    from mixfluence.cli.result import tell_written, writing_to
    from mixfluence.study.stability import trajectory_lines

    name = found.results.study.name
    from mixfluence.report.figures import write_figure
    from mixfluence.study.figure import draw_trajectories

    if lines := trajectory_lines(found.results.outcomes):
        with writing_to(folder):
            for path in write_figure(partial(draw_trajectories, lines), folder, name):
                tell_written(path)
