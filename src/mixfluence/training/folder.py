"""The run folder of a training script: a recipe that describes it, the mixture and a record, for the command line.

`status`, `weights`, `report` and, if there are test sets, `compare` read it like the folder of `mixfluence train`.
"""

from __future__ import annotations

import html
import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.table import Column, Table
from rich.text import Text

from mixfluence import runs
from mixfluence.data.mixture import repeated_queries
from mixfluence.data.reading import preview, token_counter
from mixfluence.display import SafeConsole, percent, printable
from mixfluence.evaluation import Evaluation, write_evaluation
from mixfluence.evaluation.references import write_references
from mixfluence.evaluation.retrieval import MAX_PASSAGES, evaluate, rank_task, score_task
from mixfluence.files import write_text
from mixfluence.influence.metrics import temperature_of
from mixfluence.policy.initial import write_weights
from mixfluence.recipe import PLAIN_TEMPERATURE, Recipe
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.strategies import STRATEGIES

if TYPE_CHECKING:
    from mixfluence.data.retrieval import RetrievalSet
    from mixfluence.training.trainer import MixtureMixin

logger = logging.getLogger(__name__)

# Stands for a file in the recipe of a script, whose datasets are given in Python.
IN_MEMORY = "given-in-python"
MOST_SHOWN = 20
CARD_HEADING = "## Training mixture"


def start_folder(trainer: MixtureMixin, folder: Path) -> None:
    """Show the data of a script, test its model as it came, and describe it as a recipe for the command line."""
    (folder / runs.RECORD_FILE).unlink(missing_ok=True)
    if not trainer.args.disable_tqdm:
        count = token_counter(trainer.model)
        lines = [line for name, rows in trainer.mixture.items() for line in preview(name, rows, count)]
        SafeConsole().print(Text("\n".join(map(printable, lines))), soft_wrap=True)
    for sentence in repeated_queries(trainer.mixture, trainer.dev or {}):
        logger.warning("%s", sentence)
    for task in trainer.test.values():
        if not trainer.resumed and len(task.docs) <= MAX_PASSAGES:
            scores = evaluate(trainer.model, task, batch_size=trainer.args.eval_batch_size)
            write_evaluation(scores, folder / runs.REFERENCES_FOLDER / "zero-shot")
    try:
        if STRATEGIES.get(trainer.strategy.name) is not type(trainer.strategy):
            raise ValueError(f"{type(trainer.strategy).__name__} is not registered in STRATEGIES")
        text = dump_recipe(_recipe(trainer, folder))
    except (ValueError, yaml.YAMLError) as error:
        reason = "a setting cannot be written as YAML" if isinstance(error, yaml.YAMLError) else error
        logger.warning("%s: cannot be read by the command line (%s)", folder, reason)
        return
    write_text(folder / runs.RECIPE_FILE, text)


def finish_folder(trainer: MixtureMixin, folder: Path, probing: dict[str, float]) -> None:
    """Test the model of a script, write the final mixture and the record, and print a summary."""
    write_weights(folder / runs.WEIGHTS_FILE, trainer.outcome() or trainer.probabilities())
    last = runs.read_trace(folder / runs.TRACE_FILE)[-1]
    seconds = {"train": last["seconds"] - probing["seconds"], "probe": probing["seconds"]}
    scores = {}
    for name, task in trainer.test.items():
        found = rank_task(trainer.model, task, batch_size=trainer.args.eval_batch_size)
        scores[name] = score_task(task, found)
        write_evaluation(scores[name], folder / runs.EVAL_FOLDER)
        write_references(folder, task, found)
    record = {
        "name": folder.resolve().name,
        "seed": trainer.args.seed,
        "versions": runs.versions(),
        **record_facts(trainer, seconds, probing),
        "notes": [],
        "overlap_dropped": {},
        "stages": {},
        **test_facts(trainer.test, scores),
    }
    runs.write_record(folder / runs.RECORD_FILE, record)
    if not trainer.args.disable_tqdm:
        SafeConsole().print(_summary(trainer, seconds))


def list_mixture(trainer: MixtureMixin, card: Path) -> None:
    """Add the mixture to a model's card, or replace it."""
    rows = ["| dataset | rows | probability | rows drawn |", "| --- | ---: | ---: | ---: |"]
    probabilities, drawn = trainer.probabilities(), trainer.rows_drawn()
    for name, size in trainer.mixture.sizes.items():
        escaped = html.escape(name).replace("|", "&#124;").replace("\n", " ")
        rows.append(f"| {escaped} | {size:,} | {probabilities[name]:.3g} | {drawn[name]:,} |")
    text = card.read_text(encoding="utf-8").split(CARD_HEADING)[0].rstrip()
    strategy = f"Sampled with mixfluence, strategy {trainer.strategy.label}; probabilities at the end."
    card.write_text("\n".join([text, "", CARD_HEADING, "", strategy, "", *rows, ""]), encoding="utf-8")


def record_facts(trainer: MixtureMixin, seconds: dict[str, float], probing: dict[str, float]) -> dict[str, Any]:
    """Return the part of a record about training, given the seconds by part and the cost of probes."""
    gpus = trainer.args.world_size if trainer.args.device.type == "cuda" else 0
    best = trainer.state.best_model_checkpoint
    return {
        "device": str(trainer.args.device),
        "datasets": {
            name: facts | {"fingerprint": trainer.mixture[name].fingerprint}
            for name, facts in trainer.describe_datasets().items()
        },
        "rows_drawn": trainer.rows_drawn(),
        "steps": trainer.state.global_step,
        "selected_step": runs.step_of(best) if best else trainer.state.global_step,
        "probing": {name: probing[name] for name in ("rounds", "failed", "parameter_sizes")},
        "seconds": seconds,
        "gpu_hours": {part: spent * gpus / 3600 for part, spent in seconds.items()},
    }


def test_facts(tasks: Mapping[str, RetrievalSet], scores: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return the parts of a record about test sets: what they hold and how the model scored."""
    return {
        "tests": {
            name: {"queries": len(task.queries), "passages": len(task.docs), "fingerprint": task.fingerprint}
            for name, task in tasks.items()
        },
        "scores": {name: evaluation.summary() for name, evaluation in scores.items()},
    }


def _recipe(trainer: MixtureMixin, folder: Path) -> Recipe:
    args = trainer.args
    negatives = trainer.num_negatives
    own_negatives = negatives if isinstance(negatives, Mapping) else {}
    described = {
        "name": folder.resolve().name,
        "seed": args.seed,
        "model": {"name": str(trainer.model.model_card_data.base_model or "unknown"), "kind": trainer.kind},
        "train": {
            name: source | {"batch_size": trainer.own_batch_sizes.get(name), "hard_negatives": own_negatives.get(name)}
            for name, source in _sources(trainer.mixture).items()
        },
        "dev": _sources(trainer.dev or {}),
        "test": _sources(trainer.test),
        "strategy": trainer.strategy,
        "training": {
            "steps": trainer.state.max_steps,
            "batch_size": args.per_device_train_batch_size,
            "learning_rate": float(args.learning_rate),
            "weight_decay": float(args.weight_decay),
            "gradient_accumulation": args.gradient_accumulation_steps,
            "hard_negatives": None if isinstance(negatives, Mapping) else negatives,
            "precision": "bf16" if args.bf16 else "fp32",
            "temperature": temperature_of(trainer.loss, 0.02 if trainer.kind == "dense" else PLAIN_TEMPERATURE),
        },
        "output": folder,
    }
    return Recipe.model_validate(described, context={"files_may_be_missing": True})


def _sources(datasets: Iterable[str]) -> dict[str, Any]:
    return {name: {"format": "pairs", "path": Path(IN_MEMORY)} for name in datasets}


def _summary(trainer: MixtureMixin, seconds: dict[str, float]) -> Table:
    """Return the most likely datasets with their probabilities and how much of them was read."""
    took = f"{seconds['train']:.0f} s" + (f" and {seconds['probe']:.0f} s of probes" if seconds["probe"] else "")
    title = f"{trainer.strategy.label}: {trainer.state.global_step:,} steps in {took}"
    numbers = ("rows", "at first", "at the end", "rows drawn", "epochs")
    table = Table("dataset", *(Column(name, justify="right") for name in numbers), title=title)
    first = dict(zip(trainer.mixture, trainer.initial_weights, strict=True))
    last, drawn = trainer.probabilities(), trainer.rows_drawn()
    for name, size in islice(trainer.mixture.sizes.items(), MOST_SHOWN):
        epochs = f"{drawn[name] / size:.2f}"
        cells = f"{size:,}", percent(first[name]), percent(last[name]), f"{drawn[name]:,}", epochs
        table.add_row(Text(printable(name)), *cells)
    if (rest := len(trainer.mixture) - MOST_SHOWN) > 0:
        table.add_row(f"and {rest} more")
    return table
