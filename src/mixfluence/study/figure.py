"""Sampling trajectories drawn as the paper has them: a panel for each target, a curve for each row.

A row whose mixture was found before its last run, as those of DoReMi, DoGE and CRISP are, is a straight line.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from mixfluence.report.figures import TWO_COLUMNS, look
from mixfluence.study.stability import Line

PANELS_IN_A_ROW = 3
# Inches, of the style's legend: a line with its gap, and about one letter.
PANEL_HEIGHT, LABEL_HEIGHT, KEY_WIDTH, LETTER_WIDTH = 1.7, 0.14, 0.5, 0.056
MOMENTS = [moment / 100 for moment in range(101)]


def draw_trajectories(lines: Sequence[Line]) -> Figure:
    """Return a figure of how the probability of each target's own dataset moves, mean over seeds.

    Args:
        lines: Of all rows, at least one; targets that are no training set have the dataset that ends highest.
    """
    targets = list(dict.fromkeys(target for line in lines for target in line.targets))
    rows = list(dict.fromkeys(line.row for line in lines))
    height, width = -(-len(targets) // PANELS_IN_A_ROW), min(len(targets), PANELS_IN_A_ROW)
    labels = max(1, int(TWO_COLUMNS / (KEY_WIDTH + LETTER_WIDTH * max(map(len, rows)))))
    legend = -(-len(rows) // labels) * LABEL_HEIGHT
    figure = Figure(figsize=(TWO_COLUMNS, height * PANEL_HEIGHT + legend + 0.3), layout="constrained")
    panels = figure.subplots(height, width, squeeze=False, sharex=True).flatten()
    drawn = {}
    for panel, target in zip(panels, targets, strict=False):
        own = [line for line in lines if target in line.targets]
        for line in own:
            percent = [line.at(moment) for moment in MOMENTS]
            (drawn[line.row],) = panel.plot(MOMENTS, percent, drawstyle="steps-post", **look(rows.index(line.row)))
        panel.set(ylim=(0, None))
        panel.set_title(
            target if all(line.dataset == target for line in own) else f"{target}: highest dataset", size=8
        )
    for panel in panels[len(targets) :]:
        panel.set_visible(False)
    for panel in panels[max(len(targets) - width, 0) : len(targets)]:
        panel.set_xlabel("part of the steps")
        panel.tick_params(labelbottom=True)
    figure.supylabel("probability, %", size=8)
    # A label that starts with an underscore would be left out of a legend that reads the lines.
    figure.legend([drawn[row] for row in rows], rows, loc="outside lower center", ncols=labels)
    return figure
