"""The site of docs/ as it is built: its links lead somewhere, it shows what a forge shows, and it fits a phone."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from readme_renderer.markdown import render

from tests.interop.chromium import Chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parent.parent.parent
# What a page consists of.
BLOCKS = {"h1", "h2", "h3", "h4", "li", "tr", "pre", "blockquote", "img", "strong", "em"}
SIZES = ((1280, False), (390, True))


class Page(HTMLParser):
    """The links of a page, the names that links may lead to, and the blocks of its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.blocks: Counter[str] = Counter()
        self._is_text = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._is_text = self._is_text or tag == "article"
        self.links += [value for name in ("href", "src") if (value := values.get(name)) is not None]
        self.names |= {value for name in ("id", "name") if (value := values.get(name)) is not None}
        if self._is_text and tag in BLOCKS:
            self.blocks[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._is_text = self._is_text and tag != "article"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line on standard error for each."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = ["sh", str(ROOT / "conf" / "build-site.sh"), sys.executable, str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Return the pages by their paths."""
    found = sorted(site.rglob("index.html"))
    return {
        f"/{path.parent.relative_to(site).as_posix()}/".replace("/./", "/"): Page(path.read_text("utf-8"))
        for path in found
    }


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the site and yield where."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def source_of(path: str) -> Path:
    """Return the Markdown that a page is made from."""
    name = path.strip("/")
    candidates = [
        ROOT / "docs" / each for each in (f"{name}.md", f"{name}/README.md".lstrip("/"), "index.md")
    ]
    return (
        ROOT / "CHANGELOG.md" if name == "changelog" else next(each for each in candidates if each.exists())
    )


def test_links_and_anchors_within_the_site_exist(site: Path, pages: dict[str, Page]):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(urljoin(f"http://site{path}", link))
            parts = urlsplit(target)
            if parts.netloc != "site":
                continue
            file = site / unquote(parts.path).lstrip("/")
            there = pages.get(parts.path)
            if not (file.is_file() or there) or (anchor and there and unquote(anchor) not in there.names):
                dead.append(f"{path}: {link}")
    assert dead == []


def test_links_of_the_index_for_language_models_exist(site: Path):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (site / link).is_file()] == []


def test_a_page_has_the_blocks_that_a_forge_shows(pages: dict[str, Page]):
    """Lists and blocks of code that depend on one reading of Markdown look right in one place only."""
    assert len(pages) > 40
    for path, page in pages.items():
        if path.startswith("/api/"):
            continue  # consists of docstrings
        on_a_forge = Page(f"<article>{render(source_of(path).read_text(encoding='utf-8'))}</article>")
        assert (path, page.blocks) == (path, on_a_forge.blocks)


def test_every_page_fits_a_phone_and_a_desktop_without_complaints(
    pages: dict[str, Page], address: str, tmp_path: Path
):
    problems = []
    with Chromium(tmp_path / "profile") as browser:
        for path in pages:
            browser.forget()
            browser.open(address + path)
            for width, is_phone in SIZES:
                browser.set_size(width, 900, is_phone=is_phone)
                if (found := browser.evaluate("document.documentElement.scrollWidth")) > width:
                    problems.append(f"{path} is {found} pixels wide on {width}")
            problems += [f"{path}: {complaint}" for complaint in browser.complaints]
            problems += [
                f"{path} asks for {each}"
                for each in browser.requests
                if not each.startswith((address, "data:"))
            ]
    assert problems == []
