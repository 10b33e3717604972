from __future__ import annotations

import os

import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError, DataLossError
from storage_core.filesystem import FileSystem
from storage_core.segment.batch_walk import BatchWalk, read_batch
from tests.record.legacy_encoding import GZIP, Message, Wrapper, plain_messages

# Written by a broker, one after the other: three batches and two markers.
TRANSACTION_LOG = bytes.fromhex(
    "0000000000000000000000430000000302ac05cfd800100000000100000000000000010000000000000002000000000000000100"
    "00000000000000000210000000026102310010000202026202320000000000000000020000003a00000003026d9705ac00100000"
    "00000000000000000003000000000000000300000000000000020000000000000000000110000000026302330000000000000000"
    "030000003f0000000302207c5be200000000000000000000000000040000000000000004ffffffffffffffffffffffffffff0000"
    "00011a000000026e0c6e6f6e74786e000000000000000004000000420000000302c82feab2003000000000000000000000000500"
    "0000000000000500000000000000020000ffffffff000000012000000008000000000c0000000000070000000000000000050000"
    "004200000004022b6577d20030000000000000000000000006000000000000000600000000000000010000ffffffff0000000120"
    "00000008000000010c00000000000700"
)


@pytest.fixture
def open_content(tmp_path):
    path = tmp_path / "content.log"

    def open_file(content):
        path.write_bytes(content)
        return FileSystem().open(str(path))

    return open_file


def test_read_batch_gives_the_whole_batch(open_content):
    with open_content(TRANSACTION_LOG) as log_file:
        for header in BatchWalk(log_file, 0, 380).batches():
            batch = read_batch(log_file, header, 1000)
            assert batch == TRANSACTION_LOG[header.position_bytes : header.end_position_bytes]


def test_read_batch_checks_the_limit_before_it_reads(tmp_path):
    filesystem = FileSystem()
    path = tmp_path / "0.log"
    path.write_bytes(TRANSACTION_LOG)
    with filesystem.open(str(path)) as log_file:
        header = BatchWalk(log_file, 0, 380).batch_at(0)
        before = filesystem.statistics.bytes_read
        with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes"):
            read_batch(log_file, header, 78)
        assert filesystem.statistics.bytes_read == before
        assert len(read_batch(log_file, header, 79)) == 79


@pytest.mark.parametrize("position", [17, 21, 45, 78])
def test_read_batch_checks_the_crc(open_content, position):
    content = bytearray(TRANSACTION_LOG)
    content[position] ^= 1
    with open_content(content) as log_file:
        header = BatchWalk(log_file, 0, 380).batch_at(0)
        with pytest.raises(CorruptRecordError, match="CRC") as caught:
            read_batch(log_file, header, 1000)
    error = caught.value
    assert (error.position_bytes, error.end_position_bytes) == (0, 79)
    assert (error.offset, error.last_offset) == (0, 1)


def test_read_batch_of_a_file_cut_meanwhile_is_data_loss(open_content):
    with open_content(TRANSACTION_LOG) as log_file:
        header = BatchWalk(log_file, 0, 380).batch_at(0)
        os.truncate(log_file.path, 70)
        with pytest.raises(DataLossError):
            read_batch(log_file, header, 1000)


@pytest.mark.parametrize(
    "entry",
    [
        Message(magic=0).encode(),
        Message(timestamp_ms=7).encode(),
        Wrapper(plain_messages(3, magic=0), GZIP, 0).encode(),
        Wrapper(plain_messages(3), GZIP).encode(),
    ],
    ids=["v0", "v1", "v0 wrapper", "v1 wrapper"],
)
def test_the_crc_of_old_formats_covers_what_follows_it(open_content, entry):
    for position in range(len(entry)):
        content = bytearray(entry)
        content[position] ^= 0x80
        # Offset, length and the bytes that say how to read the rest make another header.
        if position < 12 or position in (16, 17):
            continue
        with open_content(content) as log_file:
            header = BatchWalk(log_file, 0, len(content)).batch_at(0)
            with pytest.raises(CorruptRecordError, match="CRC"):
                read_batch(log_file, header, 1000)
    with open_content(entry) as log_file:
        header = BatchWalk(log_file, 0, len(entry)).batch_at(0)
        assert read_batch(log_file, header, 1000) == entry
