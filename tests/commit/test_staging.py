from __future__ import annotations

import errno
import random
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.commit import staging
from storage_core.commit.manifest import read_manifest
from storage_core.commit.routing import RoutedRows
from storage_core.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    LogForkedError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    StorageError,
)
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.encode import BatchEncoding
from tests.commit.staged import (
    NOW_MS,
    PACK,
    batches_of,
    expected_values,
    piece_bytes,
    routed,
    stage,
    staged_names,
    staged_values,
    writer_in,
)
from tests.examples import examples
from tests.faults.faulty_filesystem import Fault, FaultyCalls
from tests.faults.forked import in_child
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.record.encoding import CODECS
from tests.record.sections import decode_whole_batches


def random_rows(count, *, seed=0, topics=2, partitions=5, value_bytes=40):
    rng = random.Random(seed)
    return routed(
        [
            (
                rng.randrange(topics),
                rng.randrange(partitions),
                rng.choice([None, rng.randbytes(rng.randrange(value_bytes))]),
            )
            for _ in range(count)
        ],
        [f"topic-{number}" for number in range(topics)],
    )


def values_of(found):
    return {partition: [value for _, value in records] for partition, records in found.items()}


def error_of(call, *arguments, **options):
    """Return the error of the file system that a call ends with; None if it does not."""
    try:
        call(*arguments, **options)
    except StorageError as error:
        return error
    return None


@pytest.fixture
def small_blocks(monkeypatch):
    """Rows are handed over after some kilobytes."""
    monkeypatch.setattr(staging, "_LEAST_BLOCK_BYTES", 4000)


@pytest.mark.parametrize("piece_size", [1, 2000, 8 << 20])
@pytest.mark.usefixtures("small_blocks")
def test_each_partition_has_its_rows_in_their_order(tmp_path, piece_size):
    batches = [random_rows(300, seed=seed) for seed in range(10)]
    pieces = stage(tmp_path, *batches, piece_bytes=piece_size)
    assert values_of(staged_values(tmp_path, pieces)) == expected_values(batches)
    names = {piece.file + piece.suffix for piece in pieces}
    assert (PACK + ".pack" in names) == (piece_size > 1)
    assert (PACK + "-0.log" in names) == (piece_size < 8 << 20)


@examples(60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.none() | st.binary(max_size=60))),
        max_size=5,
    ),
    st.sampled_from([1, 300, 8 << 20]),
    st.sampled_from([600, 1 << 30]),
)
def test_any_rows_are_staged_in_their_order(tmp_path_factory, batches, piece_size, segment_bytes):
    root = tmp_path_factory.mktemp("root")
    all_rows = [routed(rows, ("a", "b", "c")) for rows in batches]
    config = LogConfig(internal_segment_bytes=segment_bytes)
    pieces = stage(root, *all_rows, piece_bytes=piece_size, config=config, memory_limit_bytes=1)
    assert values_of(staged_values(root, pieces)) == expected_values(all_rows)
    assert all(piece.size_bytes <= segment_bytes for piece in pieces)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_keys_headers_timestamps_and_codecs(tmp_path, codec):
    headers = pa.array(
        [[{"key": "h", "value": b"x"}], None], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    rows = routed(
        [(0, 1, b"a"), (0, 0, b"b")],
        key=pa.array([b"k", None], pa.binary()),
        timestamp=pa.array([1_000_999, None], pa.timestamp("us", "Europe/Berlin")),
        headers=headers,
    )
    pieces = stage(tmp_path, rows, encoding=BatchEncoding(codec=codec))
    found = {piece.partition: decode_whole_batches(piece_bytes(tmp_path, piece)) for piece in pieces}
    assert found == {
        1: [(0, 1000, b"k", b"a", ((b"h", b"x"),))],
        0: [(0, NOW_MS, None, b"b", ())],
    }


LARGEST_MS = (2**63 - 1) // 1000


@pytest.mark.parametrize(
    ("kind", "fitting", "beyond"),
    [
        (pa.timestamp("us", "UTC"), [-LARGEST_MS * 1000, 2**63 - 1, None], -LARGEST_MS * 1000 - 1),
        (pa.timestamp("us", "UTC"), [0], -(2**63)),
        (pa.timestamp("ms"), [-LARGEST_MS, LARGEST_MS], LARGEST_MS + 1),
        (pa.int64(), [-LARGEST_MS, LARGEST_MS], -LARGEST_MS - 1),
        (pa.int64(), [], 2**63 - 1),
        (pa.timestamp("s"), [-(LARGEST_MS // 1000), LARGEST_MS // 1000], LARGEST_MS // 1000 + 1),
        (pa.timestamp("ns"), [-(2**63), 2**63 - 1], None),
    ],
)
def test_timestamps_that_no_reader_could_show_are_refused(tmp_path, kind, fitting, beyond):
    """Of the column that readers have, which is one of microseconds."""

    def staged(timestamps):
        rows = [(0, 0, b"%d" % number) for number in range(len(timestamps))]
        return stage(tmp_path / "root", routed(rows, timestamp=pa.array(timestamps, pa.int64()).cast(kind)))

    (tmp_path / "root").mkdir()
    if fitting:
        (piece,) = staged(fitting)
        assert piece.record_count == len(fitting)
        for path in (tmp_path / "root").iterdir():
            path.unlink()
    if beyond is not None:
        with pytest.raises(InvalidTimestampError, match=f"found {beyond} in row 1") as caught:
            staged([None, beyond])
        assert "fit a column of microseconds" in str(caught.value)
        assert list((tmp_path / "root").iterdir()) == []


def test_a_batch_that_no_reader_accepts_is_refused(tmp_path):
    encoding = BatchEncoding(codec=CODECS["zstd"], largest_batch_bytes=1000)
    rows = routed([(0, 0, b"small"), (0, 0, b"x" * 1000)])
    with pytest.raises(RecordTooLargeError, match=r"at most 1000 bytes.*maxDecompressedBatchBytes"):
        stage(tmp_path, rows, encoding=encoding)
    assert list(tmp_path.iterdir()) == []


def test_batches_are_filled_from_many_appends(tmp_path):
    batches = [routed([(0, number % 3, b"v" * 50) for number in range(30)]) for _ in range(20)]
    pieces = stage(tmp_path, *batches, encoding=BatchEncoding(batch_size_bytes=16384))
    assert [(piece.partition, piece.batch_count, piece.record_count) for piece in pieces] == [
        (0, 1, 200),
        (1, 1, 200),
        (2, 1, 200),
    ]


def test_no_rows(tmp_path):
    assert stage(tmp_path) == ()
    assert staged_names(tmp_path) == [PACK + ".manifest"]
    (tmp_path / (PACK + ".manifest")).unlink()
    assert stage(tmp_path, routed([])) == ()


def test_ten_thousand_partitions_in_one_file(tmp_path):
    partitions = np.random.default_rng(0).permutation(np.repeat(np.arange(10_000), 5)).astype(np.int32)
    values = pa.array([b"%d" % number for number in partitions.tolist()], pa.binary())
    rows = RoutedRows(pa.RecordBatch.from_arrays([values], ["value"]), ["t"], None, partitions)
    filesystem = FileSystem()
    pieces = stage(tmp_path, rows, filesystem=filesystem)
    assert staged_names(tmp_path) == [PACK + ".manifest", PACK + ".pack"]
    assert len(pieces) == 10_000
    assert all(piece.record_count == 5 for piece in pieces)
    found = staged_values(tmp_path, pieces[::500])
    assert found == {
        ("t", piece.partition): [(offset, b"%d" % piece.partition) for offset in range(5)]
        for piece in pieces[::500]
    }
    # One write for a chunk of batches, not one for each.
    assert filesystem.statistics.writes < 10


def test_small_and_large_pieces_by_turns(tmp_path):
    # In the order of partitions: packed, a segment, packed, a segment, packed.
    counts = {0: 2, 1: 50, 2: 3, 3: 60, 4: 1}
    rows = routed([(0, number, b"%d" % row * 10) for number, count in counts.items() for row in range(count)])
    pieces = stage(tmp_path, rows, rows, piece_bytes=1000, memory_limit_bytes=1)
    assert values_of(staged_values(tmp_path, pieces)) == expected_values([rows, rows])
    kinds = {(piece.partition, piece.suffix) for piece in pieces}
    assert kinds == {(0, ".pack"), (1, ".log"), (2, ".pack"), (3, ".log"), (4, ".pack")}
    packed = sorted((piece.position_bytes, piece.size_bytes) for piece in pieces if piece.suffix == ".pack")
    # Back to back, up to the end of the file.
    assert [position for position, _ in packed[1:]] == [position + size for position, size in packed[:-1]]
    assert sum(packed[-1]) == (tmp_path / f"{PACK}.pack").stat().st_size


@pytest.mark.usefixtures("small_blocks")
def test_many_partitions_are_noticed_before_the_first_rows_are_written(tmp_path):
    """Each block makes a piece for each of its partitions, and each piece costs the commit."""
    batches = [routed([(0, number % 200, b"v") for number in range(400)]) for _ in range(5)]
    assert len(stage(tmp_path, *batches)) == 200


def test_memory_is_bounded(tmp_path, monkeypatch):
    held = []
    write = staging.StageWriter._write_block

    def watched(self, rows, numbers):
        held.append(sum(len(each.partitions) for each in rows))
        write(self, rows, numbers)

    monkeypatch.setattr(staging.StageWriter, "_write_block", watched)
    batches = [routed([(0, number % 7, b"v" * 1000) for number in range(100)]) for _ in range(30)]
    stage(tmp_path, *batches, memory_limit_bytes=1 << 20)
    # Half a mebibyte is 500 of these rows.
    assert max(held) <= 600
    assert sum(held) == 3000


def test_rows_come_in_while_others_are_written(tmp_path, monkeypatch):
    may_write = threading.Event()
    write = staging.StageWriter._write_block

    def slow(self, rows, numbers):
        assert may_write.wait(300)
        write(self, rows, numbers)

    monkeypatch.setattr(staging.StageWriter, "_write_block", slow)
    rows = routed([(0, 0, b"v" * 1000)] * 100)
    with writer_in(tmp_path, memory_limit_bytes=1, flush=False) as writer:
        # The second one would be handed over, and has to wait.
        writer.append(rows)
        waiting = threading.Thread(target=writer.append, args=(rows,))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        may_write.set()
        waiting.join()
        writer.finish()


def offsets_of(*offsets):
    return pa.array(offsets, pa.int64())


def test_rows_keep_their_offsets(tmp_path):
    first = routed([(0, 1, b"a"), (0, 0, b"b"), (0, 1, b"c")], offset=offsets_of(7, 900, 9))
    second = routed([(0, 1, b"d"), (0, 0, b"e")], offset=offsets_of(10, 901))
    pieces = stage(tmp_path, first, second, memory_limit_bytes=1)
    assert staged_values(tmp_path, pieces) == {
        ("t", 0): [(900, b"b"), (901, b"e")],
        ("t", 1): [(7, b"a"), (9, b"c"), (10, b"d")],
    }
    spans = [(piece.partition, piece.min_offset, piece.max_offset) for piece in pieces]
    assert spans == [(0, 900, 900), (1, 7, 9), (0, 901, 901), (1, 10, 10)]


@pytest.mark.parametrize("piece_size", [1, 8 << 20])
def test_compacted_rows_keep_their_offsets(tmp_path, piece_size):
    offsets = np.cumsum(np.random.default_rng(3).integers(1, 50, 2000))
    rows = routed([(0, 0, b"%d" % offset) for offset in offsets], offset=offsets_of(*offsets.tolist()))
    pieces = stage(tmp_path, rows, piece_bytes=piece_size)
    assert staged_values(tmp_path, pieces) == {
        ("t", 0): [(offset, b"%d" % offset) for offset in offsets.tolist()]
    }


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ((5, 5), "found 5 after 5 in t-0"),
        ((6, 5), "found 5 after 6"),
        ((-1, 0), "found -1 after -1"),
        ((0, 2**63 - 1), "ascend"),
    ],
)
def test_offsets_that_do_not_ascend(tmp_path, offsets, words):
    rows = routed([(0, 0, b"a"), (0, 1, b"x"), (0, 0, b"b")], offset=offsets_of(offsets[0], 3, offsets[1]))
    with pytest.raises(InvalidRecordError, match=words):
        stage(tmp_path, rows)
    assert staged_names(tmp_path) == []


def test_rows_with_offsets_keep_the_bytes_of_header_keys(tmp_path):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [{"key": "fine", "value": None}, {"key": "no \ufffd", "value": None}]], kind)
    words = [(0, 0, b"a"), (0, 0, b"b")]
    with pytest.raises(InvalidRecordError, match=r"U\+FFFD in a key of the row of offset 9: "):
        stage(tmp_path, routed(words, offset=offsets_of(7, 9), headers=headers))
    stage(tmp_path, routed(words, headers=headers))


def test_offsets_ascend_from_append_to_append(tmp_path):
    first, second = (routed([(0, 0, b"a")], offset=offsets_of(8)) for _ in range(2))
    with pytest.raises(InvalidRecordError, match=r"found 8 after 8 in t-0.*sortWithinPartitions") as caught:
        stage(tmp_path, first, second, memory_limit_bytes=1)
    assert caught.value.offset == 8


@pytest.mark.parametrize(
    "column", [pa.array([1, None], pa.int64()), pa.array([1, 2], pa.int32()), pa.array(["1", "2"])]
)
def test_offsets_of_another_type(tmp_path, column):
    with pytest.raises(InvalidRecordError, match="int64 without nulls"):
        stage(tmp_path, routed([(0, 0, b"a"), (0, 0, b"b")], offset=column))


def test_an_offset_that_is_missing_in_a_later_append(tmp_path):
    first = routed([(0, 0, b"a"), (0, 0, b"b")], offset=pa.array([1, 2], pa.int64()))
    second = routed([(0, 0, b"c"), (0, 0, b"d")], offset=pa.array([3, None], pa.int64()))
    with pytest.raises(InvalidRecordError, match="int64 without nulls"):
        stage(tmp_path, first, second)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"ofset": pa.array([1])}, "found ofset"),
        ({"key": pa.array([1])}, "column key to be of a binary or string type"),
        (
            {
                "headers": pa.array(
                    [[{"key": None, "value": b""}]],
                    pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
                )
            },
            "row 0",
        ),
    ],
)
def test_columns_that_cannot_be_encoded_are_refused_at_once(tmp_path, columns, words):
    with writer_in(tmp_path) as writer, pytest.raises(InvalidRecordError, match=words):
        writer.append(routed([(0, 0, b"a")], **columns))


def test_columns_are_alike_in_all_rows(tmp_path):
    with writer_in(tmp_path) as writer:
        writer.append(routed([(0, 0, b"a")]))
        with pytest.raises(InvalidRecordError, match="value: binary, then value: binary, key: binary"):
            writer.append(routed([(0, 0, b"a")], key=pa.array([b"k"])))


@pytest.mark.parametrize("count", [1, 500])
def test_a_record_beyond_max_message_bytes(tmp_path, count):
    rows = routed([(0, number, b"v") for number in range(count)] + [(0, 40, b"v" * 2000)])
    with pytest.raises(
        RecordTooLargeError, match=r"at most 2000 bytes, the limit max\.message\.bytes.*t-40"
    ) as caught:
        stage(tmp_path, rows, config=LogConfig(max_message_bytes=2000))
    assert caught.value.path == "t-40"
    assert staged_names(tmp_path) == []
    stage(tmp_path, rows, config=LogConfig(max_message_bytes=2100))


def test_the_compressed_size_counts_for_max_message_bytes(tmp_path):
    rows = routed([(0, 0, b"v" * 100_000)])
    config = LogConfig(max_message_bytes=2000)
    (piece,) = stage(tmp_path, rows, config=config, encoding=BatchEncoding(codec=4))
    assert piece.size_bytes < 2000


def test_a_record_beyond_segment_bytes(tmp_path):
    with pytest.raises(RecordBatchTooLargeError, match="t-0"):
        stage(tmp_path, routed([(0, 0, b"v" * 2000)]), config=LogConfig(internal_segment_bytes=1000))


def test_an_error_of_the_other_thread_is_raised_by_what_is_called_next(tmp_path):
    with writer_in(tmp_path, config=LogConfig(max_message_bytes=500), memory_limit_bytes=1) as writer:
        writer.append(routed([(0, 0, b"v" * 1000)]))
        for _ in range(2):
            with pytest.raises(RecordTooLargeError):
                writer.append(routed([(0, 0, b"v")]))
        with pytest.raises(RecordTooLargeError):
            writer.finish()
    assert staged_names(tmp_path) == []


def test_everything_is_on_disk_when_finish_returns():
    filesystem = SimulatedFileSystem()
    filesystem.make_directory("/data")
    filesystem.flush_directory("/")
    batches = [random_rows(200, seed=seed) for seed in range(3)]
    with writer_in("/data", filesystem=filesystem, piece_bytes=600) as writer:
        for rows in batches:
            writer.append(rows)
        reported = writer.finish()
    written = filesystem.files()
    assert len(written) > 5
    for seed in range(20):
        after = filesystem.crash(random.Random(seed))
        assert after.files() == written
    assert read_manifest(after, "/data", reported).pieces


def test_without_flush_nothing_is_flushed(tmp_path):
    filesystem = FileSystem()
    pieces = stage(tmp_path, random_rows(100), flush=False, filesystem=filesystem)
    assert pieces
    assert filesystem.statistics.flushes == 0


def test_a_full_disk_wherever_it_fills_up_leaves_nothing(tmp_path):
    batches = [random_rows(200, seed=seed) for seed in range(3)]
    failed = 0
    for at in range(1, 1000):
        with FaultyCalls(Fault(errno.ENOSPC, at=at)) as calls:
            error = error_of(stage, tmp_path, *batches, piece_bytes=600, memory_limit_bytes=1)
        if calls.happened is None:
            break
        assert isinstance(error, StorageError)
        assert "space" in str(error)
        failed += 1
        assert staged_names(tmp_path) == []
    assert failed > 20
    assert staged_names(tmp_path)


def test_an_error_of_any_call_is_raised(tmp_path):
    for at in range(1, 1000):
        with FaultyCalls(Fault(errno.EIO, at=at)) as calls:
            error = error_of(stage, tmp_path, random_rows(50), piece_bytes=100)
        if calls.happened is None:
            break
        assert isinstance(error, StorageError)
        for name in staged_names(tmp_path):
            (tmp_path / name).unlink()
    assert at > 20
    assert error is None


def test_an_error_of_the_caller_removes_what_was_staged(tmp_path):
    (tmp_path / "other").write_bytes(b"x")
    writer = writer_in(tmp_path, memory_limit_bytes=1, piece_bytes=1)

    def fail():
        with writer:
            writer.append(random_rows(100))
            writer.append(random_rows(100))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    # A second time does nothing.
    writer.abort()


def test_a_file_that_cannot_be_removed_is_logged(caplog):
    filesystem = SimulatedFileSystem()
    writer = writer_in("/", filesystem=filesystem)
    writer.append(random_rows(10))
    writer.finish()
    filesystem.fail = lambda call: OSError("read-only file system")
    writer.abort()
    assert "could not be removed" in caplog.text
    assert "read-only file system" in caplog.text


def test_two_attempts_with_one_number_are_refused(tmp_path):
    stage(tmp_path, random_rows(10))
    before = {name: (tmp_path / name).read_bytes() for name in staged_names(tmp_path)}
    for rows in (random_rows(10), random_rows(0)):
        with pytest.raises(StorageError, match="Two attempts"):
            stage(tmp_path, rows)
        assert {name: (tmp_path / name).read_bytes() for name in staged_names(tmp_path)} == before


def test_default_timestamp_and_epoch(tmp_path):
    (piece,) = stage(tmp_path, routed([(0, 0, b"v")]))
    assert (piece.first_timestamp_ms, piece.max_timestamp_ms) == (NOW_MS, NOW_MS)
    ((base_offset, last_offset, epoch, _, _),) = batches_of(piece_bytes(tmp_path, piece))
    assert (base_offset, last_offset, epoch) == (0, 0, -1)


# -- A process that was forked --------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ending", ["its end", "an error"])
def test_a_forked_process_neither_stages_nor_removes(tmp_path, ending):
    """Not even what the writing thread has under way is harmed: the child has a copy of it, and leaves it alone."""

    def work_in_the_child() -> None:
        for change in (lambda: writer.append(random_rows(100)), writer.finish, writer.abort):
            with pytest.raises(LogForkedError, match="forked"):
                change()
        if ending == "an error":
            with pytest.raises(ZeroDivisionError), writer:
                raise ZeroDivisionError
        else:
            with writer:
                pass

    batches = [random_rows(300, seed=seed) for seed in range(6)]
    with writer_in(tmp_path, piece_bytes=2000) as writer:
        for rows in batches[:3]:
            writer.append(rows)
        writer._wait()
        before = {name: (tmp_path / name).read_bytes() for name in staged_names(tmp_path)}
        assert before
        in_child(work_in_the_child)
        assert {name: (tmp_path / name).read_bytes() for name in staged_names(tmp_path)} == before
        for rows in batches[3:]:
            writer.append(rows)
        manifest = writer.finish()
    pieces = read_manifest(FileSystem(), str(tmp_path), manifest).pieces
    assert values_of(staged_values(tmp_path, pieces)) == expected_values(batches)
