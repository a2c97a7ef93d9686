"""The page in a real browser, opened from disk: no error, no request, and what it shows can be reached by all means.

Playwright drives the system's own chromium (`apt-get install chromium`). Where there is none, these
tests fail and say so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mixfluence.report.folders import read_run
from mixfluence.report.series import collect

from mixfluence.evaluation.dev_queries import DevQuery, write_dev_queries
from mixfluence.files import write_text
from mixfluence.report.page import render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

pytestmark = pytest.mark.slow

NAME = "<script>alert(1)</script>"
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        pytest.fail("the page was NOT tested in a browser: install chromium (apt-get install chromium) and playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, runs: Path, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of some runs, `alone` as if each had been trained on one dataset.

    The test fails if the page ever complains, asks for anything or shows a dialog.
    """
    complaints: list[str] = []
    asked: list[str] = []

    def refuse(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open_it(*names: str | Path, alone: bool = False, width: int = 1280, **options: str) -> Page:
        path = tmp_path / "page.html"
        report = collect([read_run(runs / name) for name in names])
        if alone:
            report = replace(report, runs=[replace(run, trained_on=run.trained_on[-1:]) for run in report.runs])
        write_text(path, render_page(report))
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda ask: asked.append(ask.url))
        page.on("dialog", refuse)
        page.goto(path.as_uri())
        page.wait_for_selector("#sampling svg.chart path.line", state="attached")
        assert asked == [path.as_uri()]
        return page

    yield open_it
    assert complaints == []
    assert len(asked) == 1


def lines(page: Page, chart: int = 0) -> list[str | None]:
    """The names of the lines in a chart of the trajectories."""
    drawn = page.locator("#sampling svg.chart").nth(chart).locator("g[data-name]")
    return [drawn.nth(place).get_attribute("data-name") for place in range(drawn.count())]


def test_every_section_with_data_is_there_and_no_other(open_page: Open) -> None:
    page = open_page("static", "static-1", "inf-dds", "killed")
    found = [part.get_attribute("id") for part in page.locator("main section").all()]
    expected = ["results", "cost", "time", "start", "weights", "sampling", "influence", "progress", "epochs"]
    expected += ["queries", "recipe"]
    assert found == expected
    assert page.locator("nav a").count() == len(expected)
    # A run that was not guided has no influence to show.
    page.select_option("#run", label="static")
    assert page.locator("#influence").count() == 0
    assert page.locator("nav a").count() == len(expected) - 1


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_the_legend_toggles_a_trajectory(open_page: Open, by_keyboard: bool) -> None:
    page = open_page("inf-dds")
    assert lines(page) == lines(page, 1) == [NAME, "big", "small"]
    button = page.locator("#sampling .legend button", has_text="big")

    def toggle() -> None:
        if by_keyboard:
            button.focus()
            page.keyboard.press("Space")
        else:
            button.click()

    assert button.get_attribute("aria-pressed") == "true"
    toggle()
    assert button.get_attribute("aria-pressed") == "false"
    assert lines(page) == lines(page, 1) == [NAME, "small"]
    toggle()
    assert lines(page) == [NAME, "big", "small"]
    page.get_by_role("button", name="none").first.click()
    assert lines(page) == []


def test_hovering_and_arrow_keys_show_values(open_page: Open, runs: Path) -> None:
    page = open_page("inf-dds")
    chart = page.locator("#sampling svg.chart").first
    tip = page.locator("#sampling .tip").first
    assert tip.is_hidden()
    weights = read_run(runs / "inf-dds").trace[-1]["weights"]
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] - 16, box["y"] + box["height"] / 2)
    last = tip.inner_text()
    assert "step 24" in last
    for name, weight in weights.items():
        assert name in last
        assert f"{100 * weight:.1f}%" in last
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    chart.focus()
    page.keyboard.press("End")
    assert tip.inner_text() == last
    page.keyboard.press("Home")
    assert "step 0" in tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert "step 2" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_a_log_scale_moves_lines_and_numbers_open_as_a_table(open_page: Open) -> None:
    page = open_page("inf-dds")
    line = page.locator("#sampling svg.chart path.line").first
    before = line.get_attribute("d")
    page.get_by_label("log scale").check()
    assert line.get_attribute("d") != before
    page.locator("#sampling summary").first.click()
    head = page.locator("#sampling details table").first.locator("thead th").all_inner_texts()
    assert head == ["step", NAME, "big", "small"]


def test_influence_on_one_target_can_be_chosen(open_page: Open) -> None:
    page = open_page("inf-dds")
    assert page.locator("#influence .band").count() == 3
    page.select_option("#target", label="small")
    assert "Influence on small" in page.locator("#influence figcaption").inner_text()
    assert page.locator("#influence path.line").count() == 3
    assert page.locator("#influence .band").count() == 0


def test_runs_on_one_dataset_alone_make_a_heat_map(open_page: Open, runs: Path) -> None:
    page = open_page("static", "killed", alone=True)
    scores = read_run(runs / "static").record["scores"]
    (line,) = page.locator("#heat tbody tr").all()
    assert line.locator("th").inner_text() == "small (static)"
    assert line.locator("td").all_inner_texts() == [f"{100 * score['ndcg@10']:.1f}" for score in scores.values()]


def test_dev_queries_open_by_keyboard_and_show_texts_as_text(open_page: Open, runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "static", copy, ignore=shutil.ignore_patterns("checkpoints", "model"))
    right = DevQuery("easy", "answer", "close", rank=1, among=2, margin=0.5, ndcg=1.0)
    wrong = DevQuery(
        f"{NAME} & <b>hard</b>", "<img src=x onerror=alert(2)>", NAME, rank=2, among=2, margin=-0.1, ndcg=0.6
    )
    write_dev_queries("big", [wrong, right], copy / "dev")
    page = open_page(copy)
    big, small = page.locator("#queries details").all()
    assert big.locator("summary").inner_text() == "big: 2 queries, NDCG@10 80.0"
    assert not big.locator("table").first.is_visible()
    big.locator("summary").focus()
    page.keyboard.press("Enter")
    best, worst = big.locator("table").all()
    assert best.locator("caption").inner_text() == "Best 1"
    assert [cell.inner_text() for cell in best.locator("tbody tr > *").all()] == ["easy", "1 of 2", "answer", "close"]
    shown = [cell.inner_text() for cell in worst.locator("tbody tr > *").all()]
    assert shown == [wrong.query, "2 of 2", wrong.positive, NAME]
    assert page.locator("#queries script, #queries img, #queries td b, #queries th b").count() == 0
    assert small.locator("table").count() == 2
    assert not small.locator("table").first.is_visible()


def test_a_run_that_did_not_look_at_its_dev_queries_has_no_such_section(
    open_page: Open, runs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "static", copy, ignore=shutil.ignore_patterns("checkpoints", "model", "dev"))
    page = open_page(copy)
    assert page.locator("#queries").count() == 0
    assert page.locator("#recipe").count() == 1


def test_a_name_that_looks_like_markup_is_text(open_page: Open) -> None:
    page = open_page("static", "inf-dds")
    assert page.get_by_text(NAME, exact=True).count() >= 5
    assert page.locator("script").count() == 2
    assert page.locator("#results th", has_text=NAME).count() == 1
    assert NAME in page.locator("#recipe pre").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen_and_text_stands_out(open_page: Open, width: int, scheme: str) -> None:
    page = open_page("static", "static-1", "inf-dds", "doge", "doremi", "killed", width=width, color_scheme=scheme)
    page.locator("#queries summary").first.click()
    assert page.locator("#queries table").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#sampling svg.chart").first.focus()
    page.keyboard.press("End")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shades = page.evaluate(
        "['color', 'backgroundColor'].map(key => getComputedStyle(document.body)[key].match(/\\d+/g).map(Number))"
    )
    ink, paper = (sum(shade[:3]) for shade in shades)
    assert (ink > paper) == (scheme == "dark")
    assert abs(ink - paper) > 400


def test_a_run_killed_half_way_opens_and_says_so(open_page: Open) -> None:
    page = open_page("killed")
    assert "unfinished: step 12 of 24" in page.locator("#results").inner_text()
    assert [part.get_attribute("id") for part in page.locator("main section").all()] == [
        *("results", "weights", "sampling", "influence", "progress", "epochs", "recipe"),
    ]


@pytest.mark.parametrize("method", ["doge", "doremi", "crisp", "aioli", "multidds", "target-only", "cooldown", "tdro"])
def test_every_method_opens(open_page: Open, method: str) -> None:
    page = open_page(method)
    assert page.locator("#sampling svg.chart").count() >= 2
    assert "NaN" not in page.content()
    if method in {"doge", "doremi"}:
        assert page.locator("#sampling figcaption", has_text="Stage proxy: Probability").count() == 1


def test_every_control_is_reached_by_the_tab_key_and_has_a_name(open_page: Open) -> None:
    page = open_page("inf-dds")
    wanted = page.locator("a[href], button, select, input, summary, svg.chart, [tabindex='0']").count()
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    elements = page.evaluate(
        "[...document.querySelectorAll('*')].map((e, i) => [e, i])"
        '.filter(([e]) => e.matches("a[href], button, select, input, summary, svg.chart")).map(([, i]) => i)'
    )
    assert set(elements) <= reached
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, input, svg.chart')].filter("
        "e => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))).length"
    )
    assert unnamed == 0
