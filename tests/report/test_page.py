"""The page is one file that holds its data as data.

- Whatever a dataset is called, the page has the elements of its template and no other.
- Script and style are those that the content security policy names, and nothing may be loaded.
- A killed run is there and marked; a page that would be too large is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mixfluence.report.folders import read_run
from mixfluence.report.queries import Extremes
from mixfluence.report.series import Group, Report, Run, collect

from mixfluence.cli.report import report as report_verb
from mixfluence.errors import DataError, RecipeError
from mixfluence.evaluation.dev_queries import DevQuery
from mixfluence.report import page
from mixfluence.report.page import render_page

NASTY = [
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "\u2028\u2029",
    "a & \"b' $title",
]


class Elements(HTMLParser):
    """Collects tags, attributes and the text inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "td": [], "th": []}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._open in self.inside:
            self.inside[self._open][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def small_report(names: list[str]) -> Report:
    """One finished run and an unfinished one, whose every text is one of the names."""
    text = " ".join(names)
    run = Run(
        label=text,
        sampler=text,
        start=text,
        seed=0,
        finished=True,
        steps=4,
        reached=4,
        selected=None,
        targets=names,
        trained_on=names,
        weights=dict.fromkeys(names, 1 / len(names)),
        epochs=dict.fromkeys(names, 1.0),
        selection={},
        queries={name: Extremes(1, 100.0, [DevQuery(text, text, text, 1, 2, 0.5, 1.0)], []) for name in names},
        scores=dict.fromkeys(names, 50.0),
        cost={text: 1.0},
        trainings=[],
        recipe=text,
        versions={text: text},
        device=text,
    )
    killed = replace(run, finished=False, reached=2, scores={}, cost={})
    scored = Group(text, [0], run.scores, 50.0, None, run.cost, 1.0)
    return Report([run, killed], [scored, Group(text, [1], {}, None, None, {}, None)], names, names, text, [text])


def test_names_cannot_add_elements_or_end_the_data() -> None:
    nasty, tame = (
        Elements(render_page(small_report(names))) for names in (NASTY, [f"d{i}" for i in range(len(NASTY))])
    )
    assert nasty.tags == tame.tags
    assert [name for name, _ in nasty.attributes] == [name for name, _ in tame.attributes]
    data, script = nasty.inside["script"]
    assert script == tame.inside["script"][1]
    assert json.loads(data) == json.loads(json.dumps(asdict(small_report(NASTY))))
    assert not re.search("[<>&\u2028\u2029]", data)
    assert NASTY[0] in nasty.inside["th"]


def test_the_policy_allows_the_page_its_own_script_and_style_and_nothing_else() -> None:
    found = Elements(render_page(small_report(["a"])))
    (policy,) = [value for _, value in found.attributes if value and value.startswith("default-src")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind, text in (("script-src", found.inside["script"][1]), ("style-src", found.inside["style"][0])):
        assert rules[kind] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert not [value for name, value in found.attributes if name in {"src", "srcset", "data"}]
    assert all(value and value.startswith("#") for name, value in found.attributes if name == "href")


def test_an_unfinished_run_is_marked_and_has_no_numbers() -> None:
    text = render_page(small_report(["a", "b"]))
    assert text.count("unfinished: step 2 of 4</span>") == 1
    assert "Fewer than two finished runs" in text


def test_the_best_of_each_column_is_bold() -> None:
    report = small_report(["a", "b"])
    better = replace(report.groups[0], label="better", scores={"a": 60.0, "b": 42.0}, average=51.0, own_cost=3.0)
    text = render_page(replace(report, groups=[report.groups[0], better], notes=[]))
    assert re.findall("<b>([^<]*)</b>", text) == ["50.0", "51.0", "60.0"]
    assert "better has the highest average, 1.0 points above a b, for 3.0 times its training time." in text


def test_a_page_that_would_be_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_BYTES", 10_000)
    with pytest.raises(DataError, match=r"a page of these 2 runs would have 0\.0 MB; report fewer at once"):
        render_page(small_report(["a"]))


@pytest.mark.slow
def test_all_runs_fit_on_a_page_and_the_verb_writes_it(runs: Path, tmp_path: Path) -> None:
    folders = [path.parent for path in sorted(runs.glob("*/recipe.yaml"))]
    assert len(folders) > 12
    report_verb(folders, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    data = json.loads(Elements(text).inside["script"][0])
    assert [run["label"] for run in data["runs"]] == [folder.name for folder in folders]
    for wrong in (tmp_path / "page.html" / "page.html", tmp_path):
        with pytest.raises(RecipeError, match=rf"^{wrong}: cannot be written"):
            report_verb(folders[:1], wrong)


@pytest.mark.slow
def test_the_same_runs_give_the_same_page(runs: Path) -> None:
    pages = {render_page(collect([read_run(runs / "inf-dds"), read_run(runs / "killed")])) for _ in range(2)}
    assert len(pages) == 1
