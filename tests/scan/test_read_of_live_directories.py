"""Reading while a broker works on the directory: consistent rows, or an error that says what is lost."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
import time
from pathlib import Path

import pytest

from storage_core import read_table
from storage_core.errors import DataLossError, UnreadableError
from tests.faults.observed_filesystem import before_each_call


@pytest.fixture
def live(log_root, small_windows):
    """Segments 0 to 39, 40 to 79, 80 to 119 of ten offsets a batch, read a batch at a time."""
    small_windows(100)
    log = log_root.rows()
    for number in range(12):
        log.values(10, b"x" * 100)
        if number in (3, 7):
            log.roll()
    return log.write()


@pytest.fixture
def compacted(live, new_log_root):
    """Return every second batch of the first two segments, in one file."""
    log = new_log_root().rows()
    for number in range(8):
        log.values(10, b"x" * 100) if number % 2 else log.skip(10)
    return log.write().log_path().read_bytes()


class TestLive:
    """Each happens between planning and reading, or when the first rows were read already."""

    @pytest.fixture(params=["before the reading", "during the reading"])
    def read(self, request, live, scan):
        def read(happen, **options):
            planned = scan(live.path, columns=["offset", "value"], **options)
            batches = planned.batches()
            found = next(batches)["offset"].to_pylist() if request.param == "during the reading" else []
            happen()
            for each in batches:
                found += each["offset"].to_pylist()
            return found

        read.is_during = request.param == "during the reading"
        return read

    def replace(self, path, content):
        new = path.with_name(path.name + ".swap")
        new.write_bytes(content)
        os.replace(new, path)

    def test_appended_to(self, live, read):
        def append():
            live.values(10)
            live.write()

        assert read(append) == list(range(120))

    def test_rolled(self, live, read):
        def roll():
            live.roll().values(10)
            live.write()

        assert read(roll) == list(range(120))

    def test_replaced_by_the_same_content(self, live, read):
        def replace():
            for base_offset in (0, 40, 80):
                self.replace(live.log_path(base_offset), live.log_path(base_offset).read_bytes())

        assert read(replace) == list(range(120))

    def test_compacted_while_the_old_files_await_their_removal(self, live, read, compacted):
        def compact():
            for base_offset in (0, 40):
                path = live.log_path(base_offset)
                os.replace(path, f"{path}.deleted")
            live.log_path().write_bytes(compacted)

        assert read(compact) == list(range(120))

    def test_compacted_and_the_old_files_gone(self, live, read, compacted):
        def compact():
            self.replace(live.log_path(0), compacted)
            live.log_path(40).unlink()

        kept = [offset for offset in range(120) if offset >= 80 or offset // 10 % 2]
        # A file that is open is read to its end.
        expected = [*range(40), *(offset for offset in kept if offset >= 40)] if read.is_during else kept
        assert read(compact) == expected

    def test_compacted_into_a_file_with_the_inode_of_the_old_one(self, live, scan, compacted):
        """File systems give the inode of a removed file to the next one that is made."""
        planned = scan(live.path, columns=["offset"], start=20, end=40)
        with live.log_path().open("r+b") as file:
            file.truncate(file.write(compacted))
        live.log_path(40).unlink()
        assert planned.offsets() == list(range(30, 40))

    def test_compacted_with_indexes_of_before(self, live, read, compacted):
        for base_offset in (0, 40):
            live.log_path(base_offset).with_suffix(".index").write_bytes(struct.pack(">ii", 30, 100))
        self.test_compacted_and_the_old_files_gone(live, read, compacted)

    def test_renamed_for_deletion(self, live, read):
        def rename():
            for base_offset in (0, 40):
                live.log_path(base_offset).rename(f"{live.log_path(base_offset)}.deleted")

        assert read(rename) == list(range(120))

    def test_deleted_by_retention(self, live, read):
        def delete():
            live.log_path(0).unlink()
            live.log_path(40).unlink()

        with pytest.raises(DataLossError, match="log now has offsets 80 to 120") as caught:
            read(delete)
        first = 40 if read.is_during else 0
        assert (caught.value.path, caught.value.offset) == (str(live.path), first)
        assert caught.value.last_offset == first + 39

    def test_deleted_by_retention_and_loss_allowed(self, live, read, caplog):
        def delete():
            live.log_path(0).unlink()
            live.log_path(40).unlink()

        assert read(delete, fail_on_data_loss=False) == [*range(40 * read.is_during), *range(80, 120)]
        assert "The read continues with the records left" in caplog.text

    def test_deleted_records(self, live, read, log_root):
        """What is logically deleted after planning is still there."""

        def delete_records():
            log_root.checkpoint("log-start-offset-checkpoint", {("events", 0): 55})

        assert read(delete_records) == list(range(120))

    @pytest.mark.parametrize("fail_on_data_loss", [True, False])
    def test_truncated(self, live, read, fail_on_data_loss):
        """As a follower does with what a new leader does not have."""

        def truncate():
            os.truncate(live.log_path(40), live.places[40][2][0])
            live.log_path(80).unlink()

        if fail_on_data_loss:
            with pytest.raises(DataLossError, match="log now has offsets 0 to 60") as caught:
                read(truncate)
            assert (caught.value.offset, caught.value.last_offset) == (40, 79)
        else:
            assert read(truncate, fail_on_data_loss=False) == list(range(60))

    def test_truncated_within_the_file_that_is_read(self, live, scan):
        planned = scan(live.path, columns=["offset"], start=80, end=120)
        batches = planned.batches()
        assert next(batches)["offset"].to_pylist() == list(range(80, 90))
        os.truncate(live.log_path(80), live.places[80][2][0])
        # What was read ahead is given, then the end is missed.
        with pytest.raises(DataLossError, match="offsets 100 to 119") as caught:
            list(batches)
        assert (caught.value.offset, caught.value.last_offset) == (100, 119)

    @pytest.mark.parametrize("fail_on_data_loss", [True, False])
    @pytest.mark.parametrize("by_renaming", [True, False])
    def test_the_topic_deleted(self, live, read, fail_on_data_loss, by_renaming):
        def delete():
            if by_renaming:
                live.path.rename(live.path.with_name("events-0.0123456789abcdef0123456789abcdef-delete"))
            else:
                shutil.rmtree(live.path)

        if fail_on_data_loss:
            with pytest.raises(DataLossError, match="directory gone") as caught:
                read(delete)
            assert caught.value.path == str(live.path)
        else:
            assert read(delete, fail_on_data_loss=False) == list(range(40 * read.is_during))

    def test_every_file_deleted_and_the_directory_left(self, live, read):
        def delete():
            for path in live.path.iterdir():
                path.unlink()

        with pytest.raises(DataLossError):
            read(delete)

    def test_a_user_who_may_not_read_it_any_more(self, live, read, monkeypatch):
        opening = os.open

        def refuse(path, *arguments, **options):
            if str(path).endswith(".log"):
                raise PermissionError(13, "Permission denied")
            return opening(path, *arguments, **options)

        with pytest.raises(UnreadableError, match="may not open"):
            read(lambda: monkeypatch.setattr(os, "open", refuse))


def test_compacted_between_the_listing_and_the_first_look(live, compacted):
    """The first two segments become one before they are opened."""
    first, second = (live.path / f"{base_offset:020d}.log" for base_offset in (0, 40))

    def compact(call, path):
        if path == str(first) and second.exists():
            for file in (first, second):
                file.rename(f"{file}.deleted")
            first.write_bytes(compacted)

    table = read_table(live.path, filesystem=before_each_call(compact), columns=["offset"])
    offsets = table["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    # What the cleaner has removed may still be read, what it has kept must be.
    kept = [offset for offset in range(120) if offset >= 80 or offset // 10 % 2]
    assert set(kept) <= set(offsets) <= set(range(120))


def replaced_again_and_again(every=1):
    """Replace each segment by the time it is opened. Also return the paths that were opened."""
    opened = []

    def replace(call, path):
        if call == "open" and path.endswith(".log"):
            opened.append(path)
            if len(opened) % every == 0:
                # The next file would get the inode of one that is gone, and be taken for it.
                os.link(path, f"{path}.{len(opened)}")
                shutil.copyfile(path, path + ".new")
                os.replace(path + ".new", path)

    return before_each_call(replace), opened


def test_endless_replacement_is_an_error_at_last(live, scan):
    planned = scan(live.path, columns=["offset"])
    planned.filesystem, opened = replaced_again_and_again()
    with pytest.raises(DataLossError, match="replaced repeatedly"):
        planned.rows()
    assert len(opened) < 50


def test_endless_replacement_with_loss_allowed(live, scan, caplog):
    planned = scan(live.path, columns=["offset"], fail_on_data_loss=False)
    planned.filesystem, _ = replaced_again_and_again()
    assert planned.offsets() == []
    assert caplog.text.count("replaced repeatedly") == 3


@pytest.mark.parametrize("every", [5, 7, 11, 16])
def test_frequent_replacement_loses_nothing(live, scan, every):
    planned = scan(live.path, columns=["offset"])
    planned.filesystem, _ = replaced_again_and_again(every)
    assert planned.offsets() == list(range(120))


def test_an_early_end_closes_the_file(live, scan, count_descriptors):
    planned = scan(live.path)
    before = count_descriptors()
    batches = planned.batches()
    next(batches)
    assert count_descriptors() == before + 1
    batches.close()
    assert count_descriptors() == before


# -- A broker at work --------


class Broker:
    """Appends, rolls, deletes and compacts, renaming files in a broker's order.

    Each batch has five records whose values are their offsets. Compaction drops every fourth batch.
    """

    def __init__(self, path, batch_of):
        self.log_start_offset = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._path = path
        self._batch_of = batch_of
        self._random = random.Random(7)
        self._segments = []  # (base offset, [(number, bytes) of every batch])
        self._trash = []
        self._next_offset = 0
        self._halt = threading.Event()
        self.is_planning = False
        self._roll()

    def start(self):
        self._thread.start()

    def _run(self):
        while not self._halt.wait(0.002):
            for _ in range(self._random.randrange(10)):
                self._append()
            choice = self._random.random()
            if choice < 0.2:
                self._apply_retention()
            elif choice < 0.5:
                self._compact()
            # A broker waits a minute: no plan takes as long.
            while self._trash and not self.is_planning and self._trash[0][0] < time.monotonic():
                Path(self._trash.pop(0)[1]).unlink(missing_ok=True)

    def stop(self):
        self._halt.set()
        self._thread.join()

    def _file(self, base_offset, suffix=".log"):
        return self._path / f"{base_offset:020d}{suffix}"

    def _roll(self):
        self._segments.append((self._next_offset, []))
        self._file(self._next_offset).touch()

    def _append(self):
        base_offset, batches = self._segments[-1]
        number = self._next_offset // 5
        content = self._batch_of(self._next_offset)
        # Readers may see any part of an append.
        middle = self._random.randrange(len(content))
        with self._file(base_offset).open("ab", buffering=0) as file:
            file.write(content[:middle])
            file.write(content[middle:])
        batches.append((number, content))
        self._next_offset += 5
        if len(batches) == 40:
            self._roll()

    def _delete(self, base_offset):
        deleted = self._file(base_offset, ".log.deleted")
        self._file(base_offset).rename(deleted)
        self._trash.append((time.monotonic() + 0.2, deleted))

    def _apply_retention(self):
        if len(self._segments) > 12:
            base_offset, _ = self._segments.pop(0)
            self.log_start_offset = self._segments[0][0]
            self._delete(base_offset)

    def _compact(self):
        index = self._random.randrange(12)
        if index + 2 >= len(self._segments):
            return
        (first, batches), (second, more) = self._segments[index : index + 2]
        kept = [(number, content) for number, content in batches + more if number % 4]
        if len(kept) > 60:
            return
        cleaned, swap = self._file(first, ".log.cleaned"), self._file(first, ".log.swap")
        cleaned.write_bytes(b"".join(content for _, content in kept))
        cleaned.rename(swap)
        self._delete(second)
        self._delete(first)
        swap.rename(self._file(first))
        self._segments[index : index + 2] = [(first, kept)]


@pytest.fixture
def broker(log_root, batch_bytes, record_bytes):
    def batch_of(offset):
        records = [record_bytes(delta, 0, None, b"%d" % (offset + delta)) for delta in range(5)]
        return batch_bytes(offset, records, last_offset_delta=4)

    path = log_root.path / "events-0"
    path.mkdir()
    broker = Broker(path, batch_of)
    broker.start()
    yield broker
    broker.stop()


def check_reads(broker, path, scan, seconds):
    choices = random.Random(11)
    until = time.monotonic() + seconds
    split_options = [{}, {"min_partitions": 7}, {"use_indexes": False}, {"max_bytes_per_partition": 3000}]
    while time.monotonic() < until:
        broker.is_planning = True
        planned = scan(
            path, columns=["offset", "value"], fail_on_data_loss=False, **choices.choice(split_options)
        )
        broker.is_planning = False
        time.sleep(choices.choice([0, 0.01, 0.3]))
        rows = [row for each in planned.batches() for row in each.to_pylist()]
        log_start_offset = broker.log_start_offset
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(set(offsets))
        assert all(row["value"] == b"%d" % row["offset"] for row in rows)
        (partition,) = planned.plan.partitions
        first = max(partition.start_offset, log_start_offset)
        never_dropped = {offset for offset in range(first, partition.end_offset) if offset // 5 % 4}
        assert never_dropped <= set(offsets)


def test_a_broker_at_work(broker, log_root, scan, small_windows):
    small_windows(2000)
    check_reads(broker, log_root.path / "events-0", scan, 2)


@pytest.mark.soak
def test_a_broker_at_work_soak(broker, log_root, scan, small_windows):
    small_windows(2000)
    check_reads(broker, log_root.path / "events-0", scan, 120)
