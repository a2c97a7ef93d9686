"""The examples run as they are, with fewer steps, and print what they promise."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PROMISES = {
    "own_script": ["support: ", "manuals: ", "travel: "],
    "lora_decoder": ["trained 1,792 parameters of 28,672"],
    "custom_strategy": ["manuals: 33% at first, 48% at the end"],
    "custom_metric": ["support: ", "manuals: ", "travel: "],
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"toy_data"} == set(PROMISES)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROMISES))
def test_an_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One round of probes, after ten steps.
    monkeypatch.setattr(sys, "argv", [name, "--steps", "12", "--output", str(tmp_path / "run")])
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(promise in printed for promise in PROMISES[name])
    trace = (tmp_path / "run" / "trace.jsonl").read_text(encoding="utf-8")
    assert ('"update"' in trace) == (name != "custom_strategy")
