"""What commands write of private directories and files is as private."""

from __future__ import annotations

import stat

import pyarrow as pa
import pytest

from storage_core import LogDirectory
from tests.values.registry_records import record_key, schema_value


def modes(path):
    paths = [path, *path.rglob("*")]
    return {str(each.relative_to(path)): stat.S_IMODE(each.stat().st_mode) for each in paths}


@pytest.fixture
def out(tmp_path):
    """Make a folder where others may look."""
    tmp_path.chmod(0o755)
    (tmp_path / "out").mkdir(mode=0o755)
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("directory", "file", "expected"),
    [(0o700, 0o644, 0o700), (0o755, 0o600, 0o700), (0o750, 0o640, 0o750), (0o755, 0o644, 0o755)],
)
@pytest.mark.parametrize(
    "command",
    [["convert", "--quiet", "--to"], ["index", "rebuild", "--quiet", "--all", "--to"]],
    ids=" ".join,
)
def test_a_new_directory(segmentlog, tmp_path, out, command, directory, file, expected):
    root = tmp_path / "logs"
    with LogDirectory.open(root) as logs:
        logs.create("t").append(pa.table({"value": [b"v"]}))
    for path in [root, *root.rglob("*")]:
        path.chmod(directory if path.is_dir() else file)
    name, *flags = command
    arguments = [name, flags.pop(0), root, *flags] if name == "index" else [name, root, *flags]
    assert segmentlog(*arguments, out / "made").status == 0
    found = modes(out / "made")
    assert all(mode & ~expected == 0 for mode in found.values()), found
    assert found["."] == expected


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o700), (0o640, 0o750), (0o644, 0o755)])
def test_exported_schemas(segmentlog, tmp_path, out, mode, expected):
    root = tmp_path / "logs"
    with LogDirectory.open(root) as logs:
        logs.create("_schemas").append(
            pa.table({"key": [record_key("t", 1)], "value": [schema_value("t", 1, 1)]})
        )
    for path in root.rglob("*.log"):
        path.chmod(mode)
    assert segmentlog("schemas", root, "--export", out / "made").status == 0
    found = modes(out / "made")
    assert set(found) == {".", "1.avsc", "schemas.json"}
    assert all(each & ~expected == 0 for each in found.values()), found
    assert found["."] == expected


@pytest.mark.parametrize(("mode", "expected"), [(0o700, 0o600), (0o755, 0o644)])
def test_a_report(segmentlog, tmp_path, out, mode, expected):
    root = tmp_path / "logs"
    with LogDirectory.open(root) as logs:
        logs.create("t").append(pa.table({"value": [b"v"]}))
    root.chmod(mode)
    assert segmentlog("report", root, "--quiet", "--output", out / "page.html").status == 0
    assert modes(out)["page.html"] == expected
