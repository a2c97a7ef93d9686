"""What is said of a mixture while it is trained on: in the trace, to every tracker, in the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentence_transformers import SentenceTransformerTrainingArguments

from mixfluence.data.tokens import TokenisedRows
from mixfluence.training.draws import batch_sizes


def for_trace(
    args: SentenceTransformerTrainingArguments, tokenised: Mapping[str, TokenisedRows]
) -> dict[str, dict[str, int]]:
    """Return each dataset's rows, distinct positives and rows per batch."""
    sizes = batch_sizes(args.train_batch_size, args.world_size, tokenised)
    return {
        name: {
            "rows": len(rows),
            "distinct_positives": rows.distinct_positives,
            "batch_size": sizes[name],
        }
        for name, rows in tokenised.items()
    }


def for_trackers(
    probabilities: Mapping[str, float], rows_drawn: Mapping[str, int], influence: Mapping[str, float]
) -> dict[str, float]:
    """Return numbers under the names that trackers make charts of.

    Args:
        probabilities: Of the next draw.
        rows_drawn: Rows of each dataset so far.
        influence: The last of each dataset that was measured.
    """
    return {
        **{f"sampling/{name}": round(p, 6) for name, p in probabilities.items()},
        **{f"rows_drawn/{name}": rows for name, rows in rows_drawn.items()},
        **{f"influence/{name}": value for name, value in influence.items()},
    }


def for_card(
    sizes: Mapping[str, int], probabilities: Mapping[str, float], rows_drawn: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the lines of the model card's table, one per dataset.

    Args:
        sizes: Rows of each dataset.
        probabilities: The last in force.
        rows_drawn: Rows of each dataset over the whole run.
    """
    return [
        {
            "dataset": name,
            "rows": size,
            "probability": probabilities[name],
            "rows drawn": rows_drawn[name],
            "epochs": rows_drawn[name] / size,
        }
        for name, size in sizes.items()
    ]
