"""Tries a run on a few rows: what comes before its first step, and what comes after its last.

Plans and checks set up the trainers of a run, so that they refuse what `train` would refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sentence_transformers.base.model import BaseModel

from mixfluence.build import build_trainer
from mixfluence.clustering.arms import arms_of
from mixfluence.data.mixture import Mixture
from mixfluence.data.reading import Data
from mixfluence.data.rows import RowSet
from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe
from mixfluence.testing import evaluate_tasks, rank_dev

# Rows of a training set that are tokenised to set up a trainer.
FEW_ROWS = 16


def rehearse_run(recipe: Recipe, data: Data) -> None:
    """Set up a run on a few training rows and all dev rows, and try what comes after training; nothing is kept."""
    if torch.cuda.device_count() > 1:
        return  # the run will be started with torchrun
    train = Mixture({name: _few(rows) for name, rows in data.train.items()})
    found = dict.fromkeys(train, 1 / len(train))
    # The limit of epochs is checked with all rows.
    strategy = recipe.strategy._with(max_epochs=None)
    if strategy.division:
        arms = arms_of(train, np.zeros(sum(train.sizes.values()), np.int16))
        train, found = arms.mixture, dict.fromkeys(arms.mixture, 1 / len(train))
        data = replace(data, sources=arms.sources)
    with TemporaryDirectory(prefix="mixfluence-") as folder, _quiet():
        # A plan may be made on a machine without a GPU.
        training = recipe.training.model_copy(update={"packing": None, "compiled": False})
        tried = recipe.model_copy(update={"output": Path(folder), "strategy": strategy, "training": training})
        stages = strategy.stages(tried)
        for stage in dict.fromkeys((stages[0], stages[-1])):
            if stage.merges or stage.against:
                continue
            first = stage is stages[0] and (strategy.division or not strategy.clusters)
            trainer = build_trainer(tried, stage, replace(data, train=train, found={} if first else found), [])
            trainer.get_train_dataloader()
            trainer.state.max_steps = stage.steps
            trainer.optimizer = trainer.accelerator.prepare(trainer.create_optimizer())
            if trainer.probing:
                trainer.probing.start()
        rehearse_tests(recipe, trainer.model, data, tried.output)


def rehearse_tests(recipe: Recipe, model: BaseModel, data: Data, place: Path) -> None:
    """Try in a folder, on the first rows of each set, what comes after training, so that nothing fails only then."""
    dev = {name: rows.take(range(min(2, len(rows))), rows.fingerprint) for name, rows in data.dev.items()}
    test = {
        name: replace(task.take_queries([0]), doc_ids=task.doc_ids[:2], docs=task.docs[:2])
        for name, task in data.test.items()
    }
    try:
        with TemporaryDirectory(prefix=".try-", dir=place) as folder, _quiet():
            rank_dev(recipe, model, dev, Path(folder))
            evaluate_tasks(model, test, recipe, Path(folder))
    except (OSError, UnicodeError) as error:
        reason = str(error)
        if isinstance(error, OSError) and error.filename:
            reason = f"{Path(error.filename).name}: {error.strerror}"
        raise RecipeError(f"{recipe.output}: results could not be written ({reason})") from error


def _few(rows: RowSet) -> RowSet:
    places = range(0, len(rows), -(-len(rows) // FEW_ROWS))
    return rows.take(places, f"{rows.fingerprint}-every-{places.step}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing: a few rows are no reason to warn."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
