"""A broker's own log (``UnifiedLog``) without the broker, in a separate JVM."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from tests.interop.jars import QUICK_JVM, kafka_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType


class Appended(NamedTuple):
    """The result of an append.

    Attributes:
        is_readable: Whether Kafka's own reader can read the records.
        are_consecutive: Whether their offsets are consecutive from 0.
        refusal: The name of the exception; None if the records were appended.
        record_errors: The indexes of the invalid records.
        first_offset: Of the appended records.
        last_offset: Of the appended records.
        stored: The bytes that the log stored for them.
    """

    is_readable: bool
    are_consecutive: bool
    refusal: str | None
    record_errors: tuple[int, ...] = ()
    first_offset: int = -1
    last_offset: int = -1
    stored: bytes = b""


class KafkaLogState(NamedTuple):
    """Offsets, leader epochs and producers: (id, epoch, last sequence, coordinator epoch, transaction, timestamp)."""

    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    leader_epochs: list[tuple[int, ...]]
    producers: list[tuple[int, ...]]


class KafkaRecord(NamedTuple):
    """A record as a consumer sees it, with its batch's timestamp type."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None


class LoadedLog(NamedTuple):
    """What a load leaves of a log.

    Attributes:
        refusal: The exception, and its message; None if the log was loaded.
        segments: The size of each segment by its base offset.
    """

    refusal: str | None
    log_start_offset: int = -1
    log_end_offset: int = -1
    segments: Mapping[int, int] = MappingProxyType({})


class KafkaLog:
    """Starts the JVM; a context manager. At most one log is open, and its clock does not advance."""

    def __init__(self) -> None:
        command = kafka_command("KafkaLog", options=["-Xmx256m", *QUICK_JVM, "-Dlog4j2.level=OFF"])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._questions.close()
        self._answers.close()
        if error is None:
            self._process.wait(timeout=300)
        else:
            self._process.kill()
            self._process.wait()

    def open(
        self,
        directory: Path,
        now_ms: int,
        properties: Mapping[str, object],
        *,
        is_clean: bool = True,
        log_start_offset: int = 0,
        recovery_point: int = 0,
    ) -> None:
        """Close the open log, and load or create another one; if not clean, as after a crash."""
        self._ask(b"O" + _to_load(directory, now_ms, properties, is_clean, log_start_offset, recovery_point))
        refusal = self._refusal()
        assert refusal is None, refusal

    def load(
        self,
        directory: Path,
        now_ms: int,
        properties: Mapping[str, object],
        *,
        is_clean: bool = True,
        log_start_offset: int = 0,
        recovery_point: int = 0,
    ) -> LoadedLog:
        """Load a log, and close it. The log that is open stays open."""
        self._ask(b"V" + _to_load(directory, now_ms, properties, is_clean, log_start_offset, recovery_point))
        refusal = self._refusal()
        if refusal is not None:
            return LoadedLog(f"{refusal}: {self._text()}")
        log_start_offset, log_end_offset, count = self._read(">qqi")
        numbers = self._read(f">{2 * count}q")
        return LoadedLog(
            None, log_start_offset, log_end_offset, dict(zip(numbers[::2], numbers[1::2], strict=True))
        )

    def append_as_leader(self, batch: bytes, *, leader_epoch: int = 0, origin: str = "CLIENT") -> Appended:
        """``UnifiedLog.appendAsLeader``."""
        self._ask(b"A" + _text(origin) + struct.pack(">ii", leader_epoch, len(batch)) + batch)
        is_readable, are_consecutive = map(bool, self._read(">??"))
        refusal = self._refusal()
        if refusal is not None:
            (count,) = self._read(">i")
            return Appended(is_readable, are_consecutive, refusal, tuple(self._read(f">{count}i")))
        first_offset, last_offset, size_bytes = self._read(">qqi")
        stored = self._answers.read(size_bytes)
        return Appended(is_readable, are_consecutive, None, (), first_offset, last_offset, stored)

    def append_as_follower(self, batches: bytes, *, leader_epoch: int) -> str | None:
        """``UnifiedLog.appendAsFollower``; the name of its exception, or None."""
        self._ask(b"F" + struct.pack(">ii", leader_epoch, len(batches)) + batches)
        return self._refusal()

    def assign_epoch_start_offset(self, leader_epoch: int, start_offset: int) -> str | None:
        """``UnifiedLog.assignEpochStartOffset``; the name of its exception, or None."""
        self._ask(b"E" + struct.pack(">iq", leader_epoch, start_offset))
        return self._refusal()

    def truncate_to(self, offset: int) -> str | None:
        """``UnifiedLog.truncateTo``; the name of its exception, or None."""
        self._ask(b"T" + struct.pack(">q", offset))
        return self._refusal()

    def truncate_fully_and_start_at(self, offset: int) -> str | None:
        """``UnifiedLog.truncateFullyAndStartAt``; the name of its exception, or None."""
        self._ask(b"U" + struct.pack(">q", offset))
        return self._refusal()

    def delete_records(self, before_offset: int) -> str | None:
        """``UnifiedLog.maybeIncrementLogStartOffset``; the name of its exception, or None."""
        self._ask(b"D" + struct.pack(">q", before_offset))
        return self._refusal()

    def roll(self) -> str | None:
        """``UnifiedLog.roll``; the name of its exception, or None."""
        self._ask(b"R")
        return self._refusal()

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """``UnifiedLog.endOffsetForEpoch``: epoch and offset, or -1 and -1."""
        self._ask(b"X" + struct.pack(">i", leader_epoch))
        epoch, offset = self._read(">iq")
        return epoch, offset

    def fetch(self, offset: int, max_bytes: int, *, min_one_message: bool) -> bytes | None:
        """``UnifiedLog.read`` up to the log end; None if the offset is out of range."""
        self._ask(b"G" + struct.pack(">qi?", offset, max_bytes, min_one_message))
        refusal = self._refusal()
        if refusal is not None:
            assert refusal == "OffsetOutOfRangeException", refusal
            return None
        (size_bytes,) = self._read(">i")
        return self._answers.read(size_bytes)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """``UnifiedLog.fetchOffsetByTimestamp``: offset, timestamp and leader epoch; -1 for what is missing."""
        self._ask(b"L" + struct.pack(">q", timestamp_ms))
        is_there, offset, found_ms, epoch = self._read(">?qqi")
        return (offset, found_ms, epoch) if is_there else None

    def records(self, batches: bytes) -> list[KafkaRecord] | str:
        """Return the records that Kafka's own reader finds in these batches (``MemoryRecords``), or its exception's name."""
        self._ask(b"B" + struct.pack(">i", len(batches)) + batches)
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        (size_bytes,) = self._read(">i")
        return list(_records(self._answers.read(size_bytes)))

    def clean(self, batches: bytes, surviving_offsets: Iterable[int], now_ms: int) -> bytes:
        """``MemoryRecords.filterTo``, with a delete retention of 0."""
        offsets = list(surviving_offsets)
        question = struct.pack(f">qi{len(offsets)}q", now_ms, len(offsets), *offsets)
        self._ask(b"C" + question + struct.pack(">i", len(batches)) + batches)
        (size_bytes,) = self._read(">i")
        return self._answers.read(size_bytes)

    def state(self) -> KafkaLogState:
        """Return the log's own view of its state."""
        self._ask(b"S")
        offsets = self._read(">qqq")
        epochs, producers = (
            [tuple(map(int, line.split())) for line in self._text().split(",") if line] for _ in range(2)
        )
        return KafkaLogState(*offsets, epochs, producers)

    def _ask(self, question: bytes) -> None:
        self._questions.write(question)
        self._questions.flush()

    def _refusal(self) -> str | None:
        said = self._text()
        return None if said == "ok" else said

    def _text(self) -> str:
        (length,) = self._read(">H")
        # Java writes characters beyond the first plane, and NUL, in its own way.
        return self._answers.read(length).decode(errors="replace")

    def _read(self, layout: str) -> tuple[int, ...]:
        data = self._answers.read(struct.calcsize(layout))
        return struct.unpack(layout, data)


def _to_load(
    directory: Path,
    now_ms: int,
    properties: Mapping[str, object],
    is_clean: bool,
    log_start_offset: int,
    recovery_point: int,
) -> bytes:
    body = struct.pack(">q?qqi", now_ms, is_clean, log_start_offset, recovery_point, len(properties))
    body += b"".join(_text(name) + _text(str(value)) for name, value in properties.items())
    return _text(str(directory)) + body


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _records(data: bytes) -> Iterator[KafkaRecord]:
    position = 0
    while position < len(data):
        numbers = struct.unpack_from(">qqi", data, position)
        contents: list[bytes | None] = []
        position += struct.calcsize(">qqi")
        for _ in range(2):
            (length,) = struct.unpack_from(">i", data, position)
            position += 4
            contents.append(None if length < 0 else data[position : position + length])
            position += max(length, 0)
        yield KafkaRecord(*numbers, *contents)
