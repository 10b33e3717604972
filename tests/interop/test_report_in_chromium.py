"""The page of `segmentlog report` in a real browser: hostile names run nothing, keys reach everything, it prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.report.report import make_report
from storage_core.report.report_page import page_of
from tests.check.hostile_directory import SCRIPTS, make_hostile_directory
from tests.interop.chromium import Chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop
# The text of an element that has the focus, or of its first words.
FOCUSED = "document.activeElement.textContent.trim().slice(0, 40)"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page about a directory with hostile names and damage."""
    root = make_hostile_directory(tmp_path_factory.mktemp("hostile"))
    report = make_report(FileSystem(), options_of([root], {}), now_ms=1_700_000_600_000)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(report))
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Yield a browser."""
    with Chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def browser(chromium: Chromium, page_file: Path) -> Iterator[Chromium]:
    """Yield a browser that shows the page anew."""
    chromium.set_size(1280, 900)
    chromium.set_media()
    chromium.open("about:blank")
    chromium.forget()
    chromium.open(page_file.as_uri())
    yield chromium
    # Whatever a test does.
    assert chromium.complaints == []
    assert chromium.requests == [page_file.as_uri()]


def test_hostile_names_are_text_and_run_nothing(browser: Chromium) -> None:
    assert browser.evaluate("typeof complain") == "undefined"
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.images.length") == 0
    # What runs if somebody clicks has to be looked for.
    handlers = "Array.from(document.querySelectorAll('*')).flatMap((e) => Array.from(e.attributes)).filter((a) => a.name.startsWith('on') || /javascript:/.test(a.name === 'href' ? a.value : '')).length"
    assert browser.evaluate(handlers) == 0
    shown = browser.evaluate("document.body.textContent")
    for script in SCRIPTS[:-1]:
        assert script in shown


def test_a_script_that_got_in_would_not_run(chromium: Chromium, tmp_path: Path, page_file: Path) -> None:
    """The policy holds even if a text were not escaped."""
    leaking = tmp_path / "leaking.html"
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    leaking.write_text(page_file.read_text().replace("<main", f"{attack}<main", 1))
    chromium.open(leaking.as_uri())
    assert chromium.evaluate("document.title").startswith("Log report")
    assert any("Content Security Policy" in each for each in chromium.complaints)


def test_the_first_key_leads_to_the_findings(browser: Chromium) -> None:
    browser.press("Tab")
    assert browser.evaluate(FOCUSED) == "Skip to the findings"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#findings"


def test_keys_reach_every_link_button_and_detail_and_the_focus_shows(browser: Chromium) -> None:
    wanted = browser.evaluate("document.querySelectorAll('a, summary, .scroll').length")
    visible = (
        "Array.from(document.querySelectorAll('th button')).filter((each) => each.checkVisibility()).length"
    )
    wanted += browser.evaluate(visible)
    # Tables in details that are closed are out of reach.
    hidden = (
        "Array.from(document.querySelectorAll('.scroll')).filter((each) => !each.checkVisibility()).length"
    )
    wanted -= browser.evaluate(hidden)
    reached = 0
    for _ in range(wanted):
        browser.press("Tab")
        assert browser.evaluate("document.activeElement !== document.body")
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        reached += 1
    browser.evaluate("window.last = document.activeElement")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement !== window.last")
    assert reached == wanted


def test_details_open_with_a_key(browser: Chromium) -> None:
    browser.evaluate("document.querySelector('#groups summary').focus()")
    assert browser.evaluate("document.querySelector('#groups details').open") is False
    browser.press("Enter")
    assert browser.evaluate("document.querySelector('#groups details').open") is True


def test_tables_are_sorted_with_a_key(browser: Chromium) -> None:
    table = "document.querySelector('#groups table')"
    lags = f"Array.from({table}.tBodies[0].rows, (row) => Number(row.cells[3].dataset.value))"
    state = f"{table}.tHead.rows[0].cells[3].getAttribute('aria-sort')"
    assert browser.evaluate(lags) == [36, 35, 34, 33, 32, 31, 30]
    browser.evaluate(f"{table}.tHead.rows[0].cells[3].querySelector('button').focus()")
    browser.press("Space")
    assert browser.evaluate(lags) == [30, 31, 32, 33, 34, 35, 36]
    assert browser.evaluate(state) == "ascending"
    browser.press("Enter")
    assert browser.evaluate(lags) == [36, 35, 34, 33, 32, 31, 30]
    assert browser.evaluate(state) == "descending"


@pytest.mark.parametrize(("width", "is_phone"), [(1280, False), (390, True)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_its_window_and_can_be_read(
    browser: Chromium, tmp_path: Path, width: int, is_phone: bool, scheme: str
) -> None:
    browser.set_size(width, 900, is_phone=is_phone)
    browser.set_media(scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    # Contrast of each text with what is behind it, as WCAG 2 defines it.
    assert browser.evaluate(CONTRAST) >= 4.5
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


CONTRAST = """
(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const parts = numbers(color).slice(0, 3).map((each) => each / 255);
    const [red, green, blue] = parts.map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = 21;
  for (const element of document.querySelectorAll("p, a, td, th, dt, dd, span, h1, h2, h3, code, summary, li, caption, button")) {
    if (!element.checkVisibility() || !element.textContent.trim()) continue;
    const [first, second] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    worst = Math.min(worst, (first + 0.05) / (second + 0.05));
  }
  return worst;
})()
"""


def test_it_prints_with_all_details_open(browser: Chromium) -> None:
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
    assert browser.evaluate("document.querySelectorAll('details[open]').length") == 0
    opened = """
        (() => {
          dispatchEvent(new Event("beforeprint"));
          const closed = document.querySelectorAll("details:not([open])").length;
          dispatchEvent(new Event("afterprint"));
          return closed;
        })()
    """
    assert browser.evaluate(opened) == 0
    assert browser.evaluate("document.querySelectorAll('details[open]').length") == 0
    browser.set_media(media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('.sections')).display") == "none"
