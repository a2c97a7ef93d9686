"""Misuse of `MixtureTrainer` is answered when it is built, with the argument's name and what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import losses

from mixfluence.data.retrieval import retrieval_from_texts
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import Probe, Reptile
from mixfluence.strategies import STRATEGIES, Aioli, InfDDS, MultiDDS, Static, Strategy, TargetOnly
from mixfluence.training.arguments import check_engine
from mixfluence.training.losses import PackedMultipleNegativesRankingLoss, info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import arguments, pool


@pytest.fixture
def static(make_static: Callable[[], SentenceTransformer]) -> SentenceTransformer:
    return make_static()


NEAR = pool()["near"]


@pytest.mark.parametrize("argument", ["train_dataset", "dev_dataset", "test_dataset"])
@pytest.mark.parametrize(
    ("datasets", "instead"),
    [
        (NEAR, "={'name': dataset}"),
        ([NEAR], "={'name': dataset}"),
        (NEAR.to_iterable_dataset(), "={'name': dataset}"),
        ({"near": NEAR.to_iterable_dataset()}, "Dataset.from_generator"),
        ({"near": NEAR.to_list()}, "Dataset.from_list"),
    ],
)
def test_datasets_have_names_and_are_no_streams(
    argument: str, datasets: Any, instead: str, static: SentenceTransformer, tmp_path: Path
) -> None:
    options = {"train_dataset": pool(), argument: datasets}
    with pytest.raises(DataError, match=rf"^{argument}") as refused:
        MixtureTrainer(model=static, args=arguments(tmp_path), **options)
    assert instead in str(refused.value)


@pytest.mark.parametrize("datasets", [None, {}])
def test_a_mixture_needs_a_dataset(datasets: Any, static: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^train_dataset: .* found none"):
        MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=datasets)


ODD = Dataset.from_dict({"title": ["w1", "w2"], "body": ["w3", "w4"], "more": ["w5", "w6"]})
ODD_COLUMNS = {"odd": {"anchor": "title", "positive": "body"}}


def test_columns_apply_to_training_dev_and_test_sets(static: SentenceTransformer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_dataset": pool(), "dev_dataset": {"odd": ODD}, "test_dataset": {"odd": ODD}}
    trainer = MixtureTrainer(model=static, args=arguments(tmp_path), columns=ODD_COLUMNS, **options)
    assert trainer.dev is not None
    assert trainer.dev["odd"].rows["anchor"] == ["w1", "w2"]
    assert trainer.test["odd"].queries == ["w1", "w2"]
    assert trainer.test["odd"].docs == ["w3", "w4"]


@pytest.mark.parametrize("datasets", [{}, {"test_dataset": {"odd": retrieval_from_texts("odd", {"w1": ["w2"]}, [])}}])
def test_columns_of_no_dataset_are_refused(
    datasets: dict[str, Any], static: SentenceTransformer, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"train_dataset": pool(), "columns": ODD_COLUMNS, **datasets}
    with pytest.raises(DataError, match=r"^columns: .*'odd'"):
        MixtureTrainer(model=static, args=arguments(tmp_path), **options)


@pytest.mark.parametrize(
    ("argument", "place"),
    [("train_dataset", "odd: "), ("dev_dataset", "dev set odd: "), ("test_dataset", "test set odd: ")],
)
@pytest.mark.parametrize("rows", [ODD, ODD.select([])])
def test_bad_rows_are_said_to_be_of_training_dev_or_test(
    argument: str, place: str, rows: Dataset, static: SentenceTransformer, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"train_dataset": pool(), argument: {"odd": rows}}
    with pytest.raises(DataError, match=f"^{place}") as refused:
        MixtureTrainer(model=static, args=arguments(tmp_path), **options)
    assert not len(rows) or 'columns={"odd": {"anchor": "title"' in str(refused.value)


def test_only_dense_encoders_are_trained(tiny_bert_folder: Path, tmp_path: Path) -> None:
    model: Any = CrossEncoder(str(tiny_bert_folder), num_labels=1, device="cpu")
    for wrong in (model, str(tiny_bert_folder)):
        with pytest.raises(RecipeError, match=r"^model: expected a SentenceTransformer"):
            MixtureTrainer(model=wrong, args=arguments(tmp_path), train_dataset=pool())


@pytest.mark.parametrize(
    ("given", "kind"),
    [(None, Static), ("static", Static), ("inf-dds", InfDDS), (InfDDS, InfDDS), (Static(max_epochs=2.0), Static)],
)
def test_a_strategy_may_be_a_name_or_a_class(
    given: Any, kind: type[Any], static: SentenceTransformer, tmp_path: Path
) -> None:
    options = {"train_dataset": DatasetDict(pool()), "dev_dataset": pool()}
    trainer = MixtureTrainer(model=static, args=arguments(tmp_path), strategy=given, **options)
    assert type(trainer.strategy) is kind


@pytest.mark.parametrize(("given", "named"), [("infdds", "inf-dds"), (0.5, "'inf-dds'"), (Dataset, "'inf-dds'")])
def test_what_is_no_strategy_is_refused(given: Any, named: str, static: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"^strategy: .*{named}"):
        MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool(), strategy=given)


def test_target_only_draws_the_training_sets_named_like_a_dev_set(static: SentenceTransformer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_dataset": pool(), "dev_dataset": {"far": pool()["far"], "other": NEAR}}
    trainer = MixtureTrainer(model=static, args=arguments(tmp_path), strategy="target-only", **options)
    assert trainer.initial_weights == [0.0, 1.0]
    chosen = TargetOnly(targets=["near"])
    trainer = MixtureTrainer(model=static, args=arguments(tmp_path), strategy=chosen, **options)
    assert trainer.strategy is chosen
    assert trainer.initial_weights == [1.0, 0.0]


@pytest.mark.parametrize("strategy", ["merge", "regmix", "crisp", "chameleon"])
def test_methods_of_several_runs_are_for_recipes(strategy: str, static: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=STRATEGIES[strategy].__name__) as refused:
        MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool(), strategy=strategy)
    assert "recipe" in str(refused.value)


@pytest.mark.parametrize("strategy", ["doremi", "tdro"])
def test_methods_that_weigh_losses_need_losses_that_can_be_weighed(
    strategy: str, static: SentenceTransformer, tmp_path: Path
) -> None:
    for loss in (None, info_nce(static), {name: info_nce(static) for name in pool()}):
        with pytest.raises(RecipeError, match=r"^loss: .*group_losses"):
            MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool(), strategy=strategy, loss=loss)


class Fixed(Strategy):
    """A sampler of a user, whose weights nobody has checked."""

    given: Any

    def start(self, sizes: Mapping[str, int]) -> None:
        self._given = self.given

    def weights(self, progress: float = 0.0) -> Any:
        return self._given


@pytest.mark.parametrize(
    "given",
    [
        [0.5, math.nan],
        [math.inf, 1.0],
        [-0.5, 1.5],
        [0.0, 0.0],
        [1.0],
        [0.5, 0.25, 0.25],
        [[0.5, 0.5]],
        [[0.5], [0.25, 0.25]],
        {"near": 1.0, "far": 0.0},
        None,
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(given: Any, static: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^Fixed\.weights: .*2 numbers"):
        MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool(), strategy=Fixed(given=given))


def test_weights_become_probabilities(static: SentenceTransformer, tmp_path: Path) -> None:
    strategy = Fixed(given=[3, 1])
    trainer = MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool(), strategy=strategy)
    trainer.get_train_dataloader()
    assert trainer.probabilities() == {"near": 0.75, "far": 0.25}
    strategy._given = np.array([0.5, np.nan])
    with pytest.raises(RecipeError, match=r"^Fixed\.weights: "):
        next(iter(trainer.sampler))


def test_the_loss_is_info_nce_by_default(static: SentenceTransformer, tmp_path: Path) -> None:
    trainer = MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool())
    assert isinstance(trainer.loss, PackedMultipleNegativesRankingLoss)
    assert trainer.loss.scale == pytest.approx(50)


@pytest.mark.parametrize(
    ("loss", "place"),
    [
        (lambda model: "info-nce", "loss"),
        (lambda model: {"near": info_nce(model)}, "loss: .*far"),
        (lambda model: {}, "loss: .*near, far"),
        (lambda model: {"near": info_nce(model), "far": None}, r"loss\['far'\]"),
        (lambda model: info_nce(deepcopy(model)), "loss"),
        (lambda model: {"near": info_nce(model), "far": info_nce(deepcopy(model))}, r"loss\['far'\]"),
        (losses.CosineSimilarityLoss, "loss: .*label"),
        (lambda model: {"near": losses.AnglELoss(model), "far": info_nce(model)}, r"loss\['near'\]: .*label"),
    ],
)
def test_a_loss_that_cannot_train_is_refused(
    loss: Callable[[Any], Any], place: str, static: SentenceTransformer, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=f"^{place}"):
        MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool(), loss=loss(static))


def test_a_triplet_loss_needs_triplets(static: SentenceTransformer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_dataset": pool(), "loss": losses.TripletLoss(static)}
    trainer = MixtureTrainer(model=static, args=arguments(tmp_path), **options)
    with pytest.raises(DataError, match=r"^near: "):
        trainer.get_train_dataloader()
    MixtureTrainer(model=static, args=arguments(tmp_path), num_negatives=1, **options).get_train_dataloader()


def test_a_dev_set_without_a_loss_is_warned_about_if_losses_are_logged(
    static: SentenceTransformer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = {name: info_nce(static) for name in pool()}
    options: dict[str, Any] = {"train_dataset": pool(), "dev_dataset": {"near": NEAR, "other": NEAR}, "loss": own}
    MixtureTrainer(model=static, args=arguments(tmp_path), **options)
    assert "dev set" not in caplog.text
    args = arguments(tmp_path, eval_strategy="steps", eval_steps=3)
    trainer = MixtureTrainer(model=static, args=args, **options)
    assert set(trainer.eval_dataset) == {"near"}
    assert caplog.text.count("dev set other: no loss") == caplog.text.count("dev set ") == 1


def test_an_eval_dataset_is_no_dev_dataset(static: SentenceTransformer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_dataset": pool(), "strategy": "inf-dds"}
    for given, hint in (None, False), (pool(), True):
        with pytest.raises(DataError, match=r"^dev_dataset: ") as refused:
            MixtureTrainer(model=static, args=arguments(tmp_path), **options, eval_dataset=given)
        assert ("eval_dataset" in str(refused.value)) == hint


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"batch_sizes": 4}, "batch_sizes"),
        ({"batch_sizes": {"near": 0}}, r"batch_sizes\['near'\]"),
        ({"batch_sizes": {"near": 2, "far": 2.5}}, r"batch_sizes\['far'\]"),
        ({"batch_sizes": {"near": "4"}}, r"batch_sizes\['near'\]"),
        ({"num_negatives": -1}, "num_negatives"),
        ({"num_negatives": "1"}, "num_negatives"),
        ({"num_negatives": {"far": True}}, r"num_negatives\['far'\]"),
    ],
)
def test_counts_are_whole_numbers(
    options: dict[str, Any], place: str, static: SentenceTransformer, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=f"^{place}.*whole number"):
        MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=pool(), **options)


def test_a_dataset_too_small_to_compare_anything_is_warned_about(
    static: SentenceTransformer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    datasets: dict[str, Any] = {
        "one": NEAR.select([0]),
        "two": NEAR.select([0, 1]),
        "triple": pool()["far"].select([0]),
    }
    MixtureTrainer(model=static, args=arguments(tmp_path), train_dataset=datasets).get_train_dataloader()
    warned = [record.getMessage() for record in caplog.records if "nothing to compare" in record.getMessage()]
    assert [message.partition(":")[0] for message in warned] == ["one"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("batch_sampler", "no_duplicates"),
        ("multi_dataset_batch_sampler", "round_robin"),
        ("neftune_noise_alpha", 5.0),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    argument: str, value: str, static: SentenceTransformer, tmp_path: Path
) -> None:
    args = arguments(tmp_path, **{argument: value})
    with pytest.raises(RecipeError, match=f"^{argument}: not supported"):
        MixtureTrainer(model=static, args=args, train_dataset=pool())


TOGETHER = Probe(processes="together")


def sharded(**changes: Any) -> Any:
    """Return what `check_engine` looks at of a trainer whose model is sharded."""
    accelerator = SimpleNamespace(mixed_precision="bf16", is_fsdp2=changes.pop("version", 2) == 2)
    plain: dict[str, Any] = {"strategy": Static(), "packing": None, "compiled": False, "evaluator": None, "test": {}}
    given = plain | {"is_deepspeed_enabled": False, "is_fsdp_enabled": True, "args": SimpleNamespace(fsdp=True)}
    return SimpleNamespace(accelerator=accelerator, model=SimpleNamespace(), **given | changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 1}, "fsdp_config.version: 2"),
        ({"packing": True}, "packing"),
        ({"compiled": True}, "compiled"),
        ({"evaluator": object()}, "evaluator"),
        ({"test": {"dev": object()}}, "test_dataset"),
        ({"strategy": MultiDDS()}, "gradient alignment"),
        ({"strategy": InfDDS(probe=TOGETHER, reptile=Reptile())}, "reptile"),
        ({"strategy": InfDDS()}, "processes: divided"),
        ({"strategy": Aioli()}, "processes: divided"),
        ({"is_fsdp_enabled": False}, "GPUs only"),
    ],
)
def test_what_does_not_work_with_a_sharded_model_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(RecipeError, match=r"^fsdp: ") as refused:
        check_engine(sharded(**changes))
    assert named in str(refused.value)


@pytest.mark.parametrize("strategy", [Static(), InfDDS(probe=TOGETHER)])
def test_a_sharded_model_is_not_packed(strategy: Any) -> None:
    trainer = sharded(strategy=strategy)
    check_engine(trainer)
    assert trainer.packing is False
