from __future__ import annotations

import pytest

from storage_core.checkpoint import CLEAN_SHUTDOWN_FILE, has_clean_shutdown_file
from storage_core.filesystem import FileSystem


@pytest.mark.parametrize("content", [b"", b'{"version":0,"brokerEpoch":9}', b"\0garbage"])
def test_only_its_existence_matters(tmp_path, content):
    assert not has_clean_shutdown_file(FileSystem(), str(tmp_path))
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(content)
    assert has_clean_shutdown_file(FileSystem(), str(tmp_path))


def test_it_has_kafkas_name():
    assert CLEAN_SHUTDOWN_FILE == ".kafka_cleanshutdown"
