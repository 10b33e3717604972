"""The batch builders of aiokafka (Cython) and kafka-python (pure Python), with the same interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MAGIC = 2
_NO_CODEC = 0
_NO_PRODUCER = (0, -1, -1, -1)
_NO_HEADERS: list[Any] = []


def aiokafka_builder() -> Any:
    """aiokafka's builder of v2 batches.

    Raises:
        RuntimeError: Only its pure Python fallback is installed, whose slowness would flatter the other contenders.
    """
    from aiokafka.record._crecords import DefaultRecordBatchBuilder as CompiledBuilder
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    if DefaultRecordBatchBuilder is not CompiledBuilder:
        raise RuntimeError(f"Expected aiokafka's compiled builder, found {DefaultRecordBatchBuilder}.")
    return DefaultRecordBatchBuilder


def kafka_python_builder() -> Any:
    """kafka-python's builder of v2 batches.

    Raises:
        RuntimeError: It would compute CRCs in Python.
    """
    from kafka.record import util
    from kafka.record.default_records import DefaultRecordBatchBuilder

    if util.crc32c_c is None:
        raise RuntimeError("Expected kafka-python to find the crc32c package, found its own CRC in Python.")
    return DefaultRecordBatchBuilder


def build_batches(
    builder_class: Any,
    keys: Sequence[bytes | None],
    values: Sequence[bytes],
    timestamps_ms: Sequence[int],
    batch_size_bytes: int,
) -> int:
    """Build batches, including CRCs, from existing Python objects; return the number of records."""
    builder = builder_class(_MAGIC, _NO_CODEC, *_NO_PRODUCER, batch_size_bytes)
    offset = 0
    for key, value, timestamp_ms in zip(keys, values, timestamps_ms, strict=True):
        if builder.append(offset, timestamp_ms, key, value, _NO_HEADERS) is None:
            builder.build()
            builder = builder_class(_MAGIC, _NO_CODEC, *_NO_PRODUCER, batch_size_bytes)
            offset = 0
            builder.append(offset, timestamp_ms, key, value, _NO_HEADERS)
        offset += 1
    builder.build()
    return len(values)
