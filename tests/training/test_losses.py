"""The losses of recipes, and settings of single training sets.

- Every loss trains through a recipe. A run that probes without acting on it is, to the last bit, the run that does
  not, and a resumed run is the run that was not stopped; also if training sets differ in their settings.
- A loss, a batch size, a number of hard negatives and prompts of one training set apply to it alone, in probes too.
- InfoNCE and its gradients are those of sentence-transformers to the last bit.
- Scores of a model are divided by the temperature in every loss, the teacher's are not.
- What does not fit the model or the rows is refused before training.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MarginMSELoss, MultipleNegativesRankingLoss
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import TrainerCallback

from mixfluence.build import build_trainer
from mixfluence.data.reading import read_data
from mixfluence.errors import DataError, RecipeError
from mixfluence.experiment import run
from mixfluence.inputs import check_recipe, recipe_values, write_inputs
from mixfluence.losses import LOSSES, FlopsSection, InfoNCELoss, LossSection
from mixfluence.plan import plan_run
from mixfluence.policy import UNIFORM
from mixfluence.recipe import Recipe, SelectionSection
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_run
from mixfluence.strategies import FINAL, InfDDS, Stage, Static, Strategy
from mixfluence.training.losses import (
    TAUGHT,
    LossSettings,
    PackedMultipleNegativesRankingLoss,
    build_loss,
    has_part,
    info_nce,
)
from mixfluence.training.trainer import MixtureMixin
from tests.recipes import small_recipe
from tests.training.runs import arguments, build, pool
from tests.training.test_inf_dds import EVERY_STEP, Frozen
from tests.training.test_inf_dds_resume import assert_equal_tensors

MakeRecipe = Callable[..., Recipe]
DIMS: dict[str, list[Any]] = {"dims": [16, 8], "weights": [1.0, 0.5]}
OWN = {"loss": "margin-mse", "batch_size": 3, "hard_negatives": 2, "query_prompt": "w199 "}


def write_rows(path: Path, first: int, rows: int = 12) -> None:
    """Queries with a positive, two negatives and the scores of a teacher, of words from `first` to `first` + 80."""
    lines = [
        {
            "query": f"w{first + i} w{first + i + 1}",
            "positive": f"w{first + 20 + i}",
            "negatives": [f"w{first + 40 + i}", f"w{first + 60 + i}"],
            "scores": [3.0 + i % 3, 1.0, -float(i % 2)],
        }
        for i in range(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def make_recipe(tmp_path: Path, tiny_bert_folder: Path) -> MakeRecipe:
    """Makes recipes of two training sets, words below w100 and from w100 on."""
    for name, first in {"near": 0, "far": 100}.items():
        write_rows(tmp_path / f"{name}.jsonl", first)

    def make(kind: str = "dense", train: Any = ("near", "far"), **training: Any) -> Recipe:
        return Recipe.model_validate(
            {
                "name": "tiny",
                "model": {"name": str(tiny_bert_folder), "kind": kind},
                "defaults": {"format": "pairs", "path": str(tmp_path / "{name}.jsonl")},
                "train": train if isinstance(train, dict) else list(train),
                "dev": {"target": {"path": str(tmp_path / "near.jsonl")}},
                "training": {"steps": 4, "batch_size": 4, "learning_rate": 0.01, "save_every": 2, **training},
                "output": str(tmp_path / "run"),
            }
        )

    return make


def trainer_of(recipe: Recipe, strategy: Strategy, folder: str = "run", *callbacks: TrainerCallback) -> MixtureMixin:
    recipe = recipe.model_copy(update={"output": recipe.output.parent / folder})
    recipe.output.mkdir(exist_ok=True)
    return build_trainer(
        recipe, Stage(FINAL, recipe.training.steps, lambda _: strategy), read_data(recipe), list(callbacks)
    )


@pytest.fixture
def guide(tmp_path: Path, tiny_bert_folder: Path) -> str:
    """A model of the same tokenizer with other weights."""
    model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(str(tmp_path / "guide"))
    return str(tmp_path / "guide")


CASES: dict[str, dict[str, Any]] = {
    "cached": {"mini_batch_size": 2},
    "half precision": {"precision": "bf16"},
    "recomputed": {"trainer_args": {"gradient_checkpointing": True}},
    "recomputed, cached, half precision": {
        "trainer_args": {"gradient_checkpointing": True},
        "mini_batch_size": 2,
        "precision": "bf16",
    },
    "matryoshka": {"loss": {"matryoshka": DIMS}},
    "matryoshka cached": {"loss": {"matryoshka": DIMS}, "mini_batch_size": 2},
    "matryoshka m3-kd": {"loss": {"name": "m3-kd", "matryoshka": DIMS}},
    "gist": {"loss": {"name": "gist", "margin": 0.1}, "hard_negatives": 1},
    "gist cached": {"loss": {"name": "gist", "matryoshka": DIMS}, "mini_batch_size": 2},
    "margin-mse": {"loss": {"name": "margin-mse", "matryoshka": DIMS}},
    "distill-kl": {"loss": {"name": "distill-kl", "matryoshka": DIMS}},
    "sparse": {"kind": "sparse", "loss": {"flops": {"query": 0.01, "passage": 0.02}}},
    "sparse margin-mse cached": {"kind": "sparse", "loss": "margin-mse", "mini_batch_size": 2},
    "sparse distill-kl": {"kind": "sparse", "loss": "distill-kl"},
    "multi-vector margin-mse": {"kind": "multi-vector", "loss": "margin-mse"},
    "multi-vector distill-kl": {"kind": "multi-vector", "loss": "distill-kl", "mini_batch_size": 2},
    "reranker margin-mse": {"kind": "reranker", "loss": "margin-mse"},
    "settings of one dataset": {"train": {"near": OWN, "far": None}},
    "sparse, settings of one dataset": {"kind": "sparse", "train": {"near": OWN, "far": None}},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_probes_change_nothing_and_a_resumed_run_is_the_run(make_recipe: MakeRecipe, guide: str, case: str) -> None:
    options = dict(CASES[case])
    if isinstance(options.get("loss"), dict) and options["loss"].get("name") == "gist":
        options["loss"] = {**options["loss"], "guide": guide}
    recipe = make_recipe(**options)
    strategy = {**EVERY_STEP, "inner_steps": 1}
    # One after the other: a trainer sets the random state when it is built.
    probed = trainer_of(recipe, Frozen(**strategy), "probed")
    start = {name: value.clone() for name, value in probed.model.state_dict().items()}
    probed.train()
    plain = trainer_of(recipe, Static(init=UNIFORM), "plain")
    plain.train()
    assert probed.probing is not None
    assert any(value != 0 for value in probed.probing.influence.values())
    assert any(not torch.equal(value, start[name]) for name, value in plain.model.state_dict().items())
    assert_equal_tensors(probed.model.state_dict(), plain.model.state_dict())
    assert_equal_tensors(probed.optimizer.state_dict()["state"], plain.optimizer.state_dict()["state"])

    resumed = trainer_of(recipe, Frozen(**strategy), "resumed")
    place = Path(resumed.args.output_dir) / "checkpoint-2"
    shutil.copytree(Path(probed.args.output_dir) / "checkpoint-2", place)
    resumed.train(resume_from_checkpoint=str(place))
    assert resumed.mixture_state() == probed.mixture_state()
    assert_equal_tensors(resumed.model.state_dict(), probed.model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "reranker"])
def test_settings_of_a_dataset_apply_to_it_alone(make_recipe: MakeRecipe, kind: str) -> None:
    recipe = make_recipe(kind, {"near": OWN, "far": None}, steps=8, hard_negatives=1, save_every=None)
    trainer = trainer_of(recipe, Frozen(**EVERY_STEP, inner_steps=1))
    assert isinstance(trainer.loss, dict)
    words = {number: word for word, number in trainer.model.tokenizer.get_vocab().items()}
    seen: dict[str, list[tuple[int, int, bool, bool]]] = {"near": [], "far": []}

    def watch(name: str) -> Callable[..., None]:
        def look(_: nn.Module, inputs: Any) -> None:
            columns = inputs[0]
            if kind == "reranker":
                texts = [text.split() for text in columns[0]]
            else:
                texts = [[words[number] for number in row] for row in columns[0]["input_ids"].tolist()]
            prompted = all("w199" in text for text in texts)
            own = {int(word[1:]) < 100 for text in texts for word in text if word[0] == "w" and word != "w199"}
            assert len(own) == 1
            seen[name].append((len(texts), len(columns), prompted, own.pop()))

        return look

    for name, loss in trainer.loss.items():
        loss.register_forward_pre_hook(watch(name))
    trainer.train()
    # Rows, columns, whether they have the prompt, and whether they are of `near`; in training and in probes.
    assert set(seen["near"]) == {(3, 4, True, True)}
    assert set(seen["far"]) == {(4, 3, False, False)}
    assert len(seen["near"]) + len(seen["far"]) == 8 + 7 * 2
    assert has_part(trainer.loss["near"], *TAUGHT)
    assert not has_part(trainer.loss["far"], *TAUGHT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_run_whose_datasets_differ_is_planned_selected_and_extended(make_recipe: MakeRecipe, kind: str) -> None:
    selection = SelectionSection(every=2)
    recipe = make_recipe(kind, {"near": OWN, "far": None}, save_every=None)
    recipe = recipe.model_copy(update={"selection": selection, "strategy": InfDDS(**EVERY_STEP, init=UNIFORM)})
    planned = {dataset.name: dataset.epochs for dataset in plan_run(recipe).datasets}
    assert planned == pytest.approx({"near": 2 * 3 / 12, "far": 2 * 4 / 12})
    run(recipe)
    read = load_recipe(recipe.output / "recipe.yaml")
    assert read.train == recipe.train
    batch_sizes = {name: facts["batch_size"] for name, facts in read_run(recipe.output).record["datasets"].items()}
    assert batch_sizes == {"near": 3, "far": 4}
    longer = recipe.training.model_copy(update={"steps": 6})
    run(recipe.model_copy(update={"training": longer}), resume=True)
    assert read_run(recipe.output).record["steps"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("loss", [{"matryoshka": DIMS}, "margin-mse", {"name": "distill-kl", "matryoshka": DIMS}])
def test_packed_sequences_change_a_loss_by_rounding_only(make_recipe: MakeRecipe, loss: Any) -> None:
    found = []
    for packing in (False, True):
        trainer = trainer_of(make_recipe(loss=loss, packing=packing, steps=2, save_every=None), Static())
        batch = next(iter(trainer.get_train_dataloader()))
        assert ("anchor_cu_seq_lens_q" in batch) is packing
        found.append(trainer.compute_loss(trainer.model.eval(), batch).detach())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_settings_in_python_are_given_by_name(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_sizes": {"near": 3}, "num_negatives": {"far": 0}}
    trainer = build(tiny_bert, arguments(tmp_path), **options, strategy="static")
    sizes = {
        len(batch["anchor_input_ids"]): "negative_1_input_ids" in batch for batch in trainer.get_train_dataloader()
    }
    assert sizes == {3: False, 4: False}
    with pytest.raises(DataError, match=r"batch_sizes.*'near'"):
        build(tiny_bert, arguments(tmp_path), batch_sizes={"nera": 3})
    assert "batch sizes" in trainer.identity()["settings"]
    assert trainer.identity() != build(tiny_bert, arguments(tmp_path), strategy="static").identity()


def test_rows_of_a_dataset_may_follow_the_number_of_processes(
    make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recipe(own: int, general: int) -> Recipe:
        return make_recipe(train={"near": {"batch_size": own}, "far": None}, batch_size=general)

    write_inputs(tmp_path, {"recipe": recipe_values(recipe(6, 4))})
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert check_recipe(tmp_path, recipe(3, 2)) == 4
    with pytest.raises(RecipeError, match=r"train\.near\.batch_size x processes was 6 and is 12"):
        check_recipe(tmp_path, recipe(6, 2))


# What losses compute.


def embeddings(model: SentenceTransformer, columns: int) -> tuple[list[dict[str, Any]], list[Tensor]]:
    features = [model.preprocess([f"w{20 * column + row} w{row}" for row in range(4)]) for column in range(columns)]
    with torch.no_grad():
        return features, [F.normalize(model(dict(column))["sentence_embedding"]) for column in features]


@pytest.mark.parametrize("name", ["margin-mse", "distill-kl"])
def test_the_temperature_divides_the_scores_of_the_model_alone(tiny_bert: SentenceTransformer, name: str) -> None:
    model = tiny_bert.eval()
    features, (query, *passages) = embeddings(model, 4)
    teacher = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    loss = build_loss(section(name=name), model, LossSettings(0.05))
    # Some versions of the library divide the teacher's scores by an attribute of this name.
    assert getattr(loss, "temperature", 1.0) == 1.0
    with torch.no_grad():
        found = loss(features, teacher)
    scores = torch.stack([(query * passage).sum(1) for passage in passages], dim=1) / 0.05
    if name == "margin-mse":
        expected = F.mse_loss(scores[:, :1] - scores[:, 1:], teacher[:, :1] - teacher[:, 1:])
    else:
        expected = F.kl_div(scores.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"directions": ("query_to_doc", "doc_to_doc")}], ids=["plain", "directions"])
def test_info_nce_is_that_of_the_library_to_the_last_bit(options: dict[str, Any]) -> None:
    columns = [torch.randn(9, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    found = []
    for kind in MultipleNegativesRankingLoss, PackedMultipleNegativesRankingLoss:
        own = [column.clone().requires_grad_() for column in columns]
        loss = kind(None, scale=50.0, **options).compute_loss_from_embeddings(own, None)
        found.append([loss.detach(), *torch.autograd.grad(loss, own)])
    for theirs, ours in zip(*found, strict=True):
        assert torch.equal(theirs, ours)


def test_a_matryoshka_loss_is_the_weighted_sum_over_dimensions(tiny_bert: SentenceTransformer) -> None:
    model = tiny_bert.eval()
    features, columns = embeddings(model, 3)
    with torch.no_grad():
        found = build_loss(section(matryoshka=DIMS), model, LossSettings(0.05))([dict(f) for f in features], None)
        plain: Any = info_nce(model, 0.05)
        parts = [plain.compute_loss_from_embeddings([c[:, :dim] for c in columns], None) for dim in DIMS["dims"]]
    torch.testing.assert_close(found, parts[0] + 0.5 * parts[1], rtol=1e-4, atol=1e-5)


def section(**keys: Any) -> LossSection:
    return LOSSES[keys.get("name", "info-nce")].model_validate({"name": "info-nce", **keys})


# What is refused.


@pytest.mark.parametrize(
    ("sections", "place"),
    [
        ({"training": {"loss": "gist"}}, "training.loss"),
        ({"training": {"loss": "wrong"}}, "margin-mse"),
        (
            {"model": {"name": "m", "kind": "sparse"}, "training": {"loss": "m3-kd"}},
            "info-nce, margin-mse, distill-kl",
        ),
        ({"model": {"name": "m", "kind": "reranker"}, "train": {"a": {"loss": "distill-kl"}}}, r"train\.a\.loss"),
        ({"training": {"loss": {"flops": {"query": 0.1}}}}, "training.loss: flops"),
        (
            {"model": {"name": "m", "kind": "sparse"}, "training": {"loss": {"matryoshka": {"dims": [8]}}}},
            "matryoshka",
        ),
        ({"training": {"loss": {"matryoshka": {"dims": [8, 4], "weights": [1.0]}}}}, "weights"),
        ({"training": {"loss": "margin-mse", "mini_batch_size": 2}}, "mini_batch_size"),
        ({"dev": {"a": {"batch_size": 2}}}, r"dev\.a\.batch_size"),
        ({"defaults": {"format": "pairs", "path": "a", "loss": "m3-kd"}}, r"training\.loss"),
        ({"train": {"a.b": None, "c": {"loss": "m3-kd"}}}, r"train\.a\.b"),
        ({"train": {"a": {"batch_size": 4}, "b": None}, "strategy": "crisp"}, "batch_size"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_recipe_is_read(sections: dict[str, Any], place: str) -> None:
    training = {"steps": 10, "batch_size": 8} | sections.pop("training", {})
    with pytest.raises(ValueError, match=place):
        small_recipe(training=training, **sections)


@pytest.mark.parametrize(
    ("options", "error", "place"),
    [
        ({"loss": {"matryoshka": {"dims": [4096]}}}, RecipeError, "matryoshka"),
        ({"loss": {"name": "gist"}}, DataError, "near.*hard_negatives"),
        ({"loss": {"name": "gist"}, "hard_negatives": 1, "packing": True}, RecipeError, "packing"),
        ({"loss": "margin-mse", "hard_negatives": 0}, DataError, "near"),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_the_first_step(
    make_recipe: MakeRecipe, guide: str, options: dict[str, Any], error: type[Exception], place: str
) -> None:
    if options["loss"] == {"name": "gist"}:
        options = {**options, "loss": {"name": "gist", "guide": guide}}
    with pytest.raises(error, match=place):
        trainer_of(make_recipe(**options), Static()).get_train_dataloader()


def test_rows_without_scores_are_refused_by_a_loss_that_needs_them(
    tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="far"):
        build(
            tiny_bert, arguments(tmp_path), train_dataset={"far": pool()["far"]}, loss=MarginMSELoss(tiny_bert)
        ).train()


def test_defaults_of_the_regularisation_are_those_of_the_library() -> None:
    assert (FlopsSection().query, FlopsSection().passage) == (5e-5, 3e-5)
    assert InfoNCELoss().flops is None
