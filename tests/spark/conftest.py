"""Small hand-made logs, and the configuration of the Spark session."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import crc32c
import pytest


@pytest.fixture
def conf(spark):
    """Set session configuration for one test."""
    changed = {}

    def change(name, value):
        changed.setdefault(name, spark.conf.get(name))
        spark.conf.set(name, value)

    yield change
    for name, value in changed.items():
        spark.conf.set(name, value)


@dataclass(frozen=True)
class Record:
    """A record of a batch."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def varint(number):
    """A zig-zag varint."""
    encoded = (number << 1) ^ (number >> 63)
    out = bytearray()
    while encoded > 0x7F:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def sized(data):
    return varint(-1) if data is None else varint(len(data)) + data


def record_batch(base_offset, records):
    """One uncompressed v2 batch without a producer id."""
    base_ms = records[0].timestamp_ms
    body = bytearray()
    for position, record in enumerate(records):
        fields = b"\0" + varint(record.timestamp_ms - base_ms) + varint(position)
        fields += sized(record.key) + sized(record.value) + varint(len(record.headers))
        fields += b"".join(sized(name.encode()) + sized(value) for name, value in record.headers)
        body += varint(len(fields)) + fields
    largest_ms = max(record.timestamp_ms for record in records)
    checked = struct.pack(">hiqqqhii", 0, len(records) - 1, base_ms, largest_ms, -1, -1, -1, len(records))
    checked += body
    return struct.pack(">qiibI", base_offset, 9 + len(checked), 0, 2, crc32c.crc32c(checked)) + checked


class LogFolder:
    """A log directory to which whole segments without indexes are added."""

    def __init__(self, path):
        self.path = str(path)

    def write(self, topic, partition, records, *, base_offset=0, batch_size=10):
        """Write one segment."""
        directory = Path(self.path, f"{topic}-{partition}")
        directory.mkdir(parents=True, exist_ok=True)
        data = b"".join(
            record_batch(base_offset + start, records[start : start + batch_size])
            for start in range(0, len(records), batch_size)
        )
        (directory / f"{base_offset:020}.log").write_bytes(data)
        return self


def plain_records(count, start=0):
    """Records whose fields all contain the offset; every third has no key, every fifth no value."""
    return [
        Record(
            None if number % 3 == 0 else b"k%d" % number,
            None if number % 5 == 0 else b"v%d" % number,
            1_700_000_000_000 + 1000 * number,
            (("h", b"%d" % number), ("n", None)) if number % 2 else (),
        )
        for number in range(start, start + count)
    ]


@pytest.fixture(scope="session")
def logs(tmp_path_factory):
    """Topic ``a`` with partitions 0 and 1 of two segments of 50 records, ``b`` with 10 in one partition."""
    folder = LogFolder(tmp_path_factory.mktemp("logs"))
    for partition in (0, 1):
        folder.write("a", partition, plain_records(50))
        folder.write("a", partition, plain_records(50, 50), base_offset=50)
    folder.write("b", 0, plain_records(10))
    return folder.path


@pytest.fixture
def new_logs(tmp_path):
    """An empty log directory."""
    (tmp_path / "logs").mkdir()
    return LogFolder(tmp_path / "logs")


@pytest.fixture
def root(tmp_path):
    """A log directory that does not exist yet."""
    return tmp_path / "written" / "logs"


@pytest.fixture
def records_of():
    """The records of the hand-made log directories."""
    return plain_records
