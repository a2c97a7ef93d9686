"""`mixfluence demo`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from mixfluence.cli.terminal import errors, note, output, print_line, read_recipe, show_log

Encoder = Literal["wordllama", "minilm"]
# A transformer needs a smaller learning rate, and on two cores fewer and shorter steps.
MINILM_CHANGES = [
    *("model.query_length=32", "model.passage_length=96", "selection.every=30"),
    *("training.learning_rate=5e-5", "training.batch_size=32", "training.steps=60", "training.warmup_steps=6"),
]
SAMPLERS = {
    "proportional": "strategy.init=proportional",
    "uniform": "strategy.init=uniform",
    "own-rows-only": "train={{{target}: {{split: train}}}}",
    "inf-dds": "strategy={{name: inf-dds, init: uniform, update_every: 25}}",
}


def demo(
    encoder: Annotated[Encoder, Option(help="wordllama takes two minutes, minilm half an hour.")] = "wordllama",
    target: Annotated[str, Option(help="The library to adapt to.")] = "scikit-learn",
    to: Annotated[Path, Option(help="Folder for the runs; emptied first.")] = Path("runs/demo"),
) -> None:
    """Adapt an encoder to the documentation of a library on this machine, once with each of four samplers."""
    show_log()
    from mixfluence.build import build_model
    from mixfluence.data.formats import read_task
    from mixfluence.experiment import run
    from mixfluence.policy.initial import read_weights
    from mixfluence.report.tables import score_table
    from mixfluence.testing import evaluate_tasks
    from mixfluence.training.display import ProgressDisplay

    changes = [f"model.name={encoder}", *pool_changes(target), *(MINILM_CHANGES if encoder == "minilm" else [])]
    recipe = read_recipe("pydocs", changes)
    note("reading the docstrings of installed libraries (half a minute the first time)")
    tasks = {name: read_task(name, source) for name, source in recipe.test.items()}
    rows = {"zero-shot": evaluate_tasks(build_model(recipe.model), tasks, recipe)}
    for label, change in SAMPLERS.items():
        folder = to / label
        shutil.rmtree(folder, ignore_errors=True)
        own = [change.format(target=target), f"output={folder}"]
        rows[label] = run(read_recipe("pydocs", [*changes, *own]), callbacks=[ProgressDisplay(errors, label)])
    print_line(f"NDCG@10 on {len(tasks[target].queries)} test queries:")
    output.print(score_table(rows))
    learned = sorted(read_weights(to / "inf-dds" / "weights.json").items(), key=lambda item: -item[1])
    print_line("inf-dds ended with " + ", ".join(f"{name} {share:.0%}" for name, share in learned if share >= 0.01))
    print_line(f"The runs are in {to}; load a model with SentenceTransformer('{to}/inf-dds/model').")


def pool_changes(target: str) -> list[str]:
    """Return the overrides for a target: its own few training rows, and all rows of the other libraries."""
    from mixfluence.data.pydocs import LIBRARIES

    splits = {library: {"split": "train" if library == target else "all"} for library in LIBRARIES}
    return [f"train={splits}", f"dev=[{target}]", f"test=[{target}]"]
