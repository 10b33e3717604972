from __future__ import annotations

import pytest

from storage_core.errors import (
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    TimestampNotFoundError,
)
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.resolve import resolve


def test_offsets_by_partition(three_partitions, ranges_of):
    found = ranges_of(
        three_partitions,
        startingOffsets='{"orders":{"0":3,"1":-2},"payments":{"0":101}}',
        endingOffsets='{"orders":{"0":7,"1":-1},"payments":{"0":-1}}',
    )
    assert found == {"orders-0": (3, 7), "orders-1": (0, 0), "payments-0": (101, 105)}


def test_offsets_by_topic(three_partitions, ranges_of):
    found = ranges_of(
        three_partitions,
        startingOffsets='{"orders":"earliest","payments":{"0":101}}',
        endingOffsets='{"orders":{"0":7,"1":0},"payments":"latest"}',
    )
    assert found == {"orders-0": (0, 7), "orders-1": (0, 0), "payments-0": (101, 105)}


def test_one_timestamp_for_all(three_partitions, ranges_of):
    found = ranges_of(
        three_partitions, subscribe="orders", assign=None, endingTimestamp=1004, startingOffsets="earliest"
    )
    assert found == {"orders-0": (0, 4), "orders-1": (0, 0)}
    # Nothing is as young as the end: it is the latest offset.
    assert ranges_of(three_partitions, endingTimestamp=5000) == ranges_of(three_partitions)
    assert ranges_of(three_partitions, assign='{"orders":[0]}', startingTimestamp=1007) == {
        "orders-0": (7, 10)
    }


def test_timestamps_by_partition(three_partitions, ranges_of):
    found = ranges_of(
        three_partitions,
        assign='{"orders":[0],"payments":[0]}',
        startingOffsetsByTimestamp='{"orders":{"0":1002},"payments":2000}',
        endingOffsetsByTimestamp='{"orders":{"0":1006},"payments":3000}',
    )
    assert found == {"orders-0": (2, 6), "payments-0": (100, 105)}


def test_a_partition_without_so_young_a_record(three_partitions, ranges_of):
    expected = (
        r"^No offset matched from request of topic-partition orders-1 and timestamp 1000\. "
        r"Set startingOffsetsByTimestampStrategy=latest"
    )
    with pytest.raises(TimestampNotFoundError, match=expected):
        ranges_of(three_partitions, startingTimestamp=1000)
    found = ranges_of(three_partitions, startingTimestamp=1500, startingOffsetsByTimestampStrategy="latest")
    assert found == {"orders-0": (10, 10), "orders-1": (0, 0), "payments-0": (100, 105)}


def test_several_partitions_without_so_young_a_record_are_counted(three_partitions, ranges_of):
    expected = r"topic-partition orders-0 and .*Strategy=latest.* It is one of 2 such partitions, of 3 in all; their topics: orders\. \["
    with pytest.raises(TimestampNotFoundError, match=expected):
        ranges_of(three_partitions, startingTimestamp=1900)


def test_offsets_that_are_gone(three_partitions, caplog, ranges_of):
    options = {"subscribe": "payments", "startingOffsets": '{"payments":{"0":50}}'}
    expected = (
        r"^\[KAFKA_DATA_LOSS\.COULD_NOT_READ_OFFSET_RANGE\] Could not read records in offset \[50, 100\) for topic "
        r"partition payments-0: the log starts at offset 100\. Set failOnDataLoss to false"
    )
    with pytest.raises(OffsetOutOfRangeError, match=expected):
        ranges_of(three_partitions, **options)
    assert ranges_of(three_partitions, failOnDataLoss=False, **options) == {"payments-0": (100, 105)}
    assert "Could not read records in offset [50, 100)" in caplog.text


def test_the_log_start_offset_counts_not_the_first_segment(three_partitions, ranges_of):
    three_partitions.checkpoint("log-start-offset-checkpoint", {("orders", 0): 4})
    assert ranges_of(three_partitions, assign='{"orders":[0]}') == {"orders-0": (4, 10)}
    with pytest.raises(OffsetOutOfRangeError, match=r"\[3, 4\)"):
        ranges_of(three_partitions, assign='{"orders":[0]}', startingOffsets='{"orders":{"0":3}}')


def test_offsets_that_never_were(three_partitions, caplog, ranges_of):
    options = {"subscribe": "payments", "endingOffsets": '{"payments":{"0":110}}'}
    expected = r"\[105, 110\) for topic partition payments-0: the log end offset is 105\."
    with pytest.raises(OffsetOutOfRangeError, match=expected):
        ranges_of(three_partitions, **options)
    assert ranges_of(three_partitions, failOnDataLoss=False, **options) == {"payments-0": (100, 105)}
    assert "[105, 110)" in caplog.text


@pytest.mark.parametrize(
    "bounds",
    [
        {"startingOffsets": '{"orders":{"0":11}}'},
        {"startingTimestamp": 1005, "endingOffsets": '{"orders":{"0":3}}'},
        {"startingTimestamp": 1005, "endingTimestamp": 1002},
    ],
)
def test_starts_after_their_ends(three_partitions, bounds, ranges_of):
    expected = (
        r"^\[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\] The resolved start offset \d+ is greater than the "
        r"resolved end offset \d+ for topic orders partition 0\."
    )
    with pytest.raises(OptionError, match=expected):
        ranges_of(three_partitions, assign='{"orders":[0]}', **bounds)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"startingOffsets": '{"payments":{"0":50}}', "endingOffsets": '{"payments":{"0":60}}'}, (60, 60)),
        (
            {"startingOffsets": '{"payments":{"0":150}}', "endingOffsets": '{"payments":{"0":160}}'},
            (105, 105),
        ),
        ({"endingOffsets": '{"payments":{"0":60}}'}, (60, 60)),
    ],
)
def test_ranges_that_are_lost_as_a_whole_are_empty(three_partitions, caplog, bounds, expected, ranges_of):
    found = ranges_of(three_partitions, subscribe="payments", failOnDataLoss="false", **bounds)
    assert found == {"payments-0": expected}
    assert "Nothing is read of payments-0" in caplog.text


def test_a_mistake_is_not_passed_over_as_loss(three_partitions, ranges_of):
    with pytest.raises(OptionError, match="RESOLVED_START_OFFSET"):
        ranges_of(
            three_partitions,
            assign='{"orders":[0]}',
            failOnDataLoss="false",
            startingTimestamp=1005,
            endingTimestamp=1002,
        )


def test_ending_at_the_high_watermark(three_partitions, ranges_of):
    options = {"assign": '{"orders":[0]}', "endingAt": "highWatermark"}
    with pytest.raises(LogDirectoryError, match=r"high watermark of orders-0.*Use endingAt=logEnd"):
        ranges_of(three_partitions, **options)
    three_partitions.checkpoint("replication-offset-checkpoint", {("orders", 0): 7})
    assert ranges_of(three_partitions, **options) == {"orders-0": (0, 7)}
    assert ranges_of(three_partitions, **options, endingTimestamp=1008) == {"orders-0": (0, 7)}
    assert ranges_of(three_partitions, **options, endingTimestamp=1003) == {"orders-0": (0, 3)}
    with pytest.raises(OffsetOutOfRangeError, match=r"the high watermark is 7\."):
        ranges_of(three_partitions, **options, endingOffsets='{"orders":{"0":8}}')
    with pytest.raises(TimestampNotFoundError):
        ranges_of(three_partitions, **options, startingTimestamp=1008)


def test_read_committed_ends_at_the_last_stable_offset(log_root, ranges_of):
    log_root.partition("orders").data(2, timestamp_ms=5).transactional(7, timestamp_ms=6).data(
        2, timestamp_ms=7
    ).write()
    options = {"isolationLevel": "read_committed"}
    assert ranges_of(log_root, **options) == {"orders-0": (0, 2)}
    assert ranges_of(log_root, **options, endingTimestamp=7) == {"orders-0": (0, 2)}
    assert ranges_of(log_root) == {"orders-0": (0, 5)}
    with pytest.raises(OffsetOutOfRangeError, match=r"the last stable offset is 2\."):
        ranges_of(log_root, **options, endingOffsets='{"orders":{"0":3}}')
    # A transaction is open until its marker is below the high watermark.
    log_root.partition("orders").transactional(7).data().commit(7).data().write()
    log_root.checkpoint("replication-offset-checkpoint", {("orders", 0): 2})
    assert ranges_of(log_root, **options) == {"orders-0": (0, 4)}
    assert ranges_of(log_root, **options, endingAt="highWatermark") == {"orders-0": (0, 0)}


def test_the_end_of_the_log_is_not_looked_up_without_need(three_partitions):
    filesystem = FileSystem()
    bounds = {"startingOffsets": '{"orders":{"0":1}}', "endingOffsets": '{"orders":{"0":6}}'}
    options = parse_read_options({"path": str(three_partitions.path), "assign": '{"orders":[0]}', **bounds})
    (resolved,) = resolve(filesystem, options).partitions
    assert (resolved.start_offset, resolved.end_offset) == (1, 6)
    assert not [name for name in vars(resolved.log) if name == "log_end_offset"]
