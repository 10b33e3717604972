"""`read_batches`: the rows of `read_table`, as a reader that can be closed, with the errors of a read, in threads."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from storage_core import read_batches, read_table
from storage_core.errors import CorruptRecordError, OptionError
from storage_core.scan import batches as batches_module
from storage_core.scan.read_ahead import read_ahead
from tests.descriptors import open_below
from tests.record.encoding import CODECS

EXAMPLES = "examples/data"
GZIP = list(CODECS).index("gzip")
THREADS = [1, 2, 3]


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Small logs are cut for threads, and more is left than what is ready."""
    monkeypatch.setattr(batches_module, "_TASK_BYTES", 4 << 10)
    monkeypatch.setattr(batches_module, "read_ahead", functools.partial(read_ahead, room_bytes=8 << 10))


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not [each for each in threading.enumerate() if each.name == "segmentlog-read-ahead"]


@pytest.fixture
def log(log_root):
    """Return two partitions of 2 segments of 40 batches of 5 records, 64 KiB each: no batches are joined."""
    for partition in (0, 1):
        log = log_root.rows("events", partition)
        for number in range(80):
            log.values(5, b"%02d" % number * 8_000)
            if number == 40:
                log.roll()
        log.write()
    return log_root.path


def damaged(log):
    """Return the same log, with a wrong byte in the last but one batch of the first partition."""
    path = max(Path(log, "events-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-len(data) * 3 // (2 * 39)] ^= 1
    path.write_bytes(data)
    return log


@pytest.mark.parametrize("threads", [None, *THREADS])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ["offset", "topic"]},
        {"where": "offset >= 100 AND offset < 300", "include_headers": True},
        {"ending_offsets": '{"events":{"0":0,"1":0}}'},
        {"max_bytes_per_partition": 1 << 20, "mode": "PERMISSIVE"},
        {"view": "batches"},
        {"view": "partitions"},
    ],
)
def test_the_rows_of_read_table_in_the_same_order(log, threads, options):
    table = read_table(log, threads=1, **options)
    with read_batches(log, threads=threads, **options) as reader:
        assert isinstance(reader, pa.RecordBatchReader)
        assert reader.schema == table.schema
        assert pa.Table.from_batches(reader, reader.schema).equals(table)
    assert read_table(log, threads=threads, **options).equals(table)


@pytest.mark.thorough
def test_what_pyarrow_does_with_a_reader(log):
    table = read_table(log)
    assert read_batches(log).read_all().equals(table)
    assert read_batches(log).read_pandas().equals(table.to_pandas())
    assert pa.table(read_batches(log)).equals(table)
    assert pa.RecordBatchReader.from_stream(read_batches(log)).read_all().equals(table)
    # By its pointer in C++.
    assert scanned(read_batches(log)).equals(table)
    wide = table.schema.set(2, pa.field("topic", pa.large_string()))
    assert read_batches(log).cast(wide).read_all().equals(table.cast(wide))
    batch, metadata = read_batches(log).read_next_batch_with_custom_metadata()
    assert batch.num_rows
    assert metadata is None


def test_parts_of_a_reader_are_read_in_different_ways(log):
    reader = read_batches(log)
    first = reader.read_next_batch()
    second = next(reader.iter_batches_with_custom_metadata()).batch
    third = next(reader)
    rest = reader.read_all()
    assert pa.Table.from_batches([first, second, third, *rest.to_batches()]).equals(read_table(log))
    with pytest.raises(StopIteration):
        reader.read_next_batch()


@pytest.mark.parametrize(
    ("end", "threads"),
    [
        # Each end with one number of threads is quick enough.
        pytest.param(end, threads, marks=() if threads == 1 + number % 3 else pytest.mark.thorough)
        for number, end in enumerate(["close", "with", "drop", "stream", "error"])
        for threads in THREADS
    ],
)
def test_a_reader_that_is_half_read_ends_its_threads_and_closes_its_files(log, threads, end):
    reader = read_batches(log, threads=threads)
    assert open_below(log) == []
    reader.read_next_batch()
    if end == "close":
        reader.close()
        reader.close()
    elif end == "with":
        with reader:
            pass
    elif end == "error":
        with pytest.raises(ZeroDivisionError), reader:
            raise ZeroDivisionError
    elif end == "stream":
        stream = pa.RecordBatchReader.from_stream(reader)
        stream.read_next_batch()
        del reader
        stream.close()
    else:
        del reader
    gc.collect()
    assert open_below(log) == []
    assert not [each for each in threading.enumerate() if each.name == "segmentlog-read-ahead"]


def scanned(reader):
    """Read by its pointer in C++."""
    return ds.Scanner.from_batches(reader).to_table()


@pytest.mark.parametrize("use", [next, pa.RecordBatchReader.read_all, pa.table, scanned])
def test_a_closed_reader_does_not_look_like_one_without_rows(log, use):
    reader = read_batches(log)
    reader.read_next_batch()
    reader.close()
    with pytest.raises((ValueError, pa.ArrowInvalid), match="The reader is closed"):
        use(reader)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("read", [iter, pa.RecordBatchReader.iter_batches_with_custom_metadata])
def test_errors_keep_their_class_and_follow_the_rows_before_them(log, threads, read):
    offsets = read_table(log, columns=["offset"], subscribe="events")["offset"].to_pylist()
    reader = read_batches(damaged(log), threads=threads)
    found = []
    with pytest.raises(CorruptRecordError) as raised:
        found.extend(read(reader))
    batches = [each if isinstance(each, pa.RecordBatch) else each.batch for each in found]
    found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert raised.value.offset == 390
    assert found == offsets[:390]
    with pytest.raises(CorruptRecordError):
        read_table(log, threads=threads)


def test_a_reader_that_has_failed_does_not_look_like_one_at_its_end(log):
    reader = read_batches(damaged(log))
    with pytest.raises(CorruptRecordError):
        reader.read_all()
    for use in (next, pa.RecordBatchReader.read_all, pa.table, scanned):
        with pytest.raises((ValueError, pa.ArrowInvalid), match="or has failed"):
            use(reader)


def test_a_reader_that_was_interrupted_does_not_look_like_one_at_its_end(log):
    def interrupt(_):
        raise KeyboardInterrupt

    with read_batches(log, progress=interrupt) as reader:
        with pytest.raises(KeyboardInterrupt):
            reader.read_all()
        with pytest.raises(ValueError, match="or has failed"):
            reader.read_all()


@pytest.mark.parametrize("threads", THREADS)
def test_threads_share_a_reader(log, threads):
    found = []
    with read_batches(log, threads=threads) as reader, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(found.extend, reader) for _ in range(4)]:
            done.result()
    table = pa.Table.from_batches(found).sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert table.equals(read_table(log))


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
def test_offsets_that_contradict_each_other_are_damage_wherever_a_task_ends(log_root, mode, monkeypatch):
    """No CRC covers the base offset of a batch."""
    monkeypatch.setattr(batches_module, "_TASK_BYTES", 1)
    log = log_root.rows("events")
    log.values(3).values(1).values(5).values(1).roll().values(2).write()
    path = log.log_path(0)
    data = bytearray(path.read_bytes())
    # The last batch of the first segment, which is at offset 9, overlaps the one before.
    position_bytes = log.places[0][-1][0]
    data[position_bytes + 7] = 7
    path.write_bytes(data)
    table = read_table(log.path, threads=1, mode=mode)
    assert table.num_rows == 11 + (mode == "PERMISSIVE")
    assert read_table(log.path, threads=3, mode=mode).equals(table)


def test_notes_of_a_read_are_logged_once_however_many_threads_read(log_root, caplog):
    log = log_root.rows("events")
    for _ in range(20):
        log.values(5, b"{}" * 2_000)
    log.write()
    with caplog.at_level("WARNING"):
        read_table(log_root.path, threads=3, value_format="avro", value_schema='"int"', mode="DROPMALFORMED")
    (line,) = [each.getMessage() for each in caplog.records]
    assert "events-0: 100 records do not decode" in line
    assert "the first at offset 0" in line


@pytest.mark.parametrize("threads", [0, -1, "2", 1.5])
def test_a_number_of_threads_that_is_none(log, threads):
    with pytest.raises(OptionError, match="threads: expected a number from 1 on"):
        read_batches(log, threads=threads)


@pytest.mark.parametrize("threads", THREADS)
def test_a_function_is_told_the_bytes_that_are_done(log, threads):
    done = []
    total = sum(path.stat().st_size for path in Path(log).rglob("*.log"))
    reader = read_batches(log, threads=threads, progress=done.append)
    assert done == []
    reader.read_all()
    assert sum(done) == total
    done.clear()
    read_table(log, threads=threads, progress=done.append)
    assert sum(done) == total


def test_a_collection_that_can_be_called_is_told_although_it_is_empty(log):
    class Done(list):
        __call__ = list.append

    done = Done()
    read_table(log, progress=done)
    assert sum(done) > 0


def test_progress_is_shown_on_standard_error(log, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    read_table(log, progress=True)
    shown = capsys.readouterr()
    assert "reading" in shown.err
    assert shown.out == ""


def threads_chosen(path, **options):
    """Return how many threads a read uses of itself, on two cores."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return _threads_chosen(path, monkeypatch, **options)


def _threads_chosen(path, monkeypatch, **options):
    monkeypatch.setattr(batches_module, "_cores", lambda: 2)
    chosen = []

    def noted(*arguments, threads, **settings):
        chosen.append(threads)
        return read_ahead(*arguments, threads=threads, **settings)

    monkeypatch.setattr(batches_module, "read_ahead", noted)
    read_batches(path, **options).read_all()
    read_table(path, **options)
    return chosen


@pytest.mark.parametrize(
    ("codec", "size_bytes", "threads"), [(0, 16_000, 1), (0, 30_000, 2), (GZIP, 100, 2), (GZIP, 30_000, 2)]
)
def test_two_threads_where_batches_are_large_or_gzip(log_root, monkeypatch, codec, size_bytes, threads):
    log = log_root.rows("events")
    for _ in range(64 if size_bytes > 100 else 2_000):
        log.values(3, os.urandom(size_bytes) if codec else bytes(size_bytes), codec=codec)
    log.write()
    monkeypatch.setattr(batches_module, "_TASK_BYTES", 32 << 10)
    # A table needs nobody to read ahead of it.
    assert threads_chosen(log_root.path) == [threads, threads if threads > 1 else 0]
    assert threads_chosen(log_root.path, threads=3) == [3, 3]
    assert threads_chosen(log_root.path, columns=["offset"]) == [1, 0]


# Shells let what they start in the background ignore interrupts.
INTERRUPTED = """
import signal
import sys
import storage_core
signal.signal(signal.SIGINT, signal.default_int_handler)
while True:
    print("reading", flush=True)
    if sys.argv[2] == "table":
        storage_core.read_table(sys.argv[1], threads=2)
    else:
        for batch in storage_core.read_batches(sys.argv[1], threads=2):
            pass
"""


@pytest.mark.parametrize("way", ["table", "batches"])
def test_an_interrupt_ends_a_read(log, way):
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(log), way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for _ in range(3):
            assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert process.returncode == -signal.SIGINT
