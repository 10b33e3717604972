"""A condition on a damaged log: of what can be read, no row that matches is lost, whatever was pruned."""

from __future__ import annotations

import json
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError
from storage_core.options.predicate import And, Comparison, Or
from storage_core.scan import time_pruning
from tests.examples import examples

START_MS = 1_000_000
VALUE = b"x" * 700
BATCHES = 24

TIMES = st.integers(-20, 260).map(lambda after_ms: (START_MS + after_ms) * 1000)
PREDICATES = st.one_of(
    st.builds(Comparison, st.just("timestamp"), st.sampled_from([">=", ">", "="]), TIMES),
    st.builds(Comparison, st.just("timestamp"), st.sampled_from(["<", "<="]), TIMES),
    st.builds(Comparison, st.just("offset"), st.sampled_from(["<", ">=", "="]), st.integers(0, 2 * BATCHES)),
    st.builds(Comparison, st.just("key"), st.just("="), st.just(b"k1")),
)
DAMAGE = st.lists(
    st.tuples(st.integers(0, BATCHES * 1600), st.binary(min_size=1, max_size=70) | st.just(bytes(3000))),
    min_size=1,
    max_size=3,
)


@pytest.fixture
def eager(monkeypatch):
    """Makes look-ups try what would not pay."""

    def eager(price_bytes):
        monkeypatch.setattr(time_pruning, "LOOKUP_COST_BYTES", price_bytes)
        if price_bytes < 0:
            monkeypatch.setattr(time_pruning.WalkBudget, "allows", lambda *_: True)
            monkeypatch.setattr(time_pruning, "LARGE_BATCH_BYTES", 0)

    return eager


def build(log, record_of):
    """Batches of two records, 5 ms apart, in three segments."""
    for number in range(BATCHES):
        records = [
            record_of(delta, START_MS + 10 * number + 5 * delta, b"k%d" % (number % 3), VALUE)
            for delta in range(2)
        ]
        log.append(*records)
        if number % 8 == 7 and number < BATCHES - 1:
            log.roll()
    return log.write(index_interval_bytes=1)


def damage(log, places):
    """Overwrite bytes of the log files, taken as one after the other."""
    paths = [log.log_path(segment.base_offset) for segment in log.segments]
    for position, content in places:
        before = 0
        for path in paths:
            data = path.read_bytes()
            start = position - before
            if 0 <= start < len(data):
                path.write_bytes((data[:start] + content + data[start + len(content) :])[: len(data)])
            before += len(data)


COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def meets(predicate, row):
    if isinstance(predicate, Comparison):
        return COMPARE[predicate.operator](row[predicate.column], predicate.value)
    combine = all if isinstance(predicate, And) else any
    return combine(meets(child, row) for child in predicate.children)


@examples(200)
@given(
    st.lists(PREDICATES, min_size=1, max_size=3).map(tuple),
    st.sampled_from([And, Or]),
    DAMAGE,
    st.sampled_from(["DROPMALFORMED", "PERMISSIVE"]),
    st.sampled_from([-(1 << 40), 0, 3000, 96 << 10]),
    st.booleans(),
    st.sampled_from([None, 1, 1000]),
)
def test_no_row_is_lost_but_what_is_reported(
    new_log_root,
    record_of,
    read_rows,
    eager,
    predicates,
    kind,
    places,
    mode,
    price_bytes,
    use_indexes,
    records,
):
    eager(price_bytes)
    log = build(new_log_root().rows(), record_of)
    damage(log, places)
    predicate = kind(predicates)
    options = {"mode": mode, "use_indexes": use_indexes, "include_headers": False, "include_metadata": False}
    everything = read_rows(log.path, **options)
    found = read_rows(
        log.path, where=predicate, max_timestamp_disorder=0, max_records_per_partition=records, **options
    )
    readable = [row for row in everything if row["offset"] is not None]
    assert [row for row in found if row["offset"] is not None] == [
        row for row in readable if meets(predicate, row)
    ]
    # Whatever would have matched and is damaged is reported, if it is without the condition.
    reported, reported_at_all = lost_offsets(found), lost_offsets(everything)
    offsets = {row["offset"] for row in readable}
    missing = {row["offset"] for row in log.rows if meets(predicate, row)} - offsets
    assert missing & reported_at_all <= reported


def lost_offsets(rows):
    """Return the offsets of which rows say that they may be lost."""
    described = [json.loads(row["_corrupt_record"]) for row in rows if row.get("_corrupt_record")]
    return {offset for each in described for offset in range(each["startOffset"], each["endOffset"])}


def test_damage_that_is_met_is_reported_whatever_the_condition(new_log_root, record_of, read_rows, overwrite):
    log = build(new_log_root().rows(), record_of)
    place = log.places[0][3]
    overwrite(log.log_path(), place[1] - 5, b"damage"[:5])
    with pytest.raises(CorruptRecordError):
        read_rows(log.path, where="key = 'none'")
    rows = read_rows(
        log.path, where="key = 'none'", mode="PERMISSIVE", include_headers=False, include_metadata=False
    )
    assert [row["offset"] for row in rows] == [None]
    assert '"startOffset": 6' in rows[0]["_corrupt_record"] or '"startOffset":6' in rows[0]["_corrupt_record"]
    # What is not read is not reported.
    assert read_rows(log.path, where="offset >= 20 AND key = 'none'") == []


def test_damage_that_begins_in_what_is_left_out_is_reported_if_it_reaches_what_is_read(
    new_log_root, record_of, read_rows, overwrite
):
    log = build(new_log_root().rows(), record_of)
    # Offsets 32 to 35, of which one by one is planned.
    start, end = log.places[32][0][0], log.places[32][1][1]
    overwrite(log.log_path(32), start, bytes(end - start))
    options = {"mode": "PERMISSIVE", "include_headers": False, "include_metadata": False}
    for use_indexes in (True, False):
        rows = read_rows(
            log.path, where="offset >= 33", max_records_per_partition=1, use_indexes=use_indexes, **options
        )
        assert lost_offsets(rows) == {32, 33, 34, 35}
        assert [row["offset"] for row in rows if row["offset"] is not None] == list(range(36, 48))
