from __future__ import annotations

import numpy as np
import pytest

from storage_core.compaction.cleaner import retained_records
from storage_core.record.decode import decode_records
from storage_core.record.section import WantedFields
from tests.compaction.segments import map_of
from tests.record.encoding import CONTROL, DELETE_HORIZON, Batch, Record
from tests.record.legacy_encoding import Message
from tests.record.sections import section_of

NOW_MS = 1000


def judge(batches, offsets, *, latest_offset=100, keeps_legacy_tombstones=True):
    section = section_of(b"".join(batch.encode() for batch in batches))
    columns = decode_records(section, WantedFields())
    offset_map = map_of(offsets, latest_offset)
    survives = retained_records(
        section, columns, offset_map, now_ms=NOW_MS, keeps_legacy_tombstones=keeps_legacy_tombstones
    )
    return survives.tolist(), int(np.count_nonzero(~survives & (columns.keys.lengths < 0)))


def keyed(*pairs, **header):
    return Batch(tuple(Record(delta, 0, key, value) for delta, (key, value) in enumerate(pairs)), **header)


def test_the_latest_record_of_a_key_survives():
    batches = [keyed((b"a", b"1"), (b"b", b"1"), (b"a", b"2")), keyed((b"a", b"3"), base_offset=3)]
    assert judge(batches, {b"a": 3, b"b": 1}) == ([False, True, False, True], 0)


def test_a_key_that_the_map_does_not_have_survives():
    assert judge([keyed((b"a", b"1"))], {}) == ([True], 0)


@pytest.mark.parametrize(
    ("latest_offset", "expected"), [(0, [False, True]), (1, [False, False]), (-1, [True, True])]
)
def test_what_lies_above_all_that_the_map_knows_survives(latest_offset, expected):
    assert judge([keyed((b"a", b"1"), (b"a", b"2"))], {b"a": 7}, latest_offset=latest_offset) == (expected, 0)


def test_records_without_a_key_go_as_far_as_the_map_knows():
    batches = [keyed((None, b"1"), (b"", b"2"), (None, b"3"))]
    assert judge(batches, {}, latest_offset=1) == ([False, True, True], 1)


@pytest.mark.parametrize(
    ("flag", "base_timestamp_ms", "expected"),
    [(0, 0, True), (DELETE_HORIZON, 1001, True), (DELETE_HORIZON, 1000, False), (DELETE_HORIZON, 5, False)],
    ids=["no horizon yet", "before", "at", "after"],
)
def test_a_tombstone_survives_until_its_horizon(flag, base_timestamp_ms, expected):
    batch = keyed((b"a", None), (b"b", b"1"), attributes=flag, base_timestamp_ms=base_timestamp_ms)
    assert judge([batch], {b"a": 0, b"b": 1}) == ([expected, True], 0)


def test_a_tombstone_that_a_value_follows_goes_at_once():
    assert judge([keyed((b"a", None), (b"a", b"1"))], {b"a": 1}) == ([False, True], 0)


def test_the_horizon_of_one_batch_does_not_count_for_another():
    batches = [
        keyed((b"a", None), attributes=DELETE_HORIZON, base_timestamp_ms=5),
        keyed((b"b", None), base_offset=1),
        keyed((b"c", None), base_offset=2, attributes=DELETE_HORIZON, base_timestamp_ms=5000),
    ]
    assert judge(batches, {}) == ([False, True, True], 0)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_tombstone_of_an_old_format_depends_on_its_segment(magic, keeps):
    messages = [
        Message(0, 5, b"a", None, magic),
        Message(1, 5, b"b", b"1", magic),
        Message(2, 5, None, b"1", magic),
    ]
    found = judge(messages, {b"a": 0, b"b": 1}, keeps_legacy_tombstones=keeps)
    assert found == ([keeps, True, False], 1)


def test_control_records_survive_whatever_their_key():
    control = keyed((b"\0\0\0\0", None), attributes=CONTROL)
    data = keyed((b"\0\0\0\0", b"1"), base_offset=1)
    unkeyed = keyed((None, b"1"), base_offset=2, attributes=CONTROL)
    assert judge([control, data, unkeyed], {b"\0\0\0\0": 9}) == ([True, False, True], 0)
