from __future__ import annotations

import pytest

from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem
from storage_core.segment.index_file import rename_if_exists


def test_a_file_gets_another_name(tmp_path):
    tmp_path.joinpath("a").write_bytes(b"1")
    tmp_path.joinpath("b").write_bytes(b"2")
    rename_if_exists(FileSystem(), f"{tmp_path}/a", f"{tmp_path}/b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"1"}


def test_a_file_that_is_not_there_does_not_appear(tmp_path):
    tmp_path.joinpath("b").write_bytes(b"2")
    rename_if_exists(FileSystem(), f"{tmp_path}/a", f"{tmp_path}/b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"2"}


class Refusing(FileSystem):
    def rename(self, source, target):
        raise StorageError("No space left on this disk.", path=source)


def test_the_same_name_is_no_rename(tmp_path):
    rename_if_exists(Refusing(), f"{tmp_path}/a", f"{tmp_path}/a")


def test_any_other_failure_is_one(tmp_path):
    with pytest.raises(StorageError):
        rename_if_exists(Refusing(), f"{tmp_path}/a", f"{tmp_path}/b")
