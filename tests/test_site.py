"""The site of docs/ has every page, every public name, and an index of both.

`make docs` builds it; tests/interop/test_site_in_chromium.py looks at it.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.exported_members import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Made from a file outside docs/ (conf/build-site.sh).
CHANGELOG = "changelog.md"
# Names for the packages above, and for Spark.
NOT_DESCRIBED = {"storage_core.filesystem", "pyspark_segmentlog"}


def labelled_pages_of(items: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the label of each page, which is empty if the navigation leaves it to the title, and the page."""
    for item in items:
        label, target = next(iter(item.items())) if isinstance(item, dict) else ("", item)
        if isinstance(target, list):
            yield from labelled_pages_of(target)
        else:
            yield label, target


def labelled_navigation() -> list[tuple[str, str]]:
    # The rest of the file has tags, which a safe loader refuses.
    _, _, text = (ROOT / "conf" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return list(labelled_pages_of(yaml.safe_load(text)))


def navigation() -> list[str]:
    return [page for _, page in labelled_navigation()]


def test_each_page_is_in_the_navigation_once():
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(navigation()) == sorted([*there, CHANGELOG])


def test_the_index_for_language_models_follows_the_navigation():
    indexed = re.findall(
        r"^- \[[^\]]+\]\(([^)]+)\): \S", (DOCS / "llms.txt").read_text("utf-8"), re.MULTILINE
    )
    # Of the decisions, only their own index.
    wanted = [page for page in navigation() if not re.match(r"decisions/\d", page)]
    assert sorted(indexed) == sorted(set(wanted) - {"index.md", CHANGELOG})


def test_the_navigation_names_each_page_by_its_title():
    labels = {page: label for label, page in labelled_navigation() if label}
    # The title of the first page is the name of the site, and that of the last one is made elsewhere.
    del labels["index.md"], labels[CHANGELOG]
    titles = {page: (DOCS / page).read_text("utf-8").partition("\n")[0].removeprefix("# ") for page in labels}
    assert labels == titles


def test_a_link_that_opens_like_a_title_has_the_title_of_a_page_or_section():
    """Links of a sentence, which begin in lower case, and numbers of decisions may say what they like."""
    wrong = []
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", DOCS / "llms.txt", *DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        for words, target in re.findall(r"(?<!!)\[([A-Z][^\]]*)\]\(([^:)#\s]+\.md)", text):
            page = (path.parent / target).resolve()
            headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            if " ".join(words.split()) not in headings and "decisions/0" not in page.as_posix():
                wrong.append(f"{path.relative_to(ROOT)}: [{words}]({target})")
    assert wrong == []


def test_every_public_name_is_described():
    pages = [DOCS / "api.md", *DOCS.glob("api/*.md")]
    directives = re.findall(
        r"^::: ([\w.]+)$", "".join(page.read_text(encoding="utf-8") for page in pages), re.MULTILINE
    )
    assert len(directives) == len(set(directives))
    named = {each.rpartition(".")[2] for each in directives}
    # The page of errors describes a whole module.
    modules = set(MODULES) - NOT_DESCRIBED - set(directives)
    public = {name for module in modules for name in importlib.import_module(module).__all__}
    public -= {"SegmentLogError", "__version__"}
    assert named == public
