"""Logs built here: every shape of a broker's log, a few KB each."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

from tests.damage.base_log import BaseLog
from tests.damage.legacy import message
from tests.damage.writer import ABORT, COMMIT, LogWriter
from tests.record.encoding import CODECS, LZ4, Batch, Record
from tests.record.frames import lz4_frame

_LEGACY_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}


@cache
def built_logs() -> dict[str, BaseLog]:
    """Return every log by its name."""
    logs = [
        *(_legacy(magic, name) for magic in (0, 1) for name in _LEGACY_CODECS),
        *(_v2(name) for name in CODECS),
        _v1_append_time(),
        _legacy_compacted(0),
        _legacy_compacted(1),
        _around_the_other_format(0),
        _around_the_other_format(1),
        _mixed_segment(),
        _mixed_segments(),
        _transactions(is_clean=True),
        _transactions(is_clean=False),
        _compacted(),
        _preallocated(),
        _topics(),
        _high_offsets(),
        _log_start(),
        _copies(),
        _tiny(),
        _nested(),
        _nested_segments("segments-in-values"),
        _nested_segments("segments-in-values-apart", distance=3),
        _nested_segments("segments-in-values-from-afar", distance=1000),
        _nested_segments("segments-in-values-compacted", gap=9),
        _nested_segments("segments-in-values-lz4", codec=3),
        _nested_segments("segments-in-values-snappy", codec=2, distance=3),
        _nested_messages(0),
        _nested_messages(1),
        _nested_messages(0, gap=3),
        _nested_messages(1, gap=3),
    ]
    return {log.name: log for log in logs}


def _legacy(magic, codec_name):
    log = LogWriter(f"v{magic}-{codec_name}")
    partition = log.partition(index_interval_bytes=500)
    for _ in range(3):
        for _ in range(4):
            partition.messages(magic, 5, codec=_LEGACY_CODECS[codec_name], value_bytes=900)
        partition.roll()
    partition.messages(magic, 3, codec=_LEGACY_CODECS[codec_name])
    return log.build()


def _v1_append_time():
    log = LogWriter("v1-append-time", is_clean=False)
    partition = log.partition()
    for codec in (0, 1, 3, 2):
        partition.messages(1, 3, codec=codec, append_time=True).messages(1, 3, codec=codec)
        partition.roll()
    partition.messages(1, 2, append_time=True)
    return log.build()


def _legacy_compacted(magic):
    log = LogWriter(f"v{magic}-compacted")
    partition = log.partition()
    for _ in range(3):
        partition.messages(magic, 5, codec=1, gaps=(0, 2)).skip(3).messages(magic, 4, gaps=(1,)).skip(1)
        partition.messages(magic, 6, codec=3, gaps=(3, 4)).messages(magic, 4, codec=2, gaps=(3,))
        partition.roll()
    partition.messages(magic, 3)
    return log.build()


def _around_the_other_format(magic):
    """Wrappers around messages of the other format, as an old cleaner left them (KAFKA-4298)."""
    log = LogWriter(f"v{magic}-around-v{1 - magic}")
    partition = log.partition()
    for codec in (1, 2, 3):
        partition.messages(magic, 5, codec=codec, gaps=(0, 2), inner_magic=1 - magic).messages(magic, 2)
        partition.messages(magic, 3, codec=codec, inner_magic=1 - magic, append_time=magic == 1).skip(3)
        partition.roll()
    partition.messages(magic, 3, codec=1, inner_magic=1 - magic)
    return log.build()


def _v2(codec_name):
    codec = CODECS[codec_name]
    log = LogWriter(f"v2-{codec_name}")
    partition = log.partition()
    for _ in range(3):
        for number in range(6):
            # More than a page per segment, so that reads use the indexes.
            partition.batch(4, codec=codec, value_bytes=900, append_time=number == 3)
        partition.roll()
    partition.batch(2, codec=codec).batch(3, codec=codec)
    return log.build()


def _mixed_segment():
    """Write all formats into each segment, as after an upgrade or a downgrade."""
    log = LogWriter("mixed-in-segment")
    partition = log.partition()
    for _ in range(2):
        partition.messages(0, 3).messages(1, 3, codec=1).batch(3, codec=4).messages(0, 4, codec=3)
        partition.batch(2).messages(1, 2).messages(0, 2, codec=2, value_bytes=300).batch(4, value_bytes=300)
        partition.roll()
    partition.messages(1, 2, codec=2).batch(2, codec=2)
    return log.build()


def _mixed_segments():
    """Return a log that was upgraded twice."""
    log = LogWriter("mixed-in-log", is_clean=False)
    partition = log.partition()
    partition.messages(0, 4).messages(0, 4, codec=1).roll()
    partition.messages(0, 3, codec=3).messages(1, 4).messages(1, 4, codec=3).roll()
    partition.messages(1, 4, codec=2).batch(4).batch(4, codec=3).roll()
    partition.batch(3, codec=4).batch(3)
    return log.build()


def _transactions(*, is_clean):
    log = LogWriter("transactions-clean" if is_clean else "transactions-unclean", is_clean=is_clean)
    partition = log.partition()
    for number in range(3):
        partition.transactional(11, value_bytes=2500).batch(2, producer=5).transactional(12, 3, codec=number)
        partition.marker(11, ABORT).transactional(11).transactional(12, value_bytes=2500).marker(12, COMMIT)
        partition.transactional(13, 2).marker(11, COMMIT)
        partition.roll()
        partition.transactional(12).marker(13, ABORT if number % 2 else COMMIT).marker(12, ABORT)
    if is_clean:
        partition.transactional(11).marker(11, ABORT).batch(2)
    else:
        partition.transactional(14).batch(2).transactional(11).marker(11, COMMIT)
    return log.build()


def _compacted():
    log = LogWriter("v2-compacted")
    partition = log.partition()
    for number in range(3):
        partition.batch(6, gaps=(0, 3), codec=number).skip(4).batch(5, gaps=range(5), producer=9)
        partition.batch(4, gaps=(1, 2, 3)).skip(1).batch(3, gaps=(2,), codec=4)
        partition.transactional(21, 3, gaps=(0, 1, 2)).marker(21, COMMIT).skip(5)
        partition.roll()
    partition.batch(3).batch(2)
    return log.build()


def _preallocated():
    log = LogWriter("unclean-preallocated", is_clean=False)
    partition = log.partition()
    for _ in range(2):
        for _ in range(5):
            partition.batch(5, value_bytes=500)
        partition.roll()
    for number in range(6):
        partition.batch(5, value_bytes=500, codec=number % 5)
    return log.build()


def _topics():
    """Similar partitions, between which files are swapped."""
    log = LogWriter("topics")
    for topic, number in (("orders", 0), ("orders", 1), ("orders-1", 1), ("empty", 0)):
        partition = log.partition(topic, number)
        if topic != "empty":
            partition.batch(3).batch(3, codec=1).roll().batch(3).batch(3).roll().batch(3)
    return log.build()


def _high_offsets():
    """Offsets up to Kafka's second highest."""
    log = LogWriter("high-offsets")
    first = 2**63 - 60
    partition = log.partition(base_offset=first)
    partition.batch(4).batch(5, codec=3).roll().batch(6).messages(1, 4, codec=1).roll()
    partition.batch(4).skip(30).batch(2)
    return log.build()


def _log_start():
    """Build a log that starts inside a batch, and whose high watermark is below its end."""
    log = LogWriter("log-start", is_clean=False)
    partition = log.partition()
    for _ in range(2):
        partition.batch(4).batch(4, codec=4).roll()
    partition.batch(4).batch(4)
    key = ("events", 0)
    return log.build(log_starts={key: 6}, high_watermarks={key: partition.next_offset - 3})


def _copies():
    """Return two brokers' copies of one partition; the second one lags."""
    logs = []
    for root, batches in (("first/", 8), ("second/", 5)):
        log = LogWriter("copies", root=root)
        partition = log.partition()
        for number in range(batches):
            partition.batch(3, codec=number % 5)
            if number in (2, 5):
                partition.roll()
        logs.append(log.build())
    return BaseLog(
        "copies", {**logs[0].files, **logs[1].files}, logs[0].rows, logs[0].committed, ("first", "second")
    )


def _tiny():
    """Copied log files without indexes, snapshots and checkpoints."""
    log = LogWriter("log-files-alone", is_clean=False)
    log.partition().batch(2).messages(0, 2).batch(1, codec=1).roll().messages(1, 2, codec=1).batch(2)
    built = log.build(with_indexes=False)
    files = {path: content for path, content in built.files.items() if path.endswith(".log")}
    return BaseLog(built.name, files, built.rows, built.committed)


def _nested():
    """Return a topic whose values are whole batches, such as a backup of segments."""
    log = LogWriter("batches-in-values")
    partition = log.partition()
    for _ in range(2):
        for _ in range(4):
            first = partition.next_offset
            inner = _inner_batch(partition, first)
            _append_values(partition, (inner, b"-" + inner + b"-"))
        partition.roll()
    partition.batch(2)
    return log.build()


def _nested_segments(name, *, codec=0, distance=0, gap=0):
    """Values with copies of consecutive batches: alone, after other bytes, or before them.

    Args:
        name: The log's name.
        codec: Of the enclosing batches.
        distance: From the offset after the enclosing batch to the first offset of the copies.
        gap: The number of missing offsets after each batch, where those of the copies fit.
    """
    log = LogWriter(name)
    partition = log.partition()
    rng = random.Random(name)
    for _ in range(2):
        for number in range(5):
            count = number % 3 + 1
            first = partition.next_offset + count + distance
            copies = b"".join(
                _inner_batch(partition, first + each, rng.randbytes(9)) for each in range(number % 3 + 1)
            )
            around = (b"", b"") if number % 2 else (rng.randbytes(7), rng.randbytes(90))
            values = [rng.randbytes(rng.randrange(40)) for _ in range(count)]
            values[number % count] = around[0] + copies + around[1]
            _append_values(partition, values, codec=codec)
            partition.skip(gap)
        partition.roll()
    partition.batch(2)
    return log.build()


def _nested_messages(magic, *, gap=0):
    """Messages whose values are messages and batches; such a value ends with its message."""
    log = LogWriter(f"messages-in-values-v{magic}{'-compacted' if gap else ''}")
    partition = log.partition()
    rng = random.Random(magic)
    for _ in range(2):
        for number in range(6):
            offset = partition.next_offset
            if number % 3 == 2:
                inner = [_inner_batch(partition, offset + 1)]
            else:
                inner = [_inner_message(partition, magic, offset + each) for each in (1, 2)]
            value = rng.randbytes(number % 2 * 20) + b"".join(inner)
            partition.rows[offset] = (7 if magic else -1, 0 if magic else -1, b"outer", value, ())
            partition.raw(message(magic, offset, b"outer", value, timestamp_ms=7 if magic else -1), offset, 7)
            partition.skip(gap)
        partition.roll()
    partition.messages(magic, 2)
    return log.build()


_INNER_VALUE = b"never a row"


def _inner_batch(partition, first_offset, extra=b""):
    """Return a batch for use as a value."""
    headers = ((b"extra", extra),) if extra else ()
    partition.inner_rows.add(
        (first_offset, (5, 0, b"inner", _INNER_VALUE, (("extra", extra),) if extra else ()))
    )
    return Batch((Record(0, 5, b"inner", _INNER_VALUE, headers),), first_offset).encode()


def _inner_message(partition, magic, offset):
    """Return a message for use as a value."""
    timestamp_ms = 5 if magic else -1
    partition.inner_rows.add((offset, (timestamp_ms, 0 if magic else -1, b"inner", _INNER_VALUE, ())))
    return message(magic, offset, b"inner", _INNER_VALUE, timestamp_ms=timestamp_ms)


def _append_values(partition, values, *, codec=0):
    """Append a batch of records with these values."""
    first = partition.next_offset
    records = tuple(Record(delta, 6 + delta, b"outer", value) for delta, value in enumerate(values))
    batch = Batch(records, first, codec)
    if codec == LZ4:
        # A codec stores incompressible data unchanged.
        batch = dataclasses.replace(batch, payload=lz4_frame([batch.encode_records()], stored=True))
    for offset, timestamp_ms, key, value, headers in batch.rows:
        partition.rows[offset] = (timestamp_ms, 0, key, value, headers)
    partition.raw(batch.encode(), first + len(values) - 1)
