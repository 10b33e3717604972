"""Small hand-made logs, and the configuration of the Spark session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.record.encoding import Batch, Record


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


class LogFolder:
    """A log directory to which whole segments without indexes are added."""

    def __init__(self, path):
        self.path = str(path)

    def write(self, topic, partition, records, *, base_offset=0, batch_size=10):
        """Write one segment."""
        directory = Path(self.path, f"{topic}-{partition}")
        directory.mkdir(parents=True, exist_ok=True)
        data = b""
        for start in range(0, len(records), batch_size):
            batch = tuple(
                replace(
                    record,
                    offset_delta=delta,
                    headers=tuple((key.encode(), value) for key, value in record.headers),
                )
                for delta, record in enumerate(records[start : start + batch_size])
            )
            data += Batch(batch, base_offset + start).encode()
        (directory / f"{base_offset:020}.log").write_bytes(data)
        return self


def plain_records(count, start=0):
    """Records whose fields all contain the offset; every third has no key, every fifth no value. Header keys are text."""
    return [
        Record(
            timestamp_ms=1_700_000_000_000 + 1000 * number,
            key=None if number % 3 == 0 else b"k%d" % number,
            value=None if number % 5 == 0 else b"v%d" % number,
            headers=(("h", b"%d" % number), ("n", None)) if number % 2 else (),
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
    """Return an empty log directory."""
    (tmp_path / "logs").mkdir()
    return LogFolder(tmp_path / "logs")


@pytest.fixture
def root(tmp_path):
    """Return a log directory that does not exist yet."""
    return tmp_path / "written" / "logs"


@pytest.fixture
def records_of():
    """Return the records of the hand-made log directories."""
    return plain_records
