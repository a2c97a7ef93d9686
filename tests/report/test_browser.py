"""The page in a real browser, opened from disk: no error, no request, readable in both colour schemes and widths.

Playwright drives the system's own chromium (`apt-get install chromium`). Without it these tests fail and say so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mixfluence.files import write_text
from mixfluence.report.page import render_page
from mixfluence.runs import read_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

OLD = Path(__file__).parent / "old-runs"
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


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs, one of which is called like markup."""
    folder = tmp_path_factory.mktemp("page")
    named = shutil.copytree(OLD / "doremi", folder / NAME.replace("/", "∕"))
    write_text(folder / "page.html", render_page([read_run(OLD / "inf-dds"), read_run(named)]))
    return folder / "page.html"


@pytest.fixture
def open_page(browser: Browser, page_file: Path) -> Iterator[Open]:
    """Opens the page; the test fails if it ever complains, requests anything or shows a dialog."""
    complaints: list[str] = []
    asked: list[str] = []

    def open_it(width: int = 1280, **options: str) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda ask: asked.append(ask.url))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.goto(page_file.as_uri())
        return page

    yield open_it
    assert complaints == []
    # Images are saved from memory.
    assert [url for url in asked if not url.startswith(("blob:", "data:"))] == [page_file.as_uri()]


def test_runs_open_by_link_and_keyboard(open_page: Open) -> None:
    page = open_page()
    first, second = page.locator("details.run").all()
    first.scroll_into_view_if_needed()
    first.locator(".main-svg").first.wait_for()
    assert second.locator(".main-svg").count() == 0
    assert page.locator("nav a").all_inner_texts() == ["inf-dds", NAME.replace("/", "∕")]
    second.locator("summary").first.focus()
    page.keyboard.press("Enter")
    second.locator(".main-svg").first.wait_for()
    assert "strategy:" in second.locator("pre").text_content()  # type: ignore[operator]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen_and_text_stands_out(open_page: Open, width: int, scheme: str) -> None:
    page = open_page(width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # By keyboard: charts that are drawn meanwhile would move it away from under the mouse.
    page.locator("details.texts summary").first.press("Enter")
    page.locator("details.texts table").first.wait_for(state="visible")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    # Text of the charts follows the colour scheme. Numbers in the cells of a heat map do not, so ticks are looked at.
    page.locator("figure").first.scroll_into_view_if_needed()
    ticks = "figure .xtick text"
    page.locator(ticks).first.wait_for()
    for selector, key in (("body", "color"), (ticks, "fill")):
        colour = page.locator(selector).first.evaluate(
            f"element => getComputedStyle(element).{key}.match(/\\d+/g).map(Number)"
        )
        difference = sum(colour[:3]) - sum(background[:3])
        assert (difference > 0) == (scheme == "dark")
        assert abs(difference) > 200


def test_every_chart_is_drawn_and_can_be_saved_as_png_and_svg(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    figures = page.locator("details[open] figure, #all-runs figure").all()
    assert len(figures) >= 9
    for figure in figures:
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
    figure = page.locator("#all-runs figure", has_text="Training loss")
    figure.hover()
    starts = {"Download plot as SVG": b"<svg", "Download plot as a PNG": b"\x89PNG"}
    for title, start in starts.items():
        with page.expect_download() as download:
            figure.locator(f"[data-title^='{title}']").first.click()
        download.value.save_as(tmp_path / "file")
        assert (tmp_path / "file").read_bytes().startswith(start)
    titles = [button.get_attribute("data-title") for button in page.locator(".modebar-btn").all()]
    assert titles
    assert not any("share" in (title or "").lower() for title in titles), "a chart must not leave the machine"


def test_lines_of_all_runs_can_be_chosen_by_dataset_and_zoomed(open_page: Open) -> None:
    page = open_page()
    figure = page.locator("#all-runs figure", has_text="Sampling probability of a dataset")
    figure.scroll_into_view_if_needed()
    figure.locator(".main-svg").first.wait_for()
    assert figure.locator(".scatterlayer .trace").count() == 2
    before = figure.locator(".ytick").all_inner_texts()
    figure.locator(".updatemenu-header").click()
    figure.locator(".updatemenu-dropdown-button").nth(3).click()
    page.wait_for_timeout(300)
    assert figure.locator(".scatterlayer .trace").count() == 2
    assert figure.locator(".ytick").all_inner_texts() != before
    box = figure.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    ticks = figure.locator(".xtick").all_inner_texts()
    page.mouse.move(box["x"] + 80, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 55, steps=4)
    page.mouse.up()
    page.wait_for_timeout(300)
    assert figure.locator(".xtick").all_inner_texts() != ticks


def test_a_click_on_a_head_sorts_the_table(open_page: Open) -> None:
    page = open_page()
    table = page.locator("#results table").first
    names = table.locator("tbody td:nth-child(2)")
    for _ in range(2):
        before = names.all_inner_texts()
        table.get_by_role("button", name="average").click()
        after = names.all_inner_texts()
    assert before == after[::-1]
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("average")


def test_the_baseline_of_the_differences_can_be_chosen(open_page: Open) -> None:
    page = open_page()
    tables = page.locator(".contrast")
    assert [table.is_visible() for table in tables.all()] == [True, False]
    page.locator("#baseline").select_option("1")
    assert [table.is_visible() for table in tables.all()] == [False, True]
    assert "+5.7 (" in tables.nth(1).inner_text()
