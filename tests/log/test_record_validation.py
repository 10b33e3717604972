from __future__ import annotations

import pickle
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import AppendError, InvalidRecordError, InvalidTimestampError
from storage_core.log.log_validator import validate_records
from storage_core.log_config import LogConfig

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
PATH = "/logs/orders-0"
COMPACTED = LogConfig(cleanup_policy="compact")
BOUNDED = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
UNITS_PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


def records(**columns):
    count = len(next(iter(columns.values())))
    columns.setdefault("value", pa.array([b"v"] * count))
    return pa.record_batch(columns)


def timestamps(*values, kind=None):
    return records(timestamp=pa.array(values, kind or pa.int64()))


def validate(table, config, **options):
    validate_records(table, config, NOW_MS, **options)


# -- Keys --------


def test_a_compacted_log_takes_records_with_keys():
    validate(records(key=pa.array([b"a", b"", b"b"])), COMPACTED)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize(
    ("keys", "row"),
    [
        (pa.array([b"a", None, b"b", None]), 1),
        (pa.array([None, "a"]), 0),
        (pa.nulls(3), 0),
        (pa.array(["a", "b", None]).dictionary_encode(), 2),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])), 1),
        (pa.array([b"a", b"b", None], pa.binary_view()), 2),
        (pa.array([None, b"a", None, b"b"])[1:], 1),
    ],
    ids=["binary", "text", "null", "dictionary", "null in a dictionary", "view", "slice"],
)
def test_and_none_without(keys, row, policy):
    with pytest.raises(InvalidRecordError, match=f"none in record {row}") as raised:
        validate(records(key=keys), LogConfig(cleanup_policy=policy), path=PATH)
    assert raised.value.path == PATH


def test_a_compacted_log_takes_no_records_that_have_no_column_for_keys():
    with pytest.raises(InvalidRecordError, match="none in record 0"):
        validate(records(value=pa.array([b"v"])), COMPACTED)
    validate(records(value=pa.array([], pa.binary())), COMPACTED)


def test_the_row_counts_over_all_chunks():
    keys = pa.chunked_array([[b"a", b"b"], [], [b"c", None]])
    table = pa.table({"value": pa.chunked_array([[b"v"] * 4]), "key": keys})
    with pytest.raises(InvalidRecordError, match="none in record 3"):
        validate(table, COMPACTED)


def test_another_log_takes_records_without_keys():
    validate(records(key=pa.array([None, b"a"])), LogConfig())
    validate(records(value=pa.array([None, b"v"])), LogConfig())


# -- Timestamps --------


def test_the_message_names_the_bounds():
    with pytest.raises(InvalidTimestampError, match=f"from {NOW_MS - 1000} to {NOW_MS + 2000} ms"):
        validate(timestamps(0), BOUNDED)


def test_by_default_any_past_and_one_hour_of_future():
    validate(timestamps(0, 1, -1, NOW_MS + HOUR_MS), LogConfig())
    with pytest.raises(InvalidTimestampError, match="in record 1"):
        validate(timestamps(0, NOW_MS + HOUR_MS + 1), LogConfig())


def test_the_time_of_the_append_takes_the_place_of_any_timestamp():
    config = BOUNDED.replace(message_timestamp_type="LogAppendTime")
    validate(timestamps(0, -2, 2**63 - 1), config)


def test_no_timestamps_at_all():
    validate(records(value=pa.array([b"v"])), BOUNDED)
    validate(timestamps(), BOUNDED)
    validate(
        pa.table({"value": pa.chunked_array([], pa.binary()), "timestamp": pa.chunked_array([], pa.int64())}),
        BOUNDED,
    )


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_finer_unit_is_floored_to_milliseconds(unit, zone):
    per_ms = UNITS_PER_SECOND[unit] // 1000
    kind = pa.timestamp(unit, zone)
    lowest, highest = (NOW_MS - 1000) * per_ms, (NOW_MS + 2000) * per_ms + per_ms - 1
    validate(timestamps(lowest, highest, -per_ms, -1, kind=kind), BOUNDED)
    for value in (lowest - 1, highest + 1, -per_ms - 1, 0):
        with pytest.raises(InvalidTimestampError, match=f"found {value // per_ms} in record 1"):
            validate(timestamps(NOW_MS * per_ms, value, kind=kind), BOUNDED)


def test_seconds():
    kind = pa.timestamp("s")
    now = NOW_MS // 1000
    validate(timestamps(now - 1, now, now + 2, kind=kind), BOUNDED)
    for value in (now - 2, now + 3, 0, -1, 2**63 - 1):
        with pytest.raises(InvalidTimestampError, match=f"found {value * 1000} in record 1"):
            validate(timestamps(now, value, kind=kind), BOUNDED)


def test_seconds_between_bounds_that_are_none():
    config = LogConfig(message_timestamp_before_max_ms=1500, message_timestamp_after_max_ms=1500)
    kind = pa.timestamp("s")
    now = NOW_MS // 1000
    validate(timestamps(now - 1, now + 1, kind=kind), config)
    for value in (now - 2, now + 2):
        with pytest.raises(InvalidTimestampError, match=f"found {value * 1000} in record 0"):
            validate(timestamps(value, kind=kind), config)


def test_the_row_of_a_timestamp_counts_over_all_chunks():
    column = pa.chunked_array([[NOW_MS], [], [NOW_MS, 0]])
    table = pa.table({"value": pa.chunked_array([[b"v"] * 3]), "timestamp": column})
    with pytest.raises(InvalidTimestampError, match="in record 2"):
        validate(table, BOUNDED)


def test_a_column_of_another_type_is_for_others_to_refuse():
    validate(records(timestamp=pa.array(["now"])), BOUNDED)


EDGES = [NOW_MS - 1001, NOW_MS - 1000, NOW_MS, NOW_MS + 2000, NOW_MS + 2001, -2, -1, 0, 2**62, -(2**62)]


@given(
    st.lists(st.none() | st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1), max_size=6),
    st.sampled_from([1000, 2**63 - 1, NOW_MS + 5]),
    st.sampled_from([0, 2000, 2**63 - 1]),
    st.sampled_from(["int64", "s", "ms", "us", "ns"]),
)
def test_against_the_rule_for_one_record(values, before_ms, after_ms, unit):
    """The rule as Kafka states it, on the floored milliseconds."""
    config = LogConfig(message_timestamp_before_max_ms=before_ms, message_timestamp_after_max_ms=after_ms)
    kind = pa.int64() if unit == "int64" else pa.timestamp(unit)
    per_second = UNITS_PER_SECOND["ms" if unit == "int64" else unit]
    expected = []
    for row, value in enumerate(values):
        if value is not None:
            timestamp_ms = value * 1000 // per_second
            is_far = NOW_MS - timestamp_ms > before_ms or timestamp_ms - NOW_MS > after_ms
            if timestamp_ms != -1 and (is_far or timestamp_ms < -1):
                expected.append((row, timestamp_ms))
    for table in (timestamps(*values, kind=kind), chunked(*values, kind=kind)):
        if not expected:
            validate(table, config)
            continue
        with pytest.raises(InvalidTimestampError) as raised:
            validate(table, config)
        found = [(error.batch_index, error.message.rsplit(" ", 1)[1]) for error in raised.value.record_errors]
        assert found == [(row, f"{timestamp_ms}.") for row, timestamp_ms in expected]


# -- Which records --------


def chunked(*values, kind=None):
    """Return a table whose column has a chunk of one row, an empty one, and the rest in another."""
    kind = kind or pa.int64()
    column = pa.chunked_array([pa.array(part, kind) for part in (values[:1], [], values[1:])], kind)
    return pa.table({"value": pa.array([b"v"] * len(values)), "timestamp": column})


def errors_of(table, config):
    with pytest.raises(AppendError) as raised:
        validate(table, config)
    return raised.value


def test_each_record_without_a_key_is_named():
    error = errors_of(records(key=pa.array([None, b"a", None, None, None])), COMPACTED)
    assert [each.batch_index for each in error.record_errors] == [0, 2, 3, 4]
    assert {each.batch_number for each in error.record_errors} == {0}
    assert error.record_errors[1].message == "Expected a key, because cleanup.policy is compact, found none."
    assert error.record_error_count == 4
    assert "found none in record 0, record 2, record 3 and 1 more." in str(error)


def test_each_timestamp_is_named():
    error = errors_of(timestamps(NOW_MS, 5, NOW_MS, 7, 8, 9), BOUNDED)
    assert [each.batch_index for each in error.record_errors] == [1, 3, 4, 5]
    assert error.record_errors[2].message.endswith(f"allow at {NOW_MS}, found 8.")
    assert "found 5 in record 1, 7 in record 3, 8 in record 4 and 1 more." in str(error)


def test_a_record_is_named_once_for_its_key_first():
    """As in Kafka, the append is refused for a timestamp if any record is."""
    config = BOUNDED.replace(cleanup_policy="compact")
    table = records(key=pa.array([None, b"k", None, b"k"]), timestamp=pa.array([1, 2, NOW_MS, NOW_MS]))
    error = errors_of(table, config)
    assert isinstance(error, InvalidTimestampError)
    assert [(each.batch_index, each.message.split()[2]) for each in error.record_errors] == [
        (0, "key,"),
        (1, "timestamp"),
        (2, "key,"),
    ]
    assert "found none in record 0, record 2. " in str(error)
    assert "found 2 in record 1. " in str(error)


def test_millions_of_them_are_counted_and_ten_thousand_named():
    table = records(value=pa.nulls(1_000_000, pa.binary()))
    tracemalloc.start()
    error = errors_of(table, COMPACTED)
    assert tracemalloc.get_traced_memory()[1] < 40_000_000
    tracemalloc.stop()
    assert (error.record_error_count, len(error.record_errors)) == (1_000_000, 10_000)
    assert error.record_errors[-1].batch_index == 9_999
    assert len(str(error)) < 1000


def test_they_travel_with_the_error():
    error = errors_of(timestamps(5, NOW_MS, 7), BOUNDED)
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.record_errors, copied.record_error_count) == (error.record_errors, 2)
