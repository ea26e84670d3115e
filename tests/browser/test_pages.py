"""The pages in a real browser: sections, console, requests, widths, names, contrast, text alternatives, print."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Chromium
from tests.browser.conftest import EVIL, MAKERS, NAMES, OWN_DATA, Page

PHONE, DESKTOP = 400, 1400
A4 = 718  # CSS pixels between margins of one centimetre
SMALLEST_CONTRAST = 4.5  # WCAG 2, level AA, for text of normal size

# Texts whose colour is too close to that of their background. A background that is an image counts as its colour.
LOW_CONTRAST = """
(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const background = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) {
    const element = text.parentElement;
    if (!text.data.trim() || ["TITLE", "DESC", "STYLE"].includes(element.tagName.toUpperCase())) continue;
    const style = getComputedStyle(element);
    const colour = parse(element.closest("svg") ? style.fill : style.color);
    const both = [luminance(colour), luminance(background(element))].sort((a, b) => b - a);
    const contrast = (both[0] + 0.05) / (both[1] + 0.05);
    if (contrast < LIMIT) found.push([text.data.trim().slice(0, 40), contrast]);
  }
  return found;
})()
""".replace("LIMIT", str(SMALLEST_CONTRAST))
# Elements that reach beyond the screen, except inside a box that scrolls by itself.
TOO_WIDE = """
[...document.body.querySelectorAll("*")].filter(element => {
  for (let e = element.parentElement; e; e = e.parentElement)
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX)) return false;
  return element.getBoundingClientRect().right > innerWidth + 1;
}).map(element => element.outerHTML.slice(0, 120))
"""
CUT_IN_PRINT = """
[...document.querySelectorAll(".wide, figure, table")].filter(box => box.getBoundingClientRect().right > innerWidth + 1)
  .map(box => box.outerHTML.slice(0, 120))
"""
ALTERNATIVES = """
[...document.querySelectorAll("img, svg")].map(chart => chart.tagName === "IMG" ? chart.alt :
  (chart.getAttribute("aria-labelledby") || "").split(" ").map(id => document.getElementById(id).textContent).join(" "))
"""
# The lines of each class name that fits into a column.
LINES_OF_SHORT_NAMES = """
[...document.querySelectorAll(".classes tbody th")].filter(name => name.innerText.length <= 12).map(name => {
  const range = document.createRange();
  range.selectNodeContents(name);
  return new Set([...range.getClientRects()].map(line => line.top)).size;
})
"""
# Boxes whose content reaches beyond their right edge.
SCROLLING = """
[...document.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth)
  .map(box => box.outerHTML.slice(0, 120))
"""

OWN_DATA_PAGES = ["table", "images", "network"]
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(params=sorted(MAKERS))
def page(request: pytest.FixtureRequest, browser: Chromium, make_page: Callable[[str], Page]) -> Page:
    """Every kind of page; the browser is asked for first, so that no page is made if there is none."""
    return make_page(request.param)


def shown(browser: Chromium, page: Page, width: int = DESKTOP, **how: Any) -> Chromium:
    browser.open(page.path, width=width, **how)
    return browser


def test_every_section_is_there(browser: Chromium, page: Page) -> None:
    shown(browser, page)
    headings = browser.evaluate("[...document.querySelectorAll('h1, h2')].map(heading => heading.innerText)")
    assert {*page.headings} <= {*headings}
    assert browser.evaluate("[...document.querySelectorAll('section[id]')].map(part => part.id)") == page.section_ids
    empty = "[...document.querySelectorAll('section')].filter(part => part.innerText.trim().length < 30).length"
    assert browser.evaluate(empty) == 0
    assert browser.evaluate("document.querySelectorAll('section').length") >= 2


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_nothing_is_wider_than_the_screen(browser: Chromium, page: Page, width: int) -> None:
    shown(browser, page, width)
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(TOO_WIDE) == []


def test_the_console_has_no_error_and_no_request_leaves_the_page(browser: Chromium, page: Page) -> None:
    for dark in (False, True):
        shown(browser, page, dark=dark)
        assert browser.problems == []
        assert browser.requests == [page.path.resolve().as_uri()]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_has_enough_contrast(browser: Chromium, page: Page, dark: bool) -> None:
    shown(browser, page, dark=dark)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper != "rgb(255, 255, 255)") == dark
    assert browser.evaluate(LOW_CONTRAST) == []


def test_every_chart_and_picture_has_a_text_alternative(browser: Chromium, page: Page) -> None:
    shown(browser, page)
    alternatives = browser.evaluate(ALTERNATIVES)
    assert all(len(text.strip()) > 15 for text in alternatives)
    charts = browser.evaluate("document.querySelectorAll('svg, img.chart').length")
    assert sum(len(text) > 60 for text in alternatives) >= charts, "a chart has whole sentences"


def test_the_print_is_complete_and_light(browser: Chromium, page: Page) -> None:
    shown(browser, page, A4, dark=True, media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate(CUT_IN_PRINT) == []
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 1


@pytest.mark.parametrize("kind", [*OWN_DATA_PAGES, "methods"])
def test_a_class_name_with_html_stays_text(browser: Chromium, make_page: Callable[[str], Page], kind: str) -> None:
    shown(browser, make_page(kind))
    assert browser.evaluate("document.querySelectorAll('script, section b, section i').length") == 0
    assert not any(event.get("method") == "Page.javascriptDialogOpening" for event in browser.events)
    text = browser.evaluate("document.body.innerText")
    assert EVIL in text
    if kind in OWN_DATA_PAGES:
        assert all(name in text for name in NAMES)


@pytest.mark.parametrize("kind", OWN_DATA_PAGES)
def test_no_short_class_name_is_broken(browser: Chromium, make_page: Callable[[str], Page], kind: str) -> None:
    shown(browser, make_page(kind))
    lines = browser.evaluate(LINES_OF_SHORT_NAMES)
    assert len(lines) >= 2
    assert {*lines} == {1}


@pytest.mark.parametrize("kind", OWN_DATA_PAGES)
def test_no_table_is_cut_on_a_phone(browser: Chromium, make_page: Callable[[str], Page], kind: str) -> None:
    shown(browser, make_page(kind), PHONE)
    assert browser.evaluate("document.querySelectorAll('.wide').length") >= 3
    assert browser.evaluate(SCROLLING) == []


@pytest.mark.parametrize("kind", OWN_DATA_PAGES)
def test_the_links_of_the_summary_lead_to_the_sections(
    browser: Chromium, make_page: Callable[[str], Page], kind: str
) -> None:
    shown(browser, make_page(kind))
    targets = browser.evaluate("[...document.querySelectorAll('nav a')].map(link => link.getAttribute('href'))")
    assert len(targets) >= 4
    assert {target.removeprefix("#") for target in targets} <= {*OWN_DATA}


def test_the_page_of_a_network_links_to_the_page_with_its_training_curves(
    browser: Chromium, make_page: Callable[[str], Page]
) -> None:
    page = make_page("network")
    shown(browser, page)
    (link,) = browser.evaluate("[...document.querySelectorAll('#trained a')].map(link => link.getAttribute('href'))")
    shown(browser, page._replace(path=page.path.with_name(link)))
    assert "Learning curves" in browser.evaluate("document.body.innerText")
    assert browser.problems == []


def test_a_broken_page_is_noticed(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "broken.html"
    path.write_text(
        "<!doctype html><body style='background:#888;color:#777'><section>grey on grey"
        "<div style='width:2000px'>wide</div><img src='http://127.0.0.1:9/x.png'><script>nothing.there()</script>"
    )
    shown(browser, Page(path, [], []))
    assert browser.evaluate("document.documentElement.scrollWidth") > DESKTOP
    assert browser.evaluate(TOO_WIDE) != []
    assert [text for text, _ in browser.evaluate(LOW_CONTRAST)] == ["grey on grey", "wide", "nothing.there()"]
    assert any("nothing is not defined" in problem for problem in browser.problems)
    assert "http://127.0.0.1:9/x.png" in browser.requests
    assert browser.evaluate(ALTERNATIVES) == [""]
