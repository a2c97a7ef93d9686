"""The documentation is true: the site builds, its commands and scripts run, and its links lead somewhere.

- The site builds without a warning, needs no network, and names every recipe key and command.
- A reader who follows the tutorial word by word gets what it promises.
- The README's script runs; relative links outside the site, and modules that pages name, exist.
- Recipes on the pages of models are valid.
"""

from __future__ import annotations

import ast
import io
import logging
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from datasets import Dataset

from mixfluence.cli import app, main
from mixfluence.recipe import Recipe
from mixfluence.schema import Section
from mixfluence.strategies import STRATEGIES

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
TUTORIAL = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning ends the build."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(logging.getLogger("mkdocs"), "propagate", False)
        build(load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.slow
def test_every_recipe_key_and_sampler_is_documented(site: Path) -> None:
    page = (site / "reference" / "recipe.html").read_text(encoding="utf-8")
    sections: list[type[Section]] = [Recipe, *filter(lambda cls: issubclass(cls, Section), STRATEGIES.values())]
    for section in sections:
        for key in section.model_fields:
            assert f"<code>{key}</code>" in page, f"{section.__name__}.{key}"
    assert all(f"<code>name: {name}</code>" in page for name in STRATEGIES)
    assert "generated:" not in page
    # The last cell of every row is the meaning.
    assert page.count("</tr>") > 50
    assert "<td></td>\n</tr>" not in page


@pytest.mark.slow
def test_every_command_is_documented(site: Path) -> None:
    page = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - typer's own class
    assert len(commands) > 5
    assert all(f"<code>mixfluence {name}</code>" in page for name in commands)


@pytest.mark.slow
def test_the_site_opens_without_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img)[^>]*src="([^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="([^"]+)"', text)
        assert loaded
        assert not [address for pair in loaded for address in pair if address.startswith(("http", "//"))], page.name


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield language, title and content of every block of code."""
    for match in re.finditer(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', text, flags=re.DOTALL | re.MULTILINE):
        yield match[1], match[2] or "", match[3]


def run_line(line: str) -> tuple[int, str]:
    """Run a line of a terminal in this process; return its exit code and what it printed."""
    words = shlex.split(line, comments=True)
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as printed,
        redirect_stderr(io.StringIO()) as errors,
    ):
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            return 0, printed.getvalue()
        assert words[0] == "mixfluence", line
        # Nine runs are too many for a test: listing them shows that the command is right.
        patch.setattr(sys, "argv", [*words, "--dry-run"] if words[1] == "sweep" else words)
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0), printed.getvalue() + errors.getvalue()


@pytest.mark.slow
def test_the_tutorial_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed: dict[str, str] = {}
    for language, title, content in blocks(TUTORIAL):
        if title:
            Path(title).write_text(content, encoding="utf-8")
        for line in content.splitlines() if language == "bash" else []:
            if line == "make demo":
                continue
            code, printed[line] = run_line(line)
            assert code == 0, f"{line}\n{printed[line]}"
    assert run_line("python use.py")[1] == "(256,)\n"
    score, learned = run_line("python again.py")[1].splitlines()
    assert 0 < float(score) <= 1
    assert ast.literal_eval(learned).keys() == {"support", "manuals", "travel"}
    assert "17 rows" in printed["mixfluence plan mine.yaml"]
    weights = dict(re.findall(r'"(\w+)": ([\d.]+)', printed["mixfluence weights runs/inf-dds"]))
    assert float(weights["support"]) > 0.5 > float(weights["manuals"]) > float(weights["travel"])
    assert Path("page.html").is_file()


def test_the_readmes_script_runs(tiny_bert_folder: Path, tmp_path: Path) -> None:
    (script,) = (content for language, _, content in blocks(README) if language == "python")
    changes = {
        "sentence-transformers/all-MiniLM-L6-v2": str(tiny_bert_folder),
        '"out", max_steps=1000, per_device_train_batch_size=128': f'"{tmp_path}", max_steps=3, report_to=[]',
    }
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    pool = {
        name: Dataset.from_dict(
            {"query": [f"w{i} w{i + first}" for i in range(40)], "passage": [f"w{i}" for i in range(40)]}
        )
        for first, name in enumerate(("nq", "fiqa", "scifact", "fiqa_dev"))
    }
    names: dict[str, Any] = dict(pool)
    exec(script, names)
    assert names["trainer"].state.global_step == 3


@pytest.mark.parametrize("name", ["kinds", "large-models"])
def test_recipes_on_the_pages_are_valid(name: str) -> None:
    text = (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    shown = [block for block in blocks if "train" in block]
    assert shown
    rest = {"name": "shown", "model": {"name": "minilm"}, "defaults": {"format": "pairs"}}
    for block in shown:
        assert (
            Recipe.model_validate(rest | block, context={"files_may_be_missing": True}).train.keys()
            == block["train"].keys()
        )


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_exist(name: str) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")]
    assert [link for link in links if link and not (REPOSITORY / link).exists()] == []


@pytest.mark.parametrize("name", ["docs/ARCHITECTURE.md", "docs/method-index.md", "CONTRIBUTING.md"])
def test_modules_named_in_the_docs_exist(name: str) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (REPOSITORY / name).read_text(encoding="utf-8")))
    assert named
    roots = (REPOSITORY, REPOSITORY / "src" / "mixfluence")
    assert {path for path in named if not any((root / path).is_file() for root in roots)} == set()
