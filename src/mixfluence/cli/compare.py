"""`mixfluence compare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mixfluence.cli.terminal import Measure, output, write_result

if TYPE_CHECKING:
    from mixfluence.report.compare import Comparison


class Test(StrEnum):
    """Paired tests."""

    T = "t"
    RANDOMISATION = "randomisation"


class Format(StrEnum):
    """Output formats."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"


ENDINGS = {".md": Format.MARKDOWN, ".tex": Format.LATEX, ".csv": Format.CSV, ".json": Format.JSON}
# Width of a text file with the terminal's tables.
FILE_WIDTH = 120


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs.")],
    measure: Annotated[Measure, typer.Option(help="Measure to show.")] = Measure.NDCG,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Rows to test, by position or by name of a run; default: the two best."),
    ] = None,
    test: Annotated[Test, typer.Option(help="Paired test on per-query scores.")] = Test.T,
    bootstrap: Annotated[bool, typer.Option("--bootstrap", help="Add intervals of the differences.")] = False,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Default: by the ending of FILE, else terminal.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Compare runs: scores, significance tests, cost. Seeds of one recipe share a row."""
    from mixfluence.report.compare import compare as compare_runs
    from mixfluence.report.summary import to_terminal
    from mixfluence.runs import read_run

    found = compare_runs(
        [read_run(run) for run in runs], measure=measure.value, between=between, test=test.value, bootstrap=bootstrap
    )
    chosen = format_ or (ENDINGS.get(file.suffix.lower()) if file else None) or Format.TERMINAL
    if file:
        write_result(file, _text(found, chosen))
    elif chosen is Format.TERMINAL:
        output.print(to_terminal(found))
    else:
        # Not through rich, which would interpret names as markup and wrap lines.
        typer.echo(_text(found, chosen), nl=False)


def _text(found: Comparison, chosen: Format) -> str:
    from io import StringIO

    from rich.console import Console

    from mixfluence.report.summary import FORMATS, to_terminal

    if chosen is not Format.TERMINAL:
        return FORMATS[chosen.value](found)
    text = StringIO()
    Console(file=text, width=FILE_WIDTH).print(to_terminal(found))
    return text.getvalue()
