from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem
from storage_core.segment.index_file import IndexFile


class FullDisk(FileSystem):
    """Has no room for another byte, once it is told so."""

    is_full = False

    def open_for_writing(self, path, *, create=False, **options):
        file = super().open_for_writing(path, create=create, **options)
        write_at = file.write_at

        def write(pieces, position_bytes):
            if self.is_full:
                raise StorageError("No space left.", path=path)
            write_at(pieces, position_bytes)

        file.write_at = write
        return file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0.index"


class Entries(IndexFile[bytes]):
    """Eight bytes each."""

    entry_size_bytes = 8
    first_possible_entry = b""

    def parse(self, entry):
        return entry

    def add(self, entries):
        self.write(entries, entries[-8:])


def open_entries(path, max_size_bytes=100, *, filesystem=None, is_zero_an_entry=False):
    entries = Entries(filesystem or FileSystem(), str(path), 0, max_size_bytes)
    entries.is_zero_an_entry = is_zero_an_entry
    return entries


def test_nothing_appears_before_it_is_needed(path):
    entries = open_entries(path)
    assert (len(entries), entries.capacity, entries.is_open) == (0, 12, False)
    entries.rename(f"{path}.deleted")
    entries.close()
    assert entries.delete() is False
    assert list(path.parent.iterdir()) == []


def test_a_new_file_has_its_full_size_rounded_down_to_whole_entries(path):
    open_entries(path, 103).open()
    assert path.read_bytes() == bytes(96)


def test_entries_are_written_back_to_back_before_zeros(path):
    entries = open_entries(path)
    entries.add(b"entry 01")
    entries.add(b"entry 02entry 03")
    assert path.read_bytes() == b"entry 01entry 02entry 03" + bytes(72)
    assert [entries.entry(number) for number in range(3)] == [b"entry 01", b"entry 02", b"entry 03"]


def test_trim_and_resize_keep_the_entries_and_say_whether_they_did_anything(path):
    entries = open_entries(path)
    entries.add(b"entry 01entry 02")
    assert entries.trim() is True
    assert path.read_bytes() == b"entry 01entry 02"
    assert (len(entries), entries.capacity) == (2, 2)
    assert entries.trim() is False
    assert entries.resize() is True
    assert path.read_bytes() == b"entry 01entry 02" + bytes(80)
    assert (len(entries), entries.capacity) == (2, 12)
    assert entries.resize() is False


def test_an_existing_file_has_room_for_what_its_size_says(path):
    path.write_bytes(b"entry 01entry 02")
    entries = open_entries(path)
    assert (len(entries), entries.capacity) == (2, 2)
    path.write_bytes(b"")
    entries = open_entries(path)
    assert (len(entries), entries.capacity) == (0, 0)
    entries.open()
    assert path.read_bytes() == b""


@given(count=st.integers(1, 40), zeros=st.integers(0, 40), is_first_zero=st.booleans())
def test_zeros_after_the_entries_are_no_entries(tmp_path_factory, count, zeros, is_first_zero):
    path = tmp_path_factory.mktemp("entries") / "0.index"
    content = [number.to_bytes(8, "big") for number in range(1, count + 1)]
    if is_first_zero and count > 1:
        content[0] = bytes(8)
    path.write_bytes(b"".join(content) + bytes(8 * zeros))
    entries = open_entries(path)
    assert (len(entries), entries.capacity) == (count, count + zeros)


@pytest.mark.parametrize(("size", "is_zero_an_entry", "count"), [(8, False, 0), (8, True, 1), (16, True, 0)])
def test_a_file_of_zeros_may_be_one_entry(path, size, is_zero_an_entry, count):
    path.write_bytes(bytes(size))
    assert len(open_entries(path, is_zero_an_entry=is_zero_an_entry)) == count


@pytest.mark.parametrize("zeros", [0, 3])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_last_entry_is_read_along_with_the_count(path, count, zeros):
    path.write_bytes(b"".join(b"entry %02d" % number for number in range(count)) + bytes(8 * zeros))
    filesystem = FileSystem()
    entries = open_entries(path, filesystem=filesystem)
    assert entries.last_entry == (b"entry %02d" % (count - 1) if count else b"")
    assert len(entries) == count
    # Entries that fill their file, as in a closed segment, are not searched for an end.
    assert filesystem.statistics.files_opened == (2 if count and zeros else 1)
    assert entries.last_entry == (b"entry %02d" % (count - 1) if count else b"")


def test_without_a_file_there_is_no_last_entry(path):
    entries = open_entries(path)
    assert entries.last_entry == b""
    entries.add(b"entry 01")
    assert entries.last_entry == b"entry 01"


def test_truncate_leaves_zeros_and_the_size(path):
    entries = open_entries(path)
    entries.add(b"entry 01entry 02entry 03")
    entries.truncate(1)
    assert path.read_bytes() == b"entry 01" + bytes(88)
    entries.truncate(2)
    assert len(entries) == 1
    entries.add(b"entry 04")
    assert path.read_bytes() == b"entry 01entry 04" + bytes(80)


@pytest.mark.parametrize("how", ["open", "write"])
def test_resize_on_write_leaves_the_file_alone_until_then(path, how):
    path.write_bytes(b"entry 01")
    entries = open_entries(path)
    entries.resize_on_write()
    assert (len(entries), entries.capacity) == (1, 12)
    entries.trim()
    entries.flush()
    entries.close()
    assert path.read_bytes() == b"entry 01"
    assert (len(entries), entries.capacity) == (1, 12)
    if how == "open":
        entries.open()
        assert path.read_bytes() == b"entry 01" + bytes(88)
    entries.add(b"entry 02")
    assert path.read_bytes() == b"entry 01entry 02" + bytes(80)
    entries.trim()
    assert (len(entries), entries.capacity) == (2, 2)


@pytest.mark.parametrize("content", [b"", b"entry 01", b"entry 01" + bytes(88), b"x" * 200])
def test_reset_empties_the_file_and_has_room_for_its_full_size(path, content):
    path.write_bytes(content)
    entries = open_entries(path)
    entries.reset()
    assert (len(entries), entries.capacity, path.read_bytes()) == (0, 12, b"")
    entries.add(b"entry 02")
    assert path.read_bytes() == b"entry 02"
    assert entries.trim() is False
    assert entries.resize() is True
    assert path.read_bytes() == b"entry 02" + bytes(88)


def test_search_finds_the_last_entry_that_goes_before(path):
    entries = open_entries(path)
    assert entries.search(lambda entry: True) == (-1, b"")
    entries.add(b"00000002000000040000000600000008")
    for wanted, number in [(b"1", -1), (b"2", 0), (b"3", 0), (b"4", 1), (b"8", 3), (b"9", 3)]:
        found = entries.search(lambda entry, wanted=wanted: entry[-1:] <= wanted)
        assert found == (number, entries.entry(number) if number >= 0 else b"")


def test_search_in_a_file_that_was_cut_meanwhile(path):
    entries = open_entries(path)
    entries.add(b"000000020000000400000006")
    path.write_bytes(b"000000020000")
    assert entries.search(lambda entry: True) == (0, b"00000002")


def test_what_could_not_be_written_does_not_count(path):
    disk = FullDisk()
    entries = open_entries(path, filesystem=disk)
    entries.add(b"entry 01")
    disk.is_full = True
    with pytest.raises(StorageError, match="No space left"):
        entries.add(b"entry 02")
    assert len(entries) == 1
    disk.is_full = False
    entries.add(b"entry 03")
    assert path.read_bytes()[:16] == b"entry 01entry 03"


def test_entries_that_are_taken_back_are_written_over(path):
    entries = open_entries(path)
    entries.add(b"entry 01entry 02")
    entries.forget_after(1)
    assert len(entries) == 1
    entries.forget_after(5)
    assert len(entries) == 1
    entries.add(b"entry 03")
    assert path.read_bytes()[:24] == b"entry 01entry 03" + bytes(8)


def test_close_leaves_the_file_as_it_is_and_writing_opens_it_again(path):
    entries = open_entries(path)
    entries.add(b"entry 01")
    entries.close()
    entries.close()
    assert not entries.is_open
    assert path.stat().st_size == 96
    entries.add(b"entry 02")
    assert path.read_bytes()[:16] == b"entry 01entry 02"


def test_rename_and_delete(path):
    entries = open_entries(path)
    entries.add(b"entry 01")
    entries.rename(f"{path}.deleted")
    assert not path.exists()
    entries.add(b"entry 02")
    assert path.with_name("0.index.deleted").read_bytes()[:16] == b"entry 01entry 02"
    assert entries.delete() is True
    assert entries.delete() is False
    assert len(entries) == 0


def test_flush_makes_the_file(path):
    open_entries(path).flush()
    assert path.read_bytes() == bytes(96)
