"""The record parsers of aiokafka (Cython) and kafka-python (pure Python), with the same interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from benchmarks.peers.arrow_columns import RecordColumns
from benchmarks.peers.input import LogInput

# Records converted to columns at once: few enough to keep Python's garbage collector idle (with whole 1 MiB batches it
# halves aiokafka's speed), enough for list comprehensions to pay off.
_RECORDS_AT_ONCE = 128


def aiokafka_parser() -> Any:
    """aiokafka's ``MemoryRecords``.

    Raises:
        RuntimeError: Only its pure Python fallback is installed, whose slowness would flatter the other contenders.
    """
    from aiokafka.record._crecords import MemoryRecords as CompiledMemoryRecords
    from aiokafka.record.memory_records import MemoryRecords

    if MemoryRecords is not CompiledMemoryRecords:
        raise RuntimeError(f"Expected aiokafka's compiled parser, found {MemoryRecords}.")
    return MemoryRecords


def kafka_python_parser() -> Any:
    """kafka-python's ``MemoryRecords``.

    Raises:
        RuntimeError: It would compute CRCs in Python, which takes most of its time.
    """
    from kafka.record import MemoryRecords, util

    if util.crc32c_c is None:
        raise RuntimeError("Expected kafka-python to find the crc32c package, found its own CRC in Python.")
    return MemoryRecords


def iterate(parser: Any, inputs: Sequence[LogInput]) -> int:
    """Check each CRC and create each record without accessing its fields; return the number of records."""
    count = 0
    for source in inputs:
        for batch in _checked_batches(parser, source):
            for _ in batch:
                count += 1
    return count


def build_arrow(parser: Any, inputs: Sequence[LogInput]) -> int:
    """Check each CRC and build all seven columns; return the number of rows."""
    rows = 0
    for source in inputs:
        columns = RecordColumns(source.topic, source.partition)
        for batch in _checked_batches(parser, source):
            timestamp_type = batch.timestamp_type
            # chain, because aiokafka's batch can be iterated only once and islice would start over.
            records = chain(batch)
            while some := list(islice(records, _RECORDS_AT_ONCE)):
                columns.keys += [record.key for record in some]
                columns.values += [record.value for record in some]
                columns.offsets += [record.offset for record in some]
                columns.timestamps_ms += [record.timestamp for record in some]
                columns.timestamp_types += [timestamp_type] * len(some)
            if columns.is_full:
                rows += columns.take()
        rows += columns.take()
    return rows


def _checked_batches(parser: Any, source: LogInput) -> Iterator[Any]:
    for data in source.read():
        records = parser(data)
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                raise RuntimeError(f"CRC mismatch in {source.path}.")
            yield batch
