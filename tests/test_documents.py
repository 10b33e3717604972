"""README.md and docs/: the code runs as it is, in order, and prints what the page shows; names and links exist.

The Python blocks of a page share a namespace and a working directory. `tests/interop/test_load_into_kafka.py` runs the
page that needs a broker.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from tests.documented_commands import is_about_the_command
from tests.executed_document import Block, assert_shown, blocks_of
from tests.spark_settings import environment_of_a_user

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/conformance/*.md"))
)
NEEDS_A_BROKER = "docs/load-into-kafka.md"

RUN_BLOCKS = """
import json, sys

namespace = {"__name__": "__main__"}
for line, text in json.load(sys.stdin):
    print(chr(0), flush=True)
    exec(compile("\\n" * line + text, sys.argv[1], "exec"), namespace)
"""


def blocks_in(page: str, language: str) -> list[Block]:
    if page == NEEDS_A_BROKER:
        return []
    blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    return [block for block in blocks if block.language == language]


def pages_with_code() -> list[object]:
    """A page that starts a Spark of its own is for `make test-all`."""
    pages = []
    for page in PAGES:
        if blocks := blocks_in(page, "python"):
            is_spark = any("SparkSession" in block.text for block in blocks)
            pages.append(
                pytest.param(page, marks=[pytest.mark.spark, pytest.mark.thorough] if is_spark else [])
            )
    return pages


def printed_by(page: str, folder: Path) -> list[str]:
    """What each block prints, in one fresh interpreter whose directory has ``examples``."""
    (folder / "examples").symlink_to(EXAMPLES)
    done = subprocess.run(
        [sys.executable, "-c", RUN_BLOCKS, page],
        input=json.dumps([(block.line, block.text) for block in blocks_in(page, "python")]),
        cwd=folder,
        env=environment_of_a_user(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0\n")[1:]


@pytest.mark.parametrize("page", pages_with_code())
def test_the_code_of_a_page_prints_what_the_page_shows(page: str, tmp_path: Path):
    for block, printed in zip(blocks_in(page, "python"), printed_by(page, tmp_path), strict=True):
        assert_shown(printed, block)
        assert block.shown or not printed, f"line {block.line}: the page does not show\n{printed}"


def commands() -> list[str]:
    """Each command line of a shell block, but of those that tests/cli/test_documented_commands.py runs."""
    blocks = [block for page in PAGES for block in blocks_in(page, "sh")]
    text = "".join(block.text for block in blocks if not is_about_the_command(block))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return sorted({line for line in lines if line.strip()})


@pytest.mark.cases(4, 30)
@pytest.mark.parametrize("line", commands())
def test_the_commands_of_a_page_exist(line: str):
    """Not run in full: they install, test and measure for minutes."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
    command, *arguments = words[0].removeprefix("environment/bin/"), *words[1:]
    if command == "make":
        subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)
    elif command == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
            "optional-dependencies"
        ]
        assert set(re.findall(r"\[(\w+)\]", line)) <= set(extras)
    elif command in {"python", "pytest"}:
        paths = [word.partition("::")[0] for word in arguments if "/" in word and " " not in word]
        assert [path for path in paths if not (ROOT / path).exists()] == []
        modules = [
            arguments[index + 1]
            for index, word in enumerate(arguments)
            if word == "-m" and command == "python"
        ]
        assert [name for name in modules if find_spec(name) is None] == []
    elif command == "spark-submit":
        submit = Path(pyspark.__file__).parent / "bin" / command
        shown = subprocess.run([submit, "--help"], capture_output=True, text=True, check=True).stderr
        assert [word for word in arguments if word.startswith("--") and word not in shown] == []
    elif command == "venv-pack":
        # tests/test_distribution.py runs it.
        shown = subprocess.run(
            [sys.executable, "-m", "venv_pack", "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert [word for word in arguments if word.startswith("-") and word not in shown] == []
    elif command == "export":
        subprocess.run(["bash", "-euc", line], check=True)
    else:
        assert (ROOT / command).is_file(), f"expected a command that this test knows; found {line!r}"


# -- Links --------


LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    wrong = []
    for target, anchor in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = (ROOT / page).parent / target if target else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            wrong.append(target + anchor)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_names_exist(page: str):
    folders = [ROOT, ROOT / "storage_core", (ROOT / page).parent]
    names = re.findall(
        r"`((?:[\w.-]+/)+[\w-]+\.(?:py|md|svg|txt|conf|properties|ipynb))`", (ROOT / page).read_text("utf-8")
    )
    assert [name for name in names if not any((folder / name).exists() for folder in folders)] == []


def test_the_readme_is_short():
    assert (ROOT / "README.md").stat().st_size <= 14 * 1024
