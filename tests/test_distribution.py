"""What users install: the contents and metadata of wheel and sdist, and the page that package indexes show.

`make versions` installs the wheel with each extra into an empty environment.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from readme_renderer import markdown

import spark_segmentlog
import storage_core
from storage_core import __version__
from tests.versions import MODULES_OF_EXTRAS, ROOT, build

PACKAGES = ("spark_segmentlog", "storage_core")
NAME = f"spark_segmentlog-{__version__}"
DATA = f"{NAME}.data/data/"
DEPENDENCIES = ("crc32c", "numpy", "pyarrow", "pyspark")
CONFIGURATION = ("logging.json", "segmentlog.properties", "spark-defaults.conf")

# Every module, so that none is missing which is imported when it is needed.
PROGRAM = """
import importlib, json, pkgutil, sys
import pyspark_segmentlog, spark_segmentlog, storage_core

for package in (spark_segmentlog, storage_core):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
print(json.dumps({
    "installed": [module.__file__.startswith(sys.prefix)
                  for module in (pyspark_segmentlog, spark_segmentlog, storage_core)],
    "sources": pyspark_segmentlog.__all__,
    "orders": storage_core.read_table(sys.argv[1], subscribe="orders").num_rows,
}))
"""


@pytest.fixture(scope="module")
def sdist(distribution):
    return distribution("sdist")


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Return an environment with the wheel alone, that borrows the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    install(wheel, folder)
    borrow_dependencies(folder)
    return folder


def install(wheel, folder):
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--isolated", "--quiet", "--python", folder]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)


def borrow_dependencies(folder):
    (packages,) = folder.glob("lib/python*/site-packages")
    dependencies = {Path(find_spec(name).origin).parents[1] for name in DEPENDENCIES}
    (packages / "dependencies.pth").write_text("\n".join(map(str, dependencies)), encoding="utf-8")


def sources():
    """Return the files of the packages."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    names = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    return names | {"pyspark_segmentlog.py"}


# -- Contents --------


def test_the_wheel_has_the_packages_the_configuration_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert wheel.name == f"{NAME}-py3-none-any.whl"
    assert len(names) == len(set(names))
    assert set(names) == sources() | {f"{DATA}share/segmentlog/{name}" for name in CONFIGURATION} | {
        f"{NAME}.dist-info/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_data_files_are_found_in_a_zip_on_the_path(wheel, tmp_path):
    program = (
        "from storage_core.internal_records import internal_records\n"
        "print(internal_records.__file__, len(internal_records.GROUP_COORDINATOR))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(wheel)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    file, count = done.stdout.split()
    assert (file.startswith(str(wheel)), int(count)) == (True, 44)


def test_the_sdist_has_what_the_wheel_is_built_from(sdist):
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}
    configuration = {f"conf/{path.name}" for path in (ROOT / "conf").iterdir()}
    about = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert names == sources() | configuration | about
    assert sdist.stat().st_size < 2 * 1024 * 1024


def test_the_sdist_builds_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / "wheel", tmp_path / NAME)
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


# -- Metadata --------


def test_what_an_index_shows_beside_the_page(metadata):
    assert metadata["Name"] == "spark-segmentlog"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert [value for _, value in metadata.items() if "://" in value] == []


def test_the_version_has_one_place():
    assert spark_segmentlog.__version__ is storage_core.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "storage_core/__init__.py"


def test_the_base_package_needs_three_others_and_no_spark(metadata):
    needed = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
    assert [re.split("[<>=]", each)[0] for each in needed] == ["crc32c", "numpy", "pyarrow"]


def test_the_extras_are_those_that_environments_are_made_for(metadata):
    assert {"", *metadata.get_all("Provides-Extra")} == set(MODULES_OF_EXTRAS)


def test_documents_name_extras_that_exist(metadata):
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "conf" / "package.md"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in documents)
    named = {
        name for names in re.findall(r"spark-segmentlog\[([\w,-]+)\]", text) for name in names.split(",")
    }
    assert "spark" in named
    assert named <= set(metadata.get_all("Provides-Extra"))


# -- The page --------


class Page(HTMLParser):
    """The addresses of links and pictures, the places in the page that they may name, and the tags."""

    def __init__(self, html):
        super().__init__()
        self.addresses, self.places, self.tags = [], set(), set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in {"href", "src"}]
        self.places |= {f"#{value}" for name, value in attrs if name == "id"}


def test_an_index_renders_the_page_without_dead_links(metadata):
    page = metadata.get_payload(decode=True).decode()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert page == (ROOT / "conf" / "package.md").read_text(encoding="utf-8")
    rendered = Page(markdown.render(page))
    assert {"h1", "p", "pre"} <= rendered.tags
    elsewhere = set(rendered.addresses) - rendered.places
    assert [address for address in elsewhere if not address.startswith("https://")] == []


# -- Installing --------


def assert_imports_without_a_warning_and_reads(environment):
    interpreter = environment / "bin" / "python"
    command = [interpreter, "-I", "-W", "error", "-c", PROGRAM, ROOT / "examples" / "data"]
    done = subprocess.run(command, cwd=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "installed": [True] * 3,
        "sources": ["DefaultSource"],
        "orders": 24_000,
    }


def test_the_installed_wheel_imports_without_a_warning_and_reads(environment):
    assert_imports_without_a_warning_and_reads(environment)


def test_an_environment_packed_as_the_documents_say_works_elsewhere(wheel, tmp_path):
    install(wheel, tmp_path / "environment")
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (arguments,) = re.findall("^environment/bin/venv-pack (.*)$", page, re.MULTILINE)
    command = [sys.executable, "-m", "venv_pack", "--quiet", *shlex.split(arguments)]
    subprocess.run(command, cwd=tmp_path, check=True)
    shutil.rmtree(tmp_path / "environment")
    with tarfile.open(tmp_path / "environment.tar.gz") as archive:
        archive.extractall(tmp_path / "elsewhere", filter="tar")
    borrow_dependencies(tmp_path / "elsewhere")
    assert_imports_without_a_warning_and_reads(tmp_path / "elsewhere")


def test_the_configuration_files_are_installed_where_the_documents_say(environment):
    installed = environment / "share" / "segmentlog"
    assert sorted(path.name for path in installed.iterdir()) == sorted(CONFIGURATION)
    for name in CONFIGURATION:
        assert (installed / name).read_bytes() == (ROOT / "conf" / name).read_bytes()
    for document in ("README.md", "conf/package.md"):
        text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
        assert "`share/segmentlog` below `sys.prefix`" in text


def test_the_wheel_has_the_configuration_files_that_the_readme_names():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\(conf/([\w.-]+)\)", text))
    assert named
    assert named <= set(CONFIGURATION)
