"""Logs for tests: a clock that a test moves, small segments, and records told by their values."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from storage_core import LogConfig, LogDirectory

NOW_MS = 1_700_000_000_000
# A record without a key whose value has this length makes a batch of 100 bytes (61 for the header).
VALUE_BYTES = 32
BATCH_BYTES = 100

MARKER = ".kafka_cleanshutdown"
# Damaged bytes of the fixture `root`: segment, position, and the batches before it in the segment.
DAMAGE = {
    "a batch in the middle of the last segment": (30, 250, 2),
    "a batch of an earlier segment": (10, 350, 3),
    "the last batch of an earlier segment": (10, 950, 9),
    "the first batch of the log": (0, 70, 0),
}


class Clock:
    """Moves only when a test moves it."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


def table(*values, timestamps=None, keys=None):
    columns = {"value": pa.array(values, pa.binary())}
    if timestamps is not None:
        columns["timestamp"] = pa.array(timestamps, pa.int64())
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return pa.table(columns)


def value(number: int) -> bytes:
    """Return a value that is told by its number, and makes a batch of 100 bytes."""
    return str(number).rjust(VALUE_BYTES, "0").encode()


def append(log, count=1, *, timestamps=None, **options):
    """Append records one by one, each told by its offset."""
    for index in range(count):
        timestamp = None if timestamps is None else [timestamps[index]]
        info = log.append(table(value(log.log_end_offset), timestamps=timestamp), **options)
    return info


def offsets(log, *arguments, **options):
    return [offset for batch in log.read(*arguments, **options) for offset in batch["offset"].to_pylist()]


def values(log, *arguments, **options):
    return [each for batch in log.read(*arguments, **options) for each in batch["value"].to_pylist()]


def small(segment_bytes=10 * BATCH_BYTES, **config):
    """Return a configuration with small segments: ten batches of `append` fit one."""
    return LogConfig(
        **{"internal_segment_bytes": segment_bytes, "index_interval_bytes": BATCH_BYTES * 2, **config}
    )


def open_directory(path, **options):
    return LogDirectory.open(path, **{"clock": Clock(), "config": small(), **options})


def flushing_only_on_append(logs):
    """Return these logs without the thread that flushes those with `flush.ms`: it would be first, now and then."""
    logs._periodic_flush.stop()
    return logs


def crash(logs) -> None:
    """Leave a log directory as a killed process does: as it is, and unlocked."""
    for state in logs._checkpoints.states.values():
        state.segments.close_handlers()
    logs._file_lock.release()


def names(path) -> list[str]:
    return sorted(os.listdir(path))


def fingerprint(path) -> dict[str, tuple[int, bytes]]:
    """Return every file below a path, with its time and its bytes."""
    return {
        str(each.relative_to(path)): (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
        for each in sorted(Path(path).rglob("*"))
    }


def contents(path) -> dict[str, bytes]:
    return {name: data for name, (_, data) in fingerprint(path).items()}


def name(base_offset, suffix="log"):
    return f"{base_offset:020d}.{suffix}"


def unclean(root, recovery_point=None):
    """Make it as after a crash: no marker, and as much known to be flushed as is said."""
    (root / MARKER).unlink()
    recovery_points = root / "recovery-point-offset-checkpoint"
    if recovery_point is None:
        recovery_points.unlink()
    else:
        recovery_points.write_text(f"0\n1\norders 0 {recovery_point}\n")


def flip(file, position):
    content = bytearray(file.read_bytes())
    content[position] ^= 0xFF
    file.write_bytes(content)


def state(log):
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.segment_base_offsets,
        [(each.epoch, each.start_offset) for each in log.leader_epochs],
        [log.offset_for_timestamp(timestamp_ms) for timestamp_ms in (0, 500, 2050, 3500, 3501)],
        offsets(log),
    )


def reopened(root, **options):
    """Return the log's state when it is opened again."""
    with open_directory(root, **options) as logs:
        return state(logs.get("orders"))


def write(root, count=12, *, topic="orders", partition=0):
    with open_directory(root) as logs:
        append(logs.create(topic, partition), count)
