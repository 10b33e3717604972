"""Archives keep what a broker left."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from conformance import archives, pack

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A folder in the form of a case."""
    partition = tmp_path / "cases" / "tiny" / "logs" / "orders-0"
    partition.mkdir(parents=True)
    contents = {
        "00000000000000000000.log": b"abc",
        "00000000000000000000.index": b"",
        "../.kafka_cleanshutdown": b"",
    }
    files = {}
    for number, (name, content) in enumerate(contents.items()):
        (partition / name).write_bytes(content)
        files[name.removeprefix("../") if ".." in name else f"orders-0/{name}"] = [
            len(content),
            1600000000123 + number,
        ]
    (tmp_path / "cases" / "tiny" / "expected.json.gz").write_bytes(
        gzip.compress(json.dumps({"files": files, "partitions": {}}).encode())
    )
    return tmp_path / "cases" / "tiny"


def test_packed_case_unpacks_with_hidden_and_empty_files_and_times(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pack.main([str(case.parent), "--output", str(tmp_path)]) == 0
    monkeypatch.setattr(archives, "CASES_FOLDER", tmp_path)

    assert archives.case_names() == ["tiny"]
    logs, expected = archives.unpack_case("tiny", tmp_path / "unpacked")

    assert expected["partitions"] == {}
    assert (logs / ".kafka_cleanshutdown").stat().st_mtime_ns == 1600000000125 * 1_000_000
    assert (logs / "orders-0" / "00000000000000000000.index").read_bytes() == b""
    assert (logs / "orders-0" / "00000000000000000000.log").read_bytes() == b"abc"


def test_packing_twice_gives_the_same_bytes(case: Path, tmp_path: Path) -> None:
    archives.pack_case(case, tmp_path / "first.tar.xz")
    (case / "logs" / ".kafka_cleanshutdown").touch()
    archives.pack_case(case, tmp_path / "second.tar.xz")

    assert (tmp_path / "first.tar.xz").read_bytes() == (tmp_path / "second.tar.xz").read_bytes()


def test_restoring_times_notices_a_file_of_another_size(case: Path) -> None:
    with pytest.raises(ValueError, match="expected 4 bytes, found 3"):
        archives.restore_times(case / "logs", {"orders-0/00000000000000000000.log": [4, 0]})


def test_packing_refuses_links(case: Path, tmp_path: Path) -> None:
    (case / "logs" / "link").symlink_to("orders-0")

    with pytest.raises(ValueError, match="only regular files"):
        archives.pack_case(case, tmp_path / "x.tar.xz")


def test_a_folder_without_cases_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.main([str(tmp_path)]) == 2
    assert "found none" in capsys.readouterr().err
