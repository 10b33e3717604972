"""Topics written by a broker and appended again by `storage_core`: the original batches, or only their records."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from storage_core import LogDirectory
from tests.interop.log_bytes import Entry, entries_of_log
from tests.interop.writing import Clock, config_of, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.workload import Sendable

# Makes each table one batch.
_ONE_BATCH = {"batch_size": 1 << 24}
_LARGEST_TIMESTAMP = 35

Settings = Mapping[str, Mapping[str, object]]


def entries_of_partition(partition: Path) -> list[Entry]:
    """All batches of a partition, in order."""
    return entries_of_log({int(path.stem): path.read_bytes() for path in partition.glob("*.log")})


def append_batches_again(
    source: Path, target: Path, settings: Settings, names: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Append the batches of closed partitions to new logs, one by one, as the broker received them.

    Args:
        source: The root with the partitions.
        target: A new log directory.
        settings: By topic.
        names: The partition directories of each topic; partition 0 only if None.
    """
    with LogDirectory.open(target) as logs:
        for topic, topic_settings in settings.items():
            for name in names[topic] if names else [f"{topic}-0"]:
                log = logs.create(topic, int(name.rpartition("-")[2]), config_of(topic_settings))
                for entry in entries_of_partition(source / name):
                    log.append_batches(entry.content)
                # The caller advances a follower's high watermark.
                log.update_high_watermark(log.log_end_offset)


def append_records_again(
    source: Path, target: Path, records: Mapping[str, Sequence[Sendable]], settings: Settings, clock: Clock
) -> None:
    """Append the records of each batch as one table to new logs.

    Args:
        source: The closed partitions. They tell which records made up a batch, and when it was appended.
        target: A new log directory.
        records: By topic, from offset 0.
        settings: By topic.
        clock: The clock of the target; set to the broker's append times.
    """
    with LogDirectory.open(target, clock=clock) as logs:
        for topic, all_records in records.items():
            log = logs.create(topic, 0, config_of({**settings[topic], **_ONE_BATCH}))
            for entry in entries_of_partition(source / f"{topic}-0"):
                (largest_timestamp_ms,) = struct.unpack_from(">q", entry.content, _LARGEST_TIMESTAMP)
                clock.set(largest_timestamp_ms)
                info = log.append(table_of(all_records[entry.base_offset : entry.last_offset + 1]))
                assert (info.first_offset, info.last_offset) == (entry.base_offset, entry.last_offset)
                assert info.batch_count == 1
