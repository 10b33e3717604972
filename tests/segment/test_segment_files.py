from __future__ import annotations

import dataclasses
import os
import pickle
import struct

import pytest

from storage_core.errors import DataLossError, LogDirectoryError, StorageError
from storage_core.filesystem import FileSystem
from storage_core.segment import (
    AbortedTransaction,
    OffsetPosition,
    SegmentEnd,
    SegmentReader,
    TimestampOffset,
)
from storage_core.segment.index_file import rename_if_exists


@pytest.fixture
def segment(make_batch, make_segment):
    """Return a hundred batches of 169 bytes, offsets 50 to 149, with 24 entries in the offset index."""
    return make_segment(
        50, [make_batch(50 + n, (1000 + n,), value=bytes(100)) for n in range(100)], index_interval_bytes=600
    )


def open_segment(directory, base_offset=50, **options):
    return SegmentReader(FileSystem(), str(directory), base_offset, **options)


def test_nothing_is_touched_before_it_is_needed(tmp_path):
    segment = open_segment(tmp_path)
    statistics = segment.filesystem.statistics
    assert segment.log_path == f"{tmp_path}/00000000000000000050.log"
    assert (statistics.files_opened, statistics.files_examined) == (0, 0)


def test_status_is_asked_once(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    os.utime(opened.log_path, ns=(0, 1_700_000_000_123_456_789))
    status = os.stat(opened.log_path)
    assert opened.size_bytes == len(segment.log)
    assert opened.version == status.st_ino
    assert opened.modified_ms == 1_700_000_000_123
    assert opened.filesystem.statistics.files_examined == 1


def test_opening_tells_the_status(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    opened.open_log().close()
    assert opened.size_bytes == len(segment.log)
    assert opened.filesystem.statistics.files_examined == 0


def test_a_known_status_is_believed(tmp_path, segment):
    segment.write(tmp_path)
    known = open_segment(tmp_path).status
    with open(tmp_path / "00000000000000000050.log", "ab") as file:
        file.write(bytes(1000))
    opened = open_segment(tmp_path, known_status=known)
    assert opened.size_bytes == len(segment.log)
    assert len(list(opened.batches())) == 100
    assert opened.filesystem.statistics.files_examined == 0


def test_a_missing_log_file_is_told_apart(tmp_path):
    segment = open_segment(tmp_path)
    for ask in (
        lambda: segment.size_bytes,
        lambda: list(segment.batches()),
        lambda: segment.translate_offset(50),
        segment.end,
        lambda: segment.largest_timestamp_ms(is_complete=True),
    ):
        with pytest.raises(FileNotFoundError):
            ask()


def test_another_file_under_the_same_name_is_told_apart(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    assert opened.translate_offset(60) is not None
    with open(tmp_path / "new", "wb") as file:
        file.write(segment.log)
    os.replace(tmp_path / "new", opened.log_path)
    with pytest.raises(DataLossError, match="replaced"):
        opened.translate_offset(60)


def test_a_fifo_instead_of_a_log_is_refused(tmp_path):
    os.mkfifo(tmp_path / "00000000000000000050.log")
    with pytest.raises(LogDirectoryError):
        list(open_segment(tmp_path).batches())


def test_indexes_are_read_once(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    assert len(opened.offset_index) == len(segment.offset_entries) == 24
    assert opened.offset_index is opened.offset_index
    assert opened.time_index is opened.time_index
    assert opened.transaction_index is opened.transaction_index
    # The log file was only examined; a transaction index was looked for and is not there.
    assert opened.filesystem.statistics.files_opened == 2


def test_names_that_are_known_to_be_absent_are_not_looked_for(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path, file_names=frozenset({"00000000000000000050.log"}))
    assert opened.offset_index.problem == "the file is missing"
    assert opened.time_index.problem == "the file is missing"
    assert not opened.transaction_index.exists
    assert opened.filesystem.statistics.files_opened == 0


def test_names_that_are_known_are_read(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path, file_names=frozenset(os.listdir(tmp_path)))
    assert len(opened.offset_index) == 24
    assert len(opened.time_index) == 25


def test_indexes_can_be_left_alone(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path, use_indexes=False)
    assert opened.translate_offset(120).base_offset == 120
    assert opened.largest_timestamp(is_complete=True).timestamp_ms == 1099
    assert opened.filesystem.statistics.files_opened == 2


def test_a_suffix_belongs_to_every_file(tmp_path, segment):
    segment.write(tmp_path)
    for name in os.listdir(tmp_path):
        os.rename(tmp_path / name, tmp_path / (name + ".deleted"))
    names = frozenset(os.listdir(tmp_path))
    for file_names in (names, None):
        opened = open_segment(tmp_path, suffix=".deleted", file_names=file_names)
        assert len(opened.offset_index) == 24
        assert opened.translate_offset(99).base_offset == 99


def test_entries_after_the_size_that_was_planned_are_left_out(tmp_path, segment):
    segment.write(tmp_path)
    known = open_segment(tmp_path).status
    with open(tmp_path / "00000000000000000050.index", "ab") as file:
        file.write(struct.pack(">ii", 500, known.size_bytes))
    opened = open_segment(tmp_path, known_status=known)
    assert len(opened.offset_index) == 24


def test_only_a_file_of_more_than_a_page_has_indexes_worth_reading(tmp_path, make_batch, make_segment):
    for size, is_one_read in ((4096, True), (4097, False)):
        batch = make_batch(50, (5,))
        filler = make_batch(51, (6,), value=bytes(size - 2 * len(batch) - 1))
        small = make_segment(50, [batch, filler])
        small.write(tmp_path)
        opened = open_segment(tmp_path)
        assert len(small.log) == opened.size_bytes == size
        assert opened.is_one_read == is_one_read
        assert opened.translate_offset(51).base_offset == 51
        assert opened.filesystem.statistics.files_opened == (1 if is_one_read else 2)


# -- Renaming --------


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


# -- Values --------


VALUES = [
    OffsetPosition(8, 608),
    TimestampOffset(60, 7),
    AbortedTransaction(2, 2, 4, 0),
    SegmentEnd(10, 760),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_travel_to_other_processes(value):
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_do_not_change(value):
    field = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, 1)
