"""A study: one command runs a grid of runs and prints the paper's table beside ours.

The story, file by file. A study is data (`schema`): rows, targets, and for each setting it can be run in, the paper's
own or a small twin, which recipe and which samplers. `grid` multiplies rows, targets and seeds out to cells, each a
recipe with a run folder of its own; studies of one setting share a folder, so that a cell which two of them have is
trained once. Some cells train on rows that no file holds: `derived` writes them first. `workers` runs cells side by
side, `cell` does one: skipped if finished, resumed if it was stopped; `launch` starts one that has several GPUs.
`outcomes` reads what they left behind, `arithmetic` has the measures that are ours, `views` and `beside` make tables
of it, `pages` writes them.
"""

from mixfluence.study.grid import Cell, build_cells
from mixfluence.study.pages import Findings, find, to_json, to_markdown
from mixfluence.study.schema import Place, Row, Setting, Study, load_study, study_names
from mixfluence.study.workers import run_cells

__all__ = [
    "Cell",
    "Findings",
    "Place",
    "Row",
    "Setting",
    "Study",
    "build_cells",
    "find",
    "load_study",
    "run_cells",
    "study_names",
    "to_json",
    "to_markdown",
]
