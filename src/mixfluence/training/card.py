"""The model card says what the model was trained on, and how much of it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixfluence.strategies import Strategy

HEADING = "## Training mixture"


def add_mixture_section(card: Path, strategy: Strategy, table: Sequence[dict[str, Any]]) -> None:
    """Append (or replace) the section that lists each dataset, its probability and the rows drawn from it."""
    text = card.read_text(encoding="utf-8").split(f"\n{HEADING}\n")[0].rstrip()
    columns = list(table[0])
    lines = [" | ".join(columns), " | ".join(["---", *["---:"] * (len(columns) - 1)])]
    lines += [" | ".join(_cell(row[column]) for column in columns) for row in table]
    intro = f"Sampled with mixfluence, strategy `{type(strategy).__name__}`; probabilities are the last in force."
    body = "\n".join(f"| {line} |" for line in lines)
    card.write_text(f"{text}\n\n{HEADING}\n\n{intro}\n\n{body}\n", encoding="utf-8")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return html.escape(str(value)).replace("|", "&#124;").replace("\n", " ")
