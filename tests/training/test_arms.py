"""Training on arms: clusters of a dataset that are drawn and measured like datasets.

- A cluster that helps the target wins over a cluster of the same dataset whose answers are shuffled.
- With batches of a dataset, clusters are mixed by their weights: a batch has rows of one dataset, none conflict, and
  every process gets as many.
- A resumed run is the run that was not stopped, in both kinds of batches, with a subset of arms and loader workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.clustering.arms import arms_of
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row
from mixfluence.influence import Probe
from mixfluence.policy import UNIFORM, Anchored, Arms, Fair, Rule
from mixfluence.policy.arms import dataset_of, totals
from mixfluence.runs import read_trace
from mixfluence.strategies import InfDDS
from mixfluence.training.trainer import MixtureTrainer
from tests.conftest import row_set
from tests.training.runs import arguments, build
from tests.training.test_inf_dds_resume import assert_equal_tensors, timeless_trace
from tests.training.test_resume import StopAt

pytestmark = pytest.mark.slow
MakeModel = Callable[[], SentenceTransformer]
Batches = Literal["cluster", "dataset"]


def pool() -> Mixture:
    """`faq` has 60 answers like the dev set's, then 60 shuffled ones; `other` has 40 rows of other words."""
    answers = [f"w{i + 80}" for i in range(60)]
    shuffled = random.Random(0).sample(answers, len(answers))
    faq = [Row(f"w{i} w{i + 1}", answer) for own in (answers, shuffled) for i, answer in enumerate(own)]
    return Mixture({"faq": row_set(*faq), "other": row_set(*(Row(f"w{i + 150}", f"w{199 - i}") for i in range(40)))})


def arms() -> Mixture:
    numbers = np.repeat(np.array([0, 1, 0, 1], np.int16), [60, 60, 20, 20])
    return arms_of(pool(), numbers).mixture


def new_trainer(model: SentenceTransformer, folder: Path, batches: Batches, **options: Any) -> MixtureTrainer:
    """Return a trainer of twelve steps with rounds after steps 2, 5, 8 and 11."""
    settings: dict[str, Any] = {"update_every": 3, "warmup_steps": 2, "freeze_below": 0.0, "gate": False}
    settings |= {"init": UNIFORM, "arms": Arms(batches=batches), **options.pop("settings", {})}
    callbacks = options.pop("callbacks", None)
    dev = {"dev": row_set(*(Row(f"w{i} w{i + 1}", f"w{i + 80}") for i in range(60)))}
    args = arguments(
        folder, **{"max_steps": 12, "per_device_train_batch_size": 8, "save_total_limit": None, **options}
    )
    return build(model, args, train_dataset=arms(), dev_dataset=dev, strategy=InfDDS(**settings), callbacks=callbacks)


@pytest.mark.parametrize("rule", [Anchored(), Fair()], ids=["anchored", "fair"])
@pytest.mark.parametrize("batches", ["cluster", "dataset"])
def test_an_informative_cluster_wins_over_a_shuffled_one(
    rule: Rule, batches: Batches, make_static: MakeModel, tmp_path: Path
) -> None:
    settings = {"rule": rule, "inner_steps": 1, "probe": Probe(dev_batch_size=60)}
    trainer = new_trainer(make_static(), tmp_path, batches, settings=settings, max_steps=30, learning_rate=0.02)
    start = dict(zip(trainer.mixture, trainer.initial_weights, strict=True))
    assert totals(start) == pytest.approx({"faq": 0.5, "other": 0.5})
    trainer.train()
    end = trainer.probabilities()
    assert end["faq/0"] > start["faq/0"] > end["faq/1"]
    assert end["faq/0"] > 0.5


def test_mixed_batches_have_the_clusters_of_one_dataset_by_their_weights(
    make_static: MakeModel, tmp_path: Path
) -> None:
    settings = {"update_every": 1_000, "warmup_steps": 1_000}
    trainer = new_trainer(make_static(), tmp_path, "dataset", settings=settings, max_steps=100)
    trainer.train()
    names, drawn = list(trainer.mixture), dict.fromkeys(trainer.mixture, 0)
    for line in read_trace(tmp_path / "trace.jsonl")[1:]:
        assert len({dataset_of(names[place]) for place in line["trained"]}) == 1
        assert sum(line["rows"]) == 8
        for place, rows in zip(line["trained"], line["rows"], strict=True):
            drawn[names[place]] += rows
    assert drawn == dict(zip(names, trainer.sampler.rows_drawn.tolist(), strict=True))
    # Clusters of a dataset are equally large here, and a batch has four rows of each unless rows conflict.
    assert drawn["faq/0"] == pytest.approx(drawn["faq/1"], rel=0.1)
    assert drawn["other/0"] == drawn["other/1"]


@pytest.mark.parametrize(("batches", "workers"), [("cluster", 0), ("dataset", 2)])
def test_a_resumed_run_is_the_run_that_was_not_stopped(
    batches: Batches, workers: int, make_static: MakeModel, tmp_path: Path
) -> None:
    def trainer(folder: str, **options: Any) -> MixtureTrainer:
        options |= {"save_strategy": "steps", "save_steps": 6, "dataloader_num_workers": workers}
        return new_trainer(make_static(), tmp_path / folder, batches, settings={"subset": 2}, **options)

    whole, stopped = trainer("whole"), trainer("stopped", callbacks=[StopAt(9)])
    whole.train()
    stopped.train()
    resumed = trainer("stopped")
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-6"))
    trace = timeless_trace(whole)
    assert len({line["weights"]["faq/0"] for line in trace if "update" in line}) > 1
    assert timeless_trace(resumed) == trace
    assert resumed.mixture_state() == whole.mixture_state()
    assert_equal_tensors(resumed.model.state_dict(), whole.model.state_dict())
