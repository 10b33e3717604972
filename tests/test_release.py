"""What a release says of itself: version and date are the same wherever they stand."""

from __future__ import annotations

import re

import pytest
import yaml

from storage_core import __version__
from tests.versions import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture
def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_newest_section_of_the_changelog_is_this_version(citation):
    unreleased, newest, *_ = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert unreleased == "[Unreleased]"
    assert newest == f"[{__version__}] - {citation['date-released']}"


def test_a_citation_names_this_version_and_license(citation):
    assert citation["version"] == __version__
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_this_version_is_supported():
    minor = __version__.rpartition(".")[0]
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_workflow_runs_what_must_pass_on_the_oldest_python_and_java():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["checks"]["steps"]
    require = (ROOT / "conf" / "require.sh").read_text(encoding="utf-8")
    versions = {
        name: value for step in steps for name, value in step.get("with", {}).items() if "-version" in name
    }
    assert f"OLDEST_PYTHON_MINOR={versions['python-version'].removeprefix('3.')}\n" in require
    assert f"OLDEST_JAVA={versions['java-version']}\n" in require
    assert steps[-1]["run"] == ".ci/run"


def test_what_is_published_is_what_was_built_and_tested_and_nothing_else_can_publish():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {}
    assert [name for name, job in jobs.items() if job["permissions"].get("id-token") == "write"] == [
        "attest", "rehearse", "publish",
    ]  # fmt: skip
    commands = {name: [step.get("run") for step in job.get("steps", ())] for name, job in jobs.items()}
    assert [name for name, run in commands.items() if "make dist" in run] == ["build"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "checks": None, "build": "checks", "attest": "build", "rehearse": "attest", "publish": "attest",
    }  # fmt: skip
    for name in ("attest", "rehearse", "publish"):
        first = jobs[name]["steps"][0]
        assert first["uses"].startswith("actions/download-artifact@")
        assert first["with"]["name"] == "dist"
    assert {jobs[name]["environment"] for name in ("rehearse", "publish")} == {"rehearsal", "release"}
