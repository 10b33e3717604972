"""The logs that are handed over to a broker, each under its own topic.

The broker's topic of the same name gets the same settings.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.conformance.archives import unpack_case
from tests.interop.log_bytes import entries_of_log
from tests.interop.produced import CODECS, small_records
from tests.interop.workload import records_of_every_shape
from tests.interop.writing import DAY_MS, Writing, WrittenLog, append_in_groups

HOUR_MS = 60 * 60 * 1000


def _every_shape(writing: Writing) -> None:
    append_in_groups(writing, records_of_every_shape(900, writing.log.topic))


def _many_records(writing: Writing) -> None:
    for first in range(0, 100_000, 50_000):
        writing.append(small_records(50_000, first=first, step_ms=1))


def _one_by_one(writing: Writing) -> None:
    for record in small_records(120):
        writing.append([record])


def _nothing(writing: Writing) -> None:
    del writing


def _several_epochs(writing: Writing) -> None:
    for epoch in (0, 1, 2):
        append_in_groups(writing, small_records(400, first=epoch * 400), leader_epoch=epoch)


def _truncated(writing: Writing) -> None:
    _several_epochs(writing)
    # Inside the batch of offsets 1086 to 1199, in epoch 2.
    writing.truncate_to(1100, rows_up_to=1086)
    append_in_groups(writing, small_records(300, first=2000), leader_epoch=2)


def _truncated_at_the_end(writing: Writing) -> None:
    _several_epochs(writing)
    # Inside the batch of offsets 686 to 799: nothing of epoch 2 remains.
    writing.truncate_to(700, rows_up_to=686)


def _truncated_fully(writing: Writing) -> None:
    _several_epochs(writing)
    writing.log.truncate_fully_and_start_at(5_000)
    writing.rows.clear()
    writing.next_offset = 5_000
    append_in_groups(writing, small_records(300, first=5_000), leader_epoch=2)


def _deleted_records(writing: Writing) -> None:
    append_in_groups(writing, records_of_every_shape(900, "deleted"))
    writing.delete_records(333)


def _all_deleted(writing: Writing) -> None:
    append_in_groups(writing, small_records(500))
    writing.delete_records(500)


def _rolled(writing: Writing) -> None:
    for first in (0, 100, 200):
        append_in_groups(writing, small_records(100, first=first))
        writing.log.roll()


def _empty_in_the_middle(writing: Writing) -> None:
    """Leave an empty segment before others."""
    writing.append(small_records(3))
    writing.truncate_to(2, rows_up_to=0)
    writing.log.roll()
    append_in_groups(writing, small_records(100, first=2))


def _rolled_by_time(writing: Writing) -> None:
    for first in range(0, 2_000, 50):
        writing.append(small_records(50, first=first, step_ms=60_000))


def _some_more(writing: Writing) -> None:
    append_in_groups(writing, small_records(300, first=3_000), leader_epoch=2)


def _old_formats(writing: Writing) -> None:
    """Append a broker's log whose message format changed twice: v0, v1 and v2, with and without compression."""
    with tempfile.TemporaryDirectory() as scratch:
        root, expected = unpack_case("mixed-magic", Path(scratch))
        name = "mixed-1"
        content = {int(path.stem): path.read_bytes() for path in (root / name).glob("*.log")}
        writing.append_batches(
            [entry.content for entry in entries_of_log(content)], expected["partitions"][name]["records"]
        )


def _append_time(writing: Writing) -> None:
    for first in range(0, 900, 100):
        append_in_groups(writing, small_records(100, first=first))
        writing.clock.advance(7_000)


def _keys_only(writing: Writing) -> None:
    """Valid for a compacted topic: every record has a key, and null values delete."""
    records = small_records(900)
    append_in_groups(
        writing,
        (
            each._replace(key=b"key %d" % (number % 40), value=None if number % 11 == 0 else each.value)
            for number, each in enumerate(records)
        ),
    )


# One value has 110 KB, and a batch must fit into a segment.
_SMALL_SEGMENTS = {"internal_segment_bytes": 190_000}
_TINY_SEGMENTS = {"internal_segment_bytes": 6_000, "index_interval_bytes": 300}

# The broker's cleaner must not run before the test's second read.
_COMPACTED = {"cleanup_policy": "compact", "min_compaction_lag_ms": 1000 * DAY_MS}

WRITTEN: dict[str, WrittenLog] = {
    **{
        f"own-codec-{codec}": WrittenLog(
            _every_shape,
            _SMALL_SEGMENTS,
            {"compression_type": codec.replace("none", "uncompressed")},
            segments=2,
        )
        for codec in CODECS
    },
    "own-large-segment": WrittenLog(_many_records),
    "own-large-batches": WrittenLog(_many_records, {}, {"batch_size": 500_000, "compression_type": "zstd"}),
    "own-one-by-one": WrittenLog(
        _one_by_one, {"internal_segment_bytes": 200, "index_interval_bytes": 0}, segments=60
    ),
    "own-every-batch-indexed": WrittenLog(_one_by_one, {"index_interval_bytes": 0}),
    "own-nothing": WrittenLog(_nothing),
    "own-epochs": WrittenLog(_several_epochs, _TINY_SEGMENTS, segments=4),
    "own-reopened": WrittenLog(_several_epochs, _TINY_SEGMENTS, segments=4, write_again=_some_more),
    "own-truncated": WrittenLog(_truncated, _TINY_SEGMENTS, segments=4),
    "own-truncated-at-the-end": WrittenLog(_truncated_at_the_end, _TINY_SEGMENTS, segments=2),
    "own-truncated-fully": WrittenLog(_truncated_fully, _TINY_SEGMENTS, segments=2, starts_at=5_000),
    "own-deleted-records": WrittenLog(_deleted_records, _SMALL_SEGMENTS, starts_at=333),
    "own-all-deleted": WrittenLog(_all_deleted, _TINY_SEGMENTS, starts_at=500),
    "own-rolled": WrittenLog(_rolled, segments=4),
    "own-empty-in-the-middle": WrittenLog(_empty_in_the_middle, segments=2),
    "own-rolled-by-time": WrittenLog(_rolled_by_time, {"segment_ms": 10 * HOUR_MS}, segments=3),
    "own-append-time": WrittenLog(
        _append_time, {**_TINY_SEGMENTS, "message_timestamp_type": "LogAppendTime"}, segments=4
    ),
    "own-compacted": WrittenLog(_keys_only, {**_TINY_SEGMENTS, **_COMPACTED}, segments=4),
    "own-old-formats": WrittenLog(
        _old_formats, {"internal_segment_bytes": 3_000, "index_interval_bytes": 0}, segments=6
    ),
    "own-preallocated": WrittenLog(_every_shape, {**_SMALL_SEGMENTS, "preallocate": "true"}, segments=2),
    "own-small-indexes": WrittenLog(
        _one_by_one, {"segment_index_bytes": 120, "index_interval_bytes": 0}, segments=8
    ),
}
