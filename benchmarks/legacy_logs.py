"""Logs in message formats v0 and v1, written with kafka-python's encoder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.log_files import Window
from benchmarks.peers.input import LogInput
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS, key_of, make_values
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings

_RECORDS = 1_000_000
_VALUE_BYTES = 100
# Wrappers of about 16 KiB before compression.
_RECORDS_PER_WRAPPER = 128
_WINDOW_BYTES = 4 << 20
_CODECS = {"none": 0, "gzip": 1}
_OFFSET = struct.Struct(">q")
# As brokers of that time did: an entry for each append after 4 KiB.
_INDEX_INTERVAL_BYTES = 4096
_OFFSET_INDEX_ENTRY = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class LegacyLog:
    """One topic of one partition, in one format and codec.

    Attributes:
        windows: Where to cut the file so that parsers get whole messages, as (position, size).
    """

    directory: str
    magic: int
    codec: str
    records: int
    windows: tuple[tuple[int, int], ...]

    @property
    def topic(self) -> str:
        """The topic's name, as ``v0-gzip``."""
        return f"v{self.magic}-{self.codec}"

    @property
    def description(self) -> str:
        """For a table."""
        return f"format v{self.magic}, {_VALUE_BYTES} B, {self.codec}"

    def as_input(self) -> LogInput:
        """Return what the peers' parsers read."""
        path = Path(self.directory) / f"{self.topic}-0" / f"{0:020d}.log"
        return LogInput(self.topic, 0, path, tuple(Window(*window) for window in self.windows))


def ensure_legacy_logs(settings: Settings) -> list[LegacyLog]:
    """Write the logs anew: that takes a minute, and nothing has to be kept for it."""
    root = new_directory(settings.scratch_directory, "legacy")
    records = settings.scaled(_RECORDS)
    return [_write(root, magic, codec, records) for magic in (0, 1) for codec in _CODECS]


def _write(root: Path, magic: int, codec: str, records: int) -> LegacyLog:
    tell(f"writing v{magic}-{codec}, {records:,} records")
    partition = root / f"v{magic}-{codec}-0"
    partition.mkdir(parents=True)
    windows: list[tuple[int, int]] = []
    position = window_start = 0
    entries = bytearray()
    last_indexed = 0
    with open(partition / f"{0:020d}.log", "wb") as log:
        for number, data in enumerate(_wrappers(magic, codec, records), start=1):
            if position - last_indexed > _INDEX_INTERVAL_BYTES:
                last_offset = min(number * _RECORDS_PER_WRAPPER, records) - 1
                entries += _OFFSET_INDEX_ENTRY.pack(last_offset, position)
                last_indexed = position
            log.write(data)
            position += len(data)
            if position - window_start >= _WINDOW_BYTES:
                windows.append((window_start, position - window_start))
                window_start = position
    (partition / f"{0:020d}.index").write_bytes(entries)
    if position > window_start:
        windows.append((window_start, position - window_start))
    return LegacyLog(str(root), magic, codec, records, tuple(windows))


def _wrappers(magic: int, codec: str, records: int) -> Iterator[bytes]:
    from kafka.record.legacy_records import LegacyRecordBatchBuilder

    values = make_values(_VALUE_BYTES, _VALUE_BYTES)
    for start in range(0, records, _RECORDS_PER_WRAPPER):
        builder: Any = LegacyRecordBatchBuilder(magic, _CODECS[codec], 1 << 30)
        end = min(start + _RECORDS_PER_WRAPPER, records)
        # Inner offsets are absolute in v0, relative in compressed v1.
        first = start if magic == 0 or codec == "none" else 0
        for number in range(end - start):
            index = start + number
            builder.append(
                first + number, FIRST_TIMESTAMP_MS + index, key_of(0, index), values[index % len(values)]
            )
        data = bytes(builder.build())
        # The CRC does not cover the offset: the broker puts that of the last message into the wrapper.
        yield data if codec == "none" else _OFFSET.pack(end - 1) + data[_OFFSET.size :]
