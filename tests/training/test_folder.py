"""The folder of a training script is a run folder.

- `status`, `weights` and `report` read it while it trains and afterwards.
- With test sets `compare` reads it, beside rows without training, and training rows that ask a test query are dropped.
- A sample of each dataset is printed at the start and the mixture at the end, unless progress bars are off.
- A strategy that the command line does not know leaves a warning, and training goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss
from transformers import TrainerCallback
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.data.mixture import Mixture
from mixfluence.data.retrieval import retrieval_from_rows
from mixfluence.evaluation.retrieval import evaluate
from mixfluence.influence import Probe
from mixfluence.policy import PROPORTIONAL, UNIFORM
from mixfluence.runs import read_run
from mixfluence.strategies import InfDDS, Static
from mixfluence.training.m3_kd import M3Distillation
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import Turning, arguments, build, pool

pytestmark = pytest.mark.slow


@pytest.fixture
def static(make_static: Callable[[], SentenceTransformer]) -> SentenceTransformer:
    return make_static()


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output + str(result.exception or "")


class Ask(TrainerCallback):
    """Asks for the status of a run in the middle of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[tuple[int, str]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            self.answers.append(command("status", str(self.folder)))


def test_the_command_line_reads_it(
    tiny_bert: SentenceTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    ask = Ask(folder)
    strategy = InfDDS(init=PROPORTIONAL, update_every=2, warmup_steps=2, probe=Probe(dev_batch_size=8))
    args = arguments(folder, disable_tqdm=False)
    MixtureTrainer(
        model=tiny_bert, args=args, train_dataset=pool(), dev_dataset=pool(), strategy=strategy, callbacks=[ask]
    ).train()
    summary = capsys.readouterr().out
    assert "near: 30 rows, 0 duplicates; tokens: anchor" in summary, "a sample of each dataset with its roles"
    assert "  anchor (query): 'w0 w1'" in summary
    assert f"{strategy.label}: 6 steps" in summary
    assert all(word in summary for word in ("near", "far", "at first", "62.5%"))

    ((code, said),) = ask.answers
    assert code == 0, said
    code, said = command("status", str(folder))
    assert code == 0, said
    code, said = command("weights", str(folder))
    assert code == 0, said
    assert json.loads(said) == read_run(folder).weights
    code, said = command("report", str(folder), "-o", str(tmp_path / "page.html"))
    assert code == 0, said
    assert "near" in (tmp_path / "page.html").read_text(encoding="utf-8")
    found = read_run(folder)
    assert found.finished
    assert found.record["steps"] == 6
    assert found.recipe.strategy == strategy
    assert found.recipe.training.temperature == pytest.approx(0.02)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_temperature_is_that_of_the_loss(static: SentenceTransformer, tmp_path: Path, wrapped: bool) -> None:
    loss: Any = M3Distillation(static, temperature=0.05)
    build(static, arguments(tmp_path), loss=MatryoshkaLoss(static, loss, [4, 8]) if wrapped else loss).train()
    assert read_run(tmp_path).recipe.training.temperature == 0.05


def test_runs_of_scripts_are_compared(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = pool()["near"].select(range(5))
    for name in ("uniform", "static"):
        args = arguments(tmp_path / name, seed=len(name))
        build(
            make_static(),
            args,
            strategy=Static(init=UNIFORM if name == "uniform" else PROPORTIONAL),
            test_dataset={"t": asked},
        ).train()
    assert sum("near: the anchor of 5 training rows is a test query" in message for message in caplog.messages) == 2
    found = read_run(tmp_path / "static")
    assert found.record["datasets"]["near"]["rows"] == 25
    assert found.record["tests"]["t"]["queries"] == len(found.scores["t"].per_query) == 5
    code, said = command("compare", str(tmp_path / "uniform"), str(tmp_path / "static"))
    assert code == 0, said
    assert all(row in said for row in ("uniform", "zero-shot", "BM25", "uniform + BM25")), said
    untrained = evaluate(make_static(), retrieval_from_rows("t", Mixture({"t": asked})["t"]))
    assert read_run(tmp_path / "uniform").references["zero-shot"]["t"] == untrained


def test_bars_that_are_off_keep_the_summary_away(
    static: SentenceTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(static, arguments(tmp_path), strategy=Static()).train()
    assert "at the end" not in capsys.readouterr().out
    assert read_run(tmp_path).finished


def test_a_strategy_that_nobody_registered_is_a_warning(
    static: SentenceTransformer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(static, arguments(tmp_path), strategy=Turning()).train()
    assert any("Turning is not registered" in message for message in caplog.messages)
    assert not (tmp_path / "recipe.yaml").exists()
