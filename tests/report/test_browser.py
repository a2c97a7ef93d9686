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
    assert asked == [page_file.as_uri()]


def test_runs_open_by_link_and_keyboard(open_page: Open) -> None:
    page = open_page()
    first, second = page.locator("details.run").all()
    assert first.locator("svg").first.is_visible()
    assert not second.locator("svg").first.is_visible()
    assert page.locator("nav a").all_inner_texts() == ["inf-dds", NAME.replace("/", "∕")]
    second.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert second.locator("svg").first.is_visible()
    assert "strategy:" in second.locator("pre").text_content()  # type: ignore[operator]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen_and_text_stands_out(open_page: Open, width: int, scheme: str) -> None:
    page = open_page(width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("details.texts summary").first.click()
    assert page.locator("details.texts table").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    # Text and lines of the charts follow the colour scheme.
    for selector, key in (("body", "color"), ("svg text", "fill"), ("svg path[style*='--c0']", "stroke")):
        colour = page.locator(selector).first.evaluate(
            f"element => getComputedStyle(element).{key}.match(/\\d+/g).map(Number)"
        )
        difference = sum(colour[:3]) - sum(background[:3])
        assert (difference > 0) == (scheme == "dark")
        assert abs(difference) > 200


def test_charts_have_accessible_names(open_page: Open) -> None:
    page = open_page()
    charts = page.locator("svg.chart")
    assert charts.count() >= 12
    assert page.locator("svg.chart[role=img] > title").count() == charts.count()
    assert page.locator("script, img").count() == 0
