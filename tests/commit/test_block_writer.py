from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.commit.manifest import manifest_bytes, parse_manifest
from storage_core.commit.staging import BlockWriter
from storage_core.errors import InvalidRecordError, RecordTooLargeError
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.encode import BatchEncoding
from tests.commit.staged import NOW_MS, STAGE, expected_values, routed, staged_names, staged_values


def writer_in(root, piece_bytes=1000, **config):
    return BlockWriter(
        FileSystem(),
        str(root),
        STAGE,
        BatchEncoding(batch_size_bytes=300),
        LogConfig(**config),
        default_timestamp_ms=NOW_MS,
        piece_bytes=piece_bytes,
    )


def write(writer, *blocks):
    writer.write(blocks, [writer.numbers.of_rows(block) for block in blocks])


def pieces_of(writer):
    data = manifest_bytes(STAGE, writer.complete())
    writer.files.close()
    return parse_manifest(data, "manifest").pieces


def test_small_and_large_pieces_by_turns(tmp_path):
    writer = writer_in(tmp_path)
    # In the order of partitions: packed, a segment, packed, a segment, packed.
    counts = {0: 2, 1: 50, 2: 3, 3: 60, 4: 1}
    rows = routed(
        [
            (0, partition, b"%d" % number * 10)
            for partition, count in counts.items()
            for number in range(count)
        ]
    )
    write(writer, rows)
    write(writer, rows)
    assert len(writer.numbers) == 5
    pieces = pieces_of(writer)
    found = {key: [value for _, value in records] for key, records in staged_values(tmp_path, pieces).items()}
    assert found == expected_values([rows, rows])
    kinds = {(piece.partition, piece.suffix) for piece in pieces}
    assert kinds == {(0, ".pack"), (1, ".log"), (2, ".pack"), (3, ".log"), (4, ".pack")}
    packed = sorted((piece.position_bytes, piece.size_bytes) for piece in pieces if piece.suffix == ".pack")
    # Back to back, up to the end of the file.
    assert [position for position, _ in packed[1:]] == [position + size for position, size in packed[:-1]]
    assert sum(packed[-1]) == (tmp_path / STAGE.pack_name).stat().st_size


def test_rows_of_many_batches_are_sorted_together(tmp_path):
    writer = writer_in(tmp_path)
    blocks = [
        routed([(topic, partition, b"%d" % number)], ("a", "b"))
        for number, (topic, partition) in enumerate([(1, 0), (0, 5), (1, 0), (0, 2)])
    ]
    write(writer, *blocks)
    assert [(piece.topic, piece.partition, piece.record_count) for piece in pieces_of(writer)].count(
        ("b", 0, 2)
    ) == 1


def test_which_partition_holds_the_record_that_is_too_large(tmp_path):
    writer = writer_in(tmp_path, max_message_bytes=400)
    rows = [(0, partition, b"v") for partition in range(20)] + [(0, 7, b"v" * 400)]
    with pytest.raises(RecordTooLargeError) as caught:
        write(writer, routed(rows))
    assert caught.value.path == "t-7"
    writer.files.close()
    assert staged_names(tmp_path) == []


def test_offsets_ascend_from_block_to_block(tmp_path):
    writer = writer_in(tmp_path)
    write(writer, routed([(0, 0, b"a"), (0, 1, b"b")], offset=pa.array([10, 3])))
    with pytest.raises(InvalidRecordError, match="found 10 after 10 in t-0") as caught:
        write(writer, routed([(0, 0, b"a"), (0, 1, b"b")], offset=pa.array([10, 4])))
    assert caught.value.offset == 10
    write(writer, routed([(0, 0, b"a"), (0, 1, b"b")], offset=pa.array([11, 4])))
    writer.files.close()
