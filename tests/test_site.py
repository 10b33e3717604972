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


def pages_of(items: list[Any]) -> Iterator[str]:
    for item in items:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(target, list):
            yield from pages_of(target)
        else:
            yield target


def navigation() -> list[str]:
    # The rest of the file has tags, which a safe loader refuses.
    _, _, text = (ROOT / "conf" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return list(pages_of(yaml.safe_load(text)))


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
