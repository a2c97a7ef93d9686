"""Three small training sets and a dev set, so that the examples need no download of data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from datasets import Dataset

DEVICES = ["router", "printer", "laptop", "monitor", "keyboard", "camera", "speaker", "phone", "tablet", "scanner"]
CITIES = ["Lima", "Oslo", "Cairo", "Delhi", "Quito", "Tunis", "Hanoi", "Dakar", "Minsk", "Sofia"]
ADVICE = {
    "does not turn on": "Check the power cable of the {}.",
    "is too slow": "Install the latest update on the {}.",
    "makes a loud noise": "Clean the fan of the {}.",
    "lost its connection": "Pair the {} again in its settings.",
    "shows an error": "Reset the {} with the button on its back.",
}
TRAVEL = {"weather": "The forecast for {}.", "food": "Restaurants in {}.", "traffic": "Buses and trains in {}."}


def pairs(question: str, names: Iterable[str], answers: Mapping[str, str]) -> Dataset:
    """Return rows of a query and the passage that answers it."""
    rows = [(question.format(name, key), text.format(name)) for name in names for key, text in answers.items()]
    return Dataset.from_dict({"anchor": [row[0] for row in rows], "positive": [row[1] for row in rows]})


def toy_datasets() -> tuple[dict[str, Dataset], dict[str, Dataset]]:
    """Return the training sets and the dev set. `support` is the target; `travel` does not help it."""
    train = {
        "support": pairs("My {} {}. What can I do?", DEVICES[:5], ADVICE),
        "manuals": pairs("{} {}", DEVICES, ADVICE),
        "travel": pairs("{} {}", CITIES, TRAVEL),
    }
    return train, {"support": pairs("My {} {}. What can I do?", DEVICES[5:], ADVICE)}
