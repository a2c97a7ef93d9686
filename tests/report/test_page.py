"""The page is one file in which everything from runs is text.

- Whatever a dataset, run or dev text is called, no element is added; nothing is loaded, and only our scripts run.
- An unfinished run is shown and marked; ids are unique; the same runs give the same page.
- The best and worst dev queries are shown, each once.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mixfluence.cli.runs import report
from mixfluence.errors import DataError, RecipeError
from mixfluence.evaluation.results import DevQuery, write_dev_queries
from mixfluence.report.page import best_and_worst, render_page
from mixfluence.runs import Run, read_run

NASTY = "</title></svg></script><script>alert(1)</script><!-- \" ' $title & \u2028 <img src=x onerror=alert(1)>"
OLD = Path(__file__).parent / "old-runs"


class Elements(HTMLParser):
    """Collects tags, attributes and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)
        else:
            self.text += data


def renamed(run: Run, name: str) -> Run:
    """A run in which the dataset "blue", the folder and the dev texts are called otherwise."""
    text = json.dumps([run.trace, run.weights, run.record])
    trace, weights, record = json.loads(text.replace('"blue"', json.dumps(name)))
    scores = {name if old == "blue" else old: evaluation for old, evaluation in run.scores.items()}
    dev = {name: [replace(query, query=name, positive=name, other=name) for query in run.dev["blue"]]}
    path = Path("runs") / name.replace("/", "∕")
    return replace(run, path=path, trace=trace, weights=weights, record=record, scores=scores, dev=dev)


@pytest.mark.slow
def test_names_and_texts_are_text() -> None:
    run = read_run(OLD / "inf-dds")
    nasty, tame = (Elements(render_page([renamed(run, name)])) for name in (NASTY, "x" * len(NASTY)))
    kinds = {"script", "img", "title", "h3", "table", "th", "details", "summary", "figure"}
    assert {tag: nasty.tags[tag] for tag in kinds} == {tag: tame.tags[tag] for tag in kinds}
    assert nasty.tags["img"] == 0
    assert not [name for name, _ in nasty.attributes if name.startswith("on")]
    # In tables of scores and dev queries.
    assert nasty.text.count(NASTY) >= 10
    assert len(charts(nasty)) == nasty.tags["figure"]


def charts(page: Elements) -> list[dict[str, Any]]:
    """The data of all charts, which is JSON that ends where its element does."""
    return [json.loads(text) for text in page.scripts if text.startswith('{"data"')]


@pytest.mark.slow
def test_the_page_loads_nothing_executes_only_our_scripts_and_has_unique_ids() -> None:
    found = Elements(render_page([read_run(OLD / name) for name in ("inf-dds", "doremi")]))
    (policy,) = [value for _, value in found.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-")
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    own = [text for text in found.scripts if not text.startswith('{"data"')]
    assert {b64encode(sha256(text.encode()).digest()).decode() for text in own} == allowed
    assert len(own) == 2
    assert not [value for name, value in found.attributes if name in {"src", "srcset", "data"}]
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    targets = [value for name, value in found.attributes if name == "href"]
    assert {target.removeprefix("#") for target in targets} <= set(ids)
    assert found.tags["figure"] == found.tags["figcaption"] == len(charts(found)) >= 12


@pytest.mark.slow
def test_an_unfinished_run_is_marked_and_has_no_scores() -> None:
    run = read_run(OLD / "inf-dds")
    killed = replace(run, path=Path("killed"), record={}, scores={}, weights={}, trace=run.trace[:6])
    text = Elements(render_page([run, killed])).text
    assert "killed (unfinished: step 8 of 24)" in text
    alone = Elements(render_page([Run(killed.path, run.recipe)]))
    assert "unfinished: step 0 of 24" in alone.text
    assert alone.tags["figure"] == 0


def test_no_run_and_the_same_run_twice_are_refused() -> None:
    run = read_run(OLD / "inf-dds")
    for runs in ([], [run, run]):
        with pytest.raises(DataError):
            render_page(runs)


@pytest.mark.slow
def test_the_page_has_what_a_reader_looks_for(tmp_path: Path) -> None:
    folders = [Path(shutil.copytree(OLD / name, tmp_path / name)) for name in ("inf-dds", "doremi")]
    queries = [DevQuery(f"query {rank}", "its text", "other", rank, 30, 0.5, 0.0) for rank in range(1, 31)]
    write_dev_queries("blue", queries, folders[0] / "dev")
    report(folders, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Elements(text).text
    for words in ("Inf-DDS", "DoReMi", "Caution: selection.every", "stage reference", "Influence", "torch", "0.1.0"):
        assert words.lower() in found.lower()
    assert "blue: 30 queries, NDCG@10 0.0" in found
    for wrong in (tmp_path / "page.html" / "page.html", tmp_path):
        with pytest.raises(RecipeError, match=rf"^{wrong}: cannot be written"):
            report(folders[:1], wrong)


@pytest.mark.slow
def test_the_same_runs_give_the_same_page() -> None:
    assert len({render_page([read_run(OLD / "doremi")]) for _ in range(2)}) == 1


@pytest.mark.slow
def test_ten_runs_add_less_than_half_a_megabyte(runs: Path) -> None:
    folders = [path.parent for path in sorted(runs.glob("*/recipe.yaml"))][:10]
    text = render_page([read_run(folder) for folder in folders])
    assert len(text.encode()) - max(map(len, Elements(text).scripts)) < 500_000
    assert all(f">{folder.name}<" in text for folder in folders)


def some_queries(count: int) -> list[DevQuery]:
    """Queries of all ranks, named after it and their margin, shuffled."""
    made = [
        DevQuery(f"{rank} {tie}", "text", "other", rank, count, margin=tie / 10 - (rank > 1), ndcg=float(rank == 1))
        for rank in range(1, count // 4 + 1)
        for tie in range(4)
    ]
    random.Random(0).shuffle(made)
    return made


def test_the_best_and_the_worst_come_first_in_their_lists() -> None:
    best, worst = best_and_worst(some_queries(40))
    assert [query.query for query in best[:5]] == ["1 3", "1 2", "1 1", "1 0", "2 3"]
    assert [query.query for query in worst[:5]] == ["10 0", "10 1", "10 2", "10 3", "9 0"]
    assert (len(best), len(worst)) == (10, 10)


@pytest.mark.parametrize("count", [1, 2, 3, 15, 20])
def test_no_query_is_both_and_none_of_a_few_is_left_out(count: int) -> None:
    queries = some_queries(40)[:count]
    best, worst = best_and_worst(queries)
    assert sorted(query.query for query in best + worst) == sorted(query.query for query in queries)
