"""From row numbers to a loss.

- Rows are numbered through all datasets in order, and a batch is looked up in the dataset it is of.
- The batch equals sentence-transformers' collator on the same texts, and so does the loss.
- InfoNCE of sentence-transformers is InfoNCE as written on paper, at the paper's temperature.
- With cached gradients it has the same value and the same gradient.
- Teacher scores become the label; the dataset's name is there when a loss per dataset needs it.
- Training takes the number it is given or else as many as every row has, and says so if some have more.
- Nodes tokenise different datasets first.
- A dev row without negatives does not take them from the other rows; a dev set without any is judged without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import Tensor, nn
from torch.nn.functional import normalize

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row, RowSet
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.data.tokens import TokenisedRows
from mixfluence.influence import DevBatch, Metric, Probe
from mixfluence.influence.metrics import info_nce_metric
from mixfluence.policy import UNIFORM
from mixfluence.strategies import InfDDS
from mixfluence.training import batches
from mixfluence.training.batches import (
    MixtureRows,
    collate,
    dev_negatives_per_row,
    negatives_per_row,
    tokenise_all,
)
from mixfluence.training.losses import info_nce
from tests.conftest import row_set
from tests.training.test_inf_dds import EVERY_STEP, small_run

PROMPTS = Prompts("w190 ", "w191 w192 ")
TEMPERATURE = 0.02
PAIRS = [Row(f"w{i} w{i + 1}", " ".join(f"w{i + j}" for j in range(2 + 3 * i))) for i in range(6)]
TRIPLES = [Row(f"w{i + 50}", f"w{i + 60} w3", [f"w{i + 70} w4 w5", "w8"]) for i in range(7)]


@pytest.fixture
def static(make_static: Callable[[], SentenceTransformer]) -> SentenceTransformer:
    return make_static()


@pytest.fixture(params=["static", "tiny_bert"])
def model(request: pytest.FixtureRequest) -> SentenceTransformer:
    """An encoder in double precision without dropout."""
    return request.getfixturevalue(request.param).double().eval()


def mixture_rows(model: SentenceTransformer, negatives: int = 2) -> MixtureRows:
    tokeniser = Tokeniser(model)
    datasets = {"pairs": row_set(*PAIRS), "triples": row_set(*TRIPLES)}
    tokenised = {name: tokenise(rows, tokeniser, PROMPTS) for name, rows in datasets.items()}
    return MixtureRows(tokenised, {"pairs": 0, "triples": negatives})


def library_batch(model: SentenceTransformer, rows: list[Row]) -> dict[str, Any]:
    """What sentence-transformers makes of these rows."""
    passages = ["positive", *(f"negative_{i + 1}" for i in range(len(rows[0].negatives)))]
    collator = SentenceTransformerDataCollator(
        preprocess_fn=model.preprocess,
        router_mapping={"anchor": "query", **dict.fromkeys(passages, "document")},
        prompts={"anchor": PROMPTS.query, **dict.fromkeys(passages, PROMPTS.document)},
    )
    columns = ["anchor", *passages]
    return dict(collator([dict(zip(columns, (r.anchor, r.positive, *r.negatives), strict=True)) for r in rows]))


def features(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one feature dictionary per text column, as the Trainer passes them to a loss."""
    columns = [name.removesuffix("_input_ids") for name in batch if name.endswith("_input_ids")]
    return [
        {name.removeprefix(f"{column}_"): value for name, value in batch.items() if name.startswith(f"{column}_")}
        for column in columns
    ]


def loss_and_gradient(
    loss: torch.nn.Module, model: SentenceTransformer, batch: dict[str, Any]
) -> tuple[float, Tensor]:
    model.zero_grad()
    value = loss(features(batch), None)
    value.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return value.item(), torch.cat(gradients)


@pytest.mark.parametrize("numbers", [[0, 3, 5], [6, 12, 9, 7], [12]], ids=str)
def test_a_batch_is_what_sentence_transformers_makes_of_the_same_rows(
    model: SentenceTransformer, numbers: list[int]
) -> None:
    rows = mixture_rows(model)
    assert len(rows) == 13
    batch = collate(rows.__getitems__(numbers))
    expected = library_batch(model, [[*PAIRS, *TRIPLES][number] for number in numbers])
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(batch[name], value) if isinstance(value, Tensor) else batch[name] == value
        assert same, name
    assert [column for column in batch if column.endswith("_input_ids")] == [
        column for column in expected if column.endswith("_input_ids")
    ]


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 12]], ids=["pairs", "triples"])
def test_the_loss_is_info_nce_as_written_on_paper(model: SentenceTransformer, numbers: list[int]) -> None:
    chosen = [[*PAIRS, *TRIPLES][number] for number in numbers]
    batch = collate(mixture_rows(model).__getitems__(numbers))
    found, gradient = loss_and_gradient(info_nce(model), model, batch)

    def embed(texts: list[str], prompt: str, task: str) -> Tensor:
        inputs = model.preprocess(texts, prompt=prompt, task=task)
        return normalize(model({**inputs, "task": task})["sentence_embedding"], dim=1)

    queries = embed([row.anchor for row in chosen], PROMPTS.query, "query")
    passages = [row.positive for row in chosen] + [text for row in chosen for text in row.negatives]
    scores = queries @ embed(passages, PROMPTS.document, "document").T / TEMPERATURE
    expected = -torch.log_softmax(scores, dim=1).diagonal().mean()
    assert expected.dtype == torch.float64
    assert found == pytest.approx(expected.item(), rel=1e-5)

    library, library_gradient = loss_and_gradient(info_nce(model), model, library_batch(model, chosen))
    assert found == pytest.approx(library, rel=1e-9)
    assert torch.allclose(gradient, library_gradient, rtol=1e-9)
    assert gradient.abs().max() > 0


def test_cached_gradients_change_neither_value_nor_gradient(tiny_bert: SentenceTransformer) -> None:
    model = tiny_bert.double().eval()
    batch = collate(mixture_rows(model).__getitems__([6, 7, 8, 9, 12]))
    plain, gradient = loss_and_gradient(info_nce(model), model, batch)
    cached, cached_gradient = loss_and_gradient(info_nce(model, mini_batch_size=2), model, batch)
    assert cached == pytest.approx(plain, rel=1e-9)
    # Gradients of up to 13, which sentence-transformers 6.0 keeps in 32 bits in between.
    assert torch.allclose(cached_gradient, gradient, rtol=1e-6, atol=1e-5)


def test_another_temperature_is_another_loss(static: SentenceTransformer) -> None:
    batch = collate(mixture_rows(static).__getitems__([0, 1, 2]))
    losses = {loss_and_gradient(info_nce(static, temperature), static, batch)[0] for temperature in (0.02, 0.05, 1.0)}
    assert len(losses) == 3


@pytest.mark.parametrize("negatives", [0, 1, 4])
def test_as_many_negatives_as_asked_for(static: SentenceTransformer, negatives: int) -> None:
    batch = collate(mixture_rows(static, negatives).__getitems__([6, 8]))
    columns = [name for name in batch if name.endswith("_input_ids")]
    assert len(columns) == 2 + negatives


def test_the_name_of_the_dataset_is_there_when_asked_for(static: SentenceTransformer) -> None:
    rows = mixture_rows(static)
    for number, name in ((0, "pairs"), (5, "pairs"), (6, "triples"), (12, "triples")):
        batch = rows.__getitems__([number])
        assert collate(batch, name_datasets=True)["dataset_name"] == name
        assert "dataset_name" not in collate(batch)
        assert "label" not in collate(batch)


def test_teacher_scores_become_the_label(static: SentenceTransformer) -> None:
    scored = row_set(Row("w1", "w2", ["w3", "w4"], [0.5, 0.25, 0.125]), Row("w5", "w6", ["w7", "w8"], [3, 2, 1]))
    rows = MixtureRows({"scored": tokenise(scored, Tokeniser(static), PROMPTS)}, {"scored": 1})
    batch = collate(rows.__getitems__([1, 0]))
    assert batch["label"].tolist() == [[3, 2], [0.5, 0.25]]
    assert batch["label"].dtype == torch.float32
    assert np.isfinite(batch["label"].numpy()).all()


MakeModel = Callable[[], SentenceTransformer]


def rows(*negatives: int) -> RowSet:
    """One row for each number of negatives."""
    return row_set(
        *(Row(f"w{i}", f"w{i + 20}", [f"w{i + 40 + j}" for j in range(many)]) for i, many in enumerate(negatives))
    )


def tokenised(model: SentenceTransformer) -> dict[str, TokenisedRows]:
    sets = {"even": rows(2, 2, 2), "uneven": rows(3, 0, 1), "none": rows(0, 0)}
    return {name: tokenise(found, Tokeniser(model), Prompts()) for name, found in sets.items()}


def test_training_says_when_a_short_list_decides(make_static: MakeModel, caplog: pytest.LogCaptureFixture) -> None:
    datasets = tokenised(make_static())
    assert negatives_per_row(datasets, 5) == {"even": 5, "uneven": 5, "none": 5}
    assert caplog.messages == []
    assert negatives_per_row(datasets, None) == {"even": 2, "uneven": 0, "none": 0}
    (message,) = caplog.messages
    assert message.startswith("uneven: ")


def test_a_dev_row_without_negatives_does_not_decide_for_all(make_static: MakeModel) -> None:
    datasets = tokenised(make_static())
    for none_in_particular in (None, 0):
        assert dev_negatives_per_row(datasets, none_in_particular) == {"even": 2, "uneven": 3, "none": 0}
    assert dev_negatives_per_row(datasets, 2) == {"even": 2, "uneven": 2, "none": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("hard_negatives", "columns"), [(True, {4}), (False, {1})])
def test_a_run_is_judged_with_them(
    make_static: MakeModel, tmp_path: Path, hard_negatives: bool, columns: set[int]
) -> None:
    seen: set[int] = set()

    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        seen.update(len(piece.columns) - 1 for piece in batch.pieces)
        return info_nce_metric(0.1).values(model, batch)

    probe = Probe(metric=Metric(values, higher_is_better=False, hard_negatives=hard_negatives))
    dev = {"dev": rows(*[3, 0, 1] * 3)}
    small_run(make_static(), tmp_path, InfDDS(init=UNIFORM, **EVERY_STEP, probe=probe), dev_dataset=dev)
    assert seen == columns


def test_nodes_begin_with_different_datasets(static: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    sets = Mixture({name: row_set(Row(name, "w1"), Row("w2", name)) for name in ("w5", "w6", "w7", "w8")})
    opened: list[str] = []

    def record(rows: RowSet, *others: Any) -> TokenisedRows:
        opened.append(rows.rows["anchor"][0])
        return tokenise(rows, *others)

    monkeypatch.setattr(batches, "tokenise", record)
    firsts = []
    for process in range(4):
        opened.clear()
        args = SimpleNamespace(
            process_index=process, world_size=4, local_process_index=process % 2, disable_tqdm=True, prompts=None
        )
        found = tokenise_all(sets, static, cast(Any, args), sets)
        assert list(found) == list(sets)
        assert sorted(opened) == sorted(sets)
        firsts.append(opened[0])
    assert firsts == ["w5", "w5", "w7", "w7"]
