"""Sparklines, durations and percentages for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

LEVELS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 12
HISTORY_WIDTH = 16
NAME_WIDTH = 24
MOST_DATASETS = 8
Item = TypeVar("Item")


def printable(text: str, keep: str = "") -> str:
    """Return a text without control characters, which a terminal would obey, except those to keep."""
    return "".join(char if char.isprintable() or char in keep else "\ufffd" for char in text)


class SafeConsole(Console):
    """A console that replaces control characters, which names of files and datasets may contain."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the parts of something to print."""
        for segment in super().render(renderable, options):
            # Control codes of rich itself move the cursor of a live display.
            own = segment.control or segment.text.isprintable()
            yield segment if own else segment._replace(text=printable(segment.text, keep="\n\t"))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 dev set"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def thin(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` evenly spaced items, first and last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def sparkline(values: Sequence[float], width: int = HISTORY_WIDTH) -> str:
    """Return values as a line of bars from 0 to the maximum; long series are thinned."""
    values = thin(values, width)
    top = max(values, default=0.0)
    return "".join(LEVELS[round(value / top * (len(LEVELS) - 1))] if top > 0 else LEVELS[0] for value in values)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole, minutes = round(seconds), round(seconds / 60)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    if minutes < 60:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def percent(share: float) -> str:
    """Return a share in percent with one decimal."""
    return "0%" if share == 0 else "<0.1%" if share < 0.0005 else f"{100 * share:.1f}%"


def largest(weights: Mapping[str, float], count: int) -> list[str]:
    """Return the names with the largest weights, largest first."""
    return sorted(weights, key=lambda name: -weights[name])[:count]


def plain_table(*headings: str) -> Table:
    """Return a table without lines, whose first column is aligned to the left and the others to the right."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Return headings with texts beside them, in which nothing is interpreted as markup."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for heading, text in facts:
        table.add_row(heading, Text(printable(text)))
    return table


def mixture_table(history: Sequence[Mapping[str, float]], influence: Mapping[str, float]) -> Table:
    """Return the most likely datasets with probability, history (oldest first) and last influence."""
    now = history[-1]
    shown = largest(now, MOST_DATASETS)
    table = Table.grid(padding=(0, 2))
    table.add_column(max_width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    # Numbers are never cut off: half an exponent is another number.
    for width in (BAR_WIDTH, len("100.0%"), HISTORY_WIDTH, len("-1.1e-05")):
        table.add_column(min_width=width, no_wrap=True, justify="left" if width == BAR_WIDTH else "right")
    # As Text, brackets in names are not markup.
    for name in shown:
        trend = sparkline([weights.get(name, 0.0) for weights in history])
        gain = f"{influence[name]:+.2g}" if name in influence else ""
        # Any share above zero is visible.
        end = max(now[name], 1 / (8 * BAR_WIDTH)) if now[name] else 0.0
        bar = Bar(1, 0, end, width=BAR_WIDTH, color="cyan")
        table.add_row(Text(printable(name)), bar, percent(now[name]), Text(trend, "dim"), gain)
    if rest := len(now) - len(shown):
        others = 1 - sum(now[name] for name in shown)
        table.add_row(Text(f"and {rest} more", "dim"), "", Text(percent(max(others, 0.0)), "dim"), "", "")
    return table
