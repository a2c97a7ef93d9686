"""No command prints a control character of a name, a path or a text, nor a line that one of them has forged."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.hostile.workplace import Case, run_program, write_workplace

pytestmark = pytest.mark.slow

# It clears a screen, rings a bell, goes back to the start of the line and forges another one.
HOSTILE = "\x1b[2Jx\x07\r\nforged: line\x9b"


def printed(folder: Path, *words: str) -> str:
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
        run_program(Case("nothing", shlex.join(words)), folder)
    return output.getvalue()


def test_no_command_prints_control_characters_of_names(tmp_path: Path, tiny_bert_folder: Path) -> None:
    write_workplace(tmp_path, tiny_bert_folder)
    for name in ("near", "dev", "test"):
        (tmp_path / "data" / f"{name}.jsonl").rename(tmp_path / "data" / f"{name}{HOSTILE}.jsonl")
    (tmp_path / f"model{HOSTILE}").symlink_to(tiny_bert_folder)
    rows = tmp_path / "data" / "far.jsonl"
    rows.write_text(rows.read_text("utf-8") + json.dumps([HOSTILE, "w3"]) + "\n", "utf-8")
    recipe = tmp_path / "recipe.yaml"
    text = recipe.read_text("utf-8")
    for section, name in (("[near, far]", "near"), ("[dev]", "dev"), ("[test]", "test")):
        text = text.replace(
            section, json.dumps([f"{name}{HOSTILE}", "far"] if name == "near" else [f"{name}{HOSTILE}"])
        )
    text = text.replace("{name: model}", json.dumps({"name": f"model{HOSTILE}"}))
    recipe.write_text(text.replace("output: run", f"output: {json.dumps(f'run{HOSTILE}')}"), "utf-8")
    run, other = f"run{HOSTILE}", f"other{HOSTILE}"
    inf_dds = "strategy={name: inf-dds, update_every: 1, warmup_steps: 1}"
    said = {
        words: printed(tmp_path, *words)
        for words in (
            ("data", "recipe.yaml"),
            ("data", f"data/near{HOSTILE}.jsonl"),
            ("plan", "recipe.yaml", "strategy=inf-dds"),
            ("recipes", "check", "recipe.yaml"),
            ("recipes", "show", "recipe.yaml"),
            ("recipes", "copy", "recipe.yaml", f"copy{HOSTILE}.yaml"),
            ("sweep", "recipe.yaml", "--dry-run", "--strategies", "uniform,inf-dds"),
            ("train", "recipe.yaml", inf_dds),
            ("train", "recipe.yaml", f"output={json.dumps(other)}"),
            ("train", "recipe.yaml"),
            ("train", "recipe.yaml", f"train.far.path={json.dumps(HOSTILE)}"),
            *(("status", folder) for folder in (run, HOSTILE)),
            *(("compare", run, other, "--format", kind) for kind in ("terminal", "markdown", "latex", "csv", "json")),
            ("compare", run, HOSTILE),
            ("weights", run),
            ("report", run, other, "-o", f"page{HOSTILE}.html"),
            ("evaluate", run, "--bm25", "--to", f"scores{HOSTILE}"),
            ("merge", run, other, "-o", f"merged{HOSTILE}"),
            ("cache",),
        )
    }
    assert "finished" in said["status", run]
    for words, text in said.items():
        assert text, words
        # Bars of libraries go back to the start of their line.
        assert not set("\x1b\x07\x9b") & set(text), (words, text)
        assert not any(line.startswith("forged") for line in text.splitlines()), (words, text)
