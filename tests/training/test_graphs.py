"""Encoders on filled batches, compiled or by graphs; the work of a graph is repeated on a CPU instead of replayed.

- A batch is filled up by texts of at least one token and no more than an eighth of it, to one of few sizes.
- Embeddings and gradients stay what they were: compiled, where the whole transformer is traced as one for all sizes at
  once, and by graphs, whose first batch of a size runs without one. Padded texts run as before.
- A run by graphs, with dropout, accumulated gradients and probes, is bitwise the run on filled batches without graphs,
  and so is a resumed one, which captures its graphs at other steps.
- A pass that waits for its backward pass is not overwritten by another, and there are few graphs.
- Batches of much arithmetic are not filled up.
- An encoder that cannot be captured runs without graphs and is the same as before.
- After training the model has its own code again. Where texts are padded, compiling is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from mixfluence import UNIFORM, InfDDS, Static
from mixfluence.errors import RecipeError
from mixfluence.influence import embed_columns
from mixfluence.training import graphs
from mixfluence.training.graphs import FILLERS, compile_encoder, fill_up, filled_size, graph_encoder
from mixfluence.training.packing import Packing, preserve_forward, transformers_in
from tests.training.runs import arguments, build, pool
from tests.training.test_batches import mixture_rows
from tests.training.test_packing import columns_of, learn, without_dropout

pytestmark = pytest.mark.slow

# Traces as any compiler must, refuses to give up half-way, and needs no C++.
TRACED = partial(torch.compile, dynamic=True, backend="eager", fullgraph=True)
Work = Callable[[], None]


class Repeating:
    """Repeats work where a GPU would replay it, and counts what was captured and repeated."""

    def __init__(self) -> None:
        self.captured = self.repeated = 0

    def __call__(self) -> Callable[[Work, Work], tuple[Work, Work]]:
        return self.capture

    def capture(self, forward: Work, backward: Work) -> tuple[Work, Work]:
        self.captured += 1

        def repeat() -> None:
            self.repeated += 1
            forward()

        forward()  # a GPU computes both passes for nothing while it captures them
        backward()
        return repeat, backward


@given(st.integers(1, 1_000_000))
def test_a_batch_is_filled_up_by_little(tokens: int) -> None:
    size = filled_size(tokens)
    assert tokens + FILLERS <= size
    assert size <= (tokens + FILLERS) * (1 + 1 / 8)
    assert filled_size(size - FILLERS) == size


def test_there_are_few_sizes() -> None:
    assert len({filled_size(tokens) for tokens in range(2_000, 64_000)}) < 50


def test_fillers_are_texts_behind_the_others() -> None:
    bounds = torch.tensor([0, 300, 1000], dtype=torch.int32)
    ids = torch.arange(1000)[None]
    inputs = {"input_ids": ids, "position_ids": ids, "cu_seq_lens_q": bounds, "max_length_q": 700, "task": "query"}
    filled = fill_up(inputs)
    assert filled["input_ids"].shape == filled["position_ids"].shape == (1, filled_size(1000))
    assert torch.equal(filled["input_ids"][:, :1000], ids)
    lengths = filled["cu_seq_lens_q"].diff()
    assert lengths[:2].tolist() == [300, 700]
    assert len(lengths) == 2 + FILLERS
    assert lengths.min() >= 1
    assert lengths.max() <= filled["max_length_q"] == 704
    assert filled["cu_seq_lens_q"][-1] == filled["input_ids"].shape[1]
    assert inputs["cu_seq_lens_q"] is bounds
    assert filled["task"] == "query"


@pytest.mark.parametrize("way", ["compiled", "graphs"])
def test_embeddings_and_gradients_stay_what_they_were(way: str, tiny_bert: SentenceTransformer) -> None:
    model = without_dropout(tiny_bert.double()).train()
    rows = mixture_rows(model)
    packed, padded = columns_of(rows, learn(model, rows)), columns_of(rows)
    repeating = Repeating()

    def results() -> list[torch.Tensor]:
        found = []
        for columns in packed, packed[:2], padded, packed, packed[:2]:
            model.zero_grad()
            embeddings = torch.cat(embed_columns(model, columns))
            torch.autograd.backward(embeddings.square().sum())
            gradients = [p.grad.ravel() for p in model.parameters() if p.grad is not None]
            found += [embeddings.detach(), torch.cat(gradients)]
        return found

    plain = results()
    if way == "compiled":
        compile_encoder(model, TRACED)
    else:
        graph_encoder(model, repeating)
    for before, after in zip(plain, results(), strict=True):
        torch.testing.assert_close(after, before)
    assert repeating.repeated == (2 if way == "graphs" else 0)


@pytest.fixture
def train_by(
    tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[torch.Tensor, Path]]:
    """Trains a new model on filled batches, by graphs if given; returns its weights and the folder."""

    def train(capture: Repeating | None, *, probing: bool = False, resume: Path | None = None, **options: Any) -> Any:
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        parts = transformers_in(model)

        def learn_and_graph(*_: object) -> Packing | None:
            packing = learn(model, mixture_rows(model))
            graph_encoder(model, capture)  # on a CPU, the trainer would leave packed batches as they are
            return packing

        monkeypatch.setattr("mixfluence.training.trainer.learn_packing", learn_and_graph)
        folder = resume.parent if resume else tmp_path / str(len(list(tmp_path.iterdir())))
        strategy = InfDDS(init=UNIFORM, warmup_steps=2, update_every=2) if probing else Static(init=UNIFORM)
        args = arguments(folder, **{"max_steps": 8, **options})
        trainer = build(model, args, packing=True, strategy=strategy, dev_dataset=pool() if probing else None)
        trainer.train(resume_from_checkpoint=resume)
        assert [part.forward.__func__ for part in parts] == [type(part).forward for part in parts]
        return torch.cat([parameter.detach().ravel() for parameter in model.parameters()]), folder

    return train


@pytest.mark.parametrize(("probing", "bf16"), [(False, True), (True, False)])
def test_a_run_by_graphs_is_a_run_without_them(
    probing: bool, bf16: bool, train_by: Callable[..., tuple[torch.Tensor, Path]]
) -> None:
    repeating = Repeating()
    options = {"probing": probing, "bf16": bf16, "gradient_accumulation_steps": 2}
    plain, _ = train_by(None, **options)
    by_graphs, _ = train_by(repeating, **options)
    assert repeating.repeated > 2 * repeating.captured > 0
    assert torch.equal(by_graphs, plain)


def test_a_resumed_run_captures_later_and_is_the_same(train_by: Callable[..., tuple[torch.Tensor, Path]]) -> None:
    whole, resumed = Repeating(), Repeating()
    uninterrupted, folder = train_by(whole, save_strategy="steps", save_steps=5)
    again, _ = train_by(resumed, save_strategy="steps", save_steps=5, resume=folder / "checkpoint-5")
    assert 0 < resumed.repeated < whole.repeated - 1
    assert torch.equal(again, uninterrupted)


def test_a_pass_that_waits_is_not_overwritten(tiny_bert: SentenceTransformer) -> None:
    model = tiny_bert.train()
    rows = mixture_rows(model)
    columns = columns_of(rows, learn(model, rows))
    repeating = Repeating()
    graph_encoder(model, repeating)
    for _ in range(2):
        torch.autograd.backward(torch.cat(embed_columns(model, columns)).sum())
    assert (repeating.captured, repeating.repeated) == (1, 1)
    first = torch.cat(embed_columns(model, columns))
    second = torch.cat(embed_columns(model, columns))
    assert repeating.repeated == 2
    torch.autograd.backward(first.sum() + second.sum())
    torch.cat(embed_columns(model, columns))  # never has a backward pass
    torch.cat(embed_columns(model, columns))
    assert repeating.repeated == 4
    with torch.no_grad():
        embed_columns(model, columns)
    embed_columns(model.eval(), columns)
    assert repeating.repeated == 4


def test_there_are_few_graphs(tiny_bert: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 1)
    model = tiny_bert.train()
    rows = mixture_rows(model)
    columns = columns_of(rows, learn(model, rows))
    repeating = Repeating()
    graph_encoder(model, repeating)
    for batch in [columns, columns[:1]] * 3:
        torch.autograd.backward(torch.cat(embed_columns(model, batch)).sum())
    assert (repeating.captured, repeating.repeated) == (1, 2)


def test_large_batches_are_left_as_they_are(
    train_by: Callable[..., tuple[torch.Tensor, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LARGEST_PRODUCT", 1)
    monkeypatch.setattr(graphs, "fill_up", None)
    repeating = Repeating()
    train_by(repeating)
    assert repeating.captured == 0


@pytest.mark.parametrize("obstacle", ["hooks", "checkpointing", "capture"])
def test_what_cannot_be_captured_runs_without_graphs(obstacle: str, tiny_bert: SentenceTransformer) -> None:
    model = tiny_bert.train()
    rows = mixture_rows(model)
    columns = columns_of(rows, learn(model, rows))
    repeating = Repeating()
    if obstacle == "hooks":
        model[0].auto_model.encoder.register_forward_hook(lambda *_: None)
    if obstacle == "checkpointing":
        model[0].auto_model.gradient_checkpointing_enable()

    def refuse(forward: Work, backward: Work) -> tuple[Work, Work]:
        forward()
        raise RuntimeError("called a synchronizing CUDA operation")

    states = []
    for capture in None, (lambda: refuse) if obstacle == "capture" else repeating:
        with preserve_forward(model):
            graph_encoder(model, capture)
            torch.manual_seed(0)
            model.zero_grad()
            for _ in range(3):
                torch.autograd.backward(torch.cat(embed_columns(model, columns)).sum())
        states.append(torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None]))
    assert repeating.captured == 0
    assert torch.equal(*states)


def test_after_training_the_model_has_its_own_code(
    tiny_bert: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tiny_bert[0].auto_model
    own, attention = inner.forward, inner.config._attn_implementation
    seen: list[SentenceTransformer] = []

    def compile_traced(model: SentenceTransformer) -> None:
        seen.append(model)
        compile_encoder(model, TRACED)

    monkeypatch.setattr("mixfluence.training.trainer.compile_encoder", compile_traced)
    build(tiny_bert, arguments(tmp_path), packing=True, compiled=True).train()
    assert seen == [tiny_bert]
    assert inner.forward == own
    assert inner.config._attn_implementation == attention


def test_compiling_padded_texts_is_refused(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^compiled: "):
        build(tiny_bert, arguments(tmp_path), compiled=True).train()
