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
from tests.executed_document import Block, assert_shown, blocks_of, unrun_code_of
from tests.spark_settings import environment_of_a_user

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/conformance/*.md"))
)
NEEDS_A_BROKER = "docs/load-into-kafka.md"

# Each page finds what a user finds who begins with it: no names, and no files but the examples. Its pictures are kept.
RUN_PAGES = """
import json, pathlib, shutil, sys

for page, blocks in json.load(sys.stdin):
    namespace = {"__name__": "__main__"}
    for line, text in blocks:
        print(chr(0), flush=True)
        exec(compile("\\n" * line + text, page, "exec"), namespace)
    for path in pathlib.Path().iterdir():
        if path.suffix == ".svg":
            path.rename(path.absolute().parent.parent / path.name)
        elif path.is_file():
            path.unlink()
        elif not path.is_symlink():
            shutil.rmtree(path)
"""
# Pictures that are the same on each day, in fonts of the reader.
MATPLOTLIB_SETTINGS = "backend: svg\nsvg.hashsalt: segmentlog\nsvg.fonttype: none\n"


def blocks_in(page: str, language: str) -> list[Block]:
    if page == NEEDS_A_BROKER:
        return []
    blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    return [block for block in blocks if block.language == language]


def needs_spark(page: str) -> bool:
    return any("SparkSession" in block.text for block in blocks_in(page, "python"))


PAGES_WITH_CODE = [page for page in PAGES if blocks_in(page, "python")]
PAGES_WITH_SPARK = [page for page in PAGES_WITH_CODE if needs_spark(page)]


def assert_pages_print_what_they_show(pages: list[str], folder: Path) -> None:
    """Run the blocks of pages, one page after the other in one interpreter whose directory has ``examples``."""
    blocks = [(page, block) for page in pages for block in blocks_in(page, "python")]
    home = folder / "page"
    home.mkdir()
    (home / "examples").symlink_to(EXAMPLES)
    settings = folder / "matplotlibrc"
    settings.write_text(MATPLOTLIB_SETTINGS)
    done = subprocess.run(
        [sys.executable, "-c", RUN_PAGES],
        input=json.dumps(
            [(page, [(block.line, block.text) for block in blocks_in(page, "python")]) for page in pages]
        ),
        cwd=home,
        env={**environment_of_a_user(), "MATPLOTLIBRC": str(settings), "SOURCE_DATE_EPOCH": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (page, block), printed in zip(blocks, done.stdout.split("\0\n")[1:], strict=True):
        assert_shown(printed, block)
        assert block.shown or not printed, f"{page}, line {block.line}: the page does not show\n{printed}"
    for picture in folder.glob("*.svg"):
        shown = ROOT / "docs" / picture.name
        assert picture.read_text() == shown.read_text(), f"copy {picture} to {shown}"


@pytest.mark.parametrize("page", [page for page in PAGES_WITH_CODE if page not in PAGES_WITH_SPARK])
def test_the_code_of_a_page_prints_what_the_page_shows(page: str, tmp_path: Path):
    assert_pages_print_what_they_show([page], tmp_path)


@pytest.mark.spark
@pytest.mark.thorough
def test_the_code_of_pages_with_spark_prints_what_they_show(tmp_path: Path):
    assert_pages_print_what_they_show(PAGES_WITH_SPARK, tmp_path)


def test_code_that_cannot_run_here_compiles():
    blocks = [(page, text) for page in PAGES for text in unrun_code_of((ROOT / page).read_text("utf-8"))]
    assert blocks
    for page, text in blocks:
        compile(text, page, "exec")


def commands() -> list[str]:
    """Return each command line of a shell block, but of those that tests/cli/test_documented_commands.py runs."""
    blocks = [block for page in PAGES for block in blocks_in(page, "sh")]
    text = "".join(block.text for block in blocks if not is_about_the_command(block))
    lines = re.sub(r"\\\n\s*", "", text).replace(" && ", "\n").splitlines()
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
    elif command in {"python", "python3", "pytest"}:
        words = [word for word in arguments if "/" in word and " " not in word and not word.startswith("~")]
        paths = [word.partition("::")[0] for word in words]
        assert [path for path in paths if not (ROOT / path).exists()] == []
        modules = [
            arguments[index + 1]
            for index, word in enumerate(arguments)
            if word == "-m" and command != "pytest"
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
    elif command == "source":
        # What `python3 -m venv` makes.
        assert line.endswith("/bin/activate")
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
    assert (ROOT / "README.md").stat().st_size <= 12 * 1024
