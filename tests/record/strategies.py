"""Hypothesis strategies: any records, batches and logs that a writer could make."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.record.encoding import (
    CODECS,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Record,
)

MAX_INT = 2**31 - 1
EVERY_CODEC = tuple(CODECS.values())
NOW_MS = 1_700_000_000_000

byte_strings = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.binary(min_size=60, max_size=70),
    st.builds(
        lambda size, byte: bytes([byte]) * size, st.sampled_from([100, 8190, 8200]), st.integers(0, 255)
    ),
)
header_keys = st.text(max_size=8)
headers = st.lists(st.tuples(header_keys.map(str.encode), st.none() | st.binary(max_size=10)), max_size=4)
timestamps_ms = st.one_of(
    st.just(-1),
    st.integers(NOW_MS - 100_000, NOW_MS + 100_000),
    st.integers(0, 2**42),
    st.integers(-(2**62), 2**62),
)
# Mostly the next offset, at times a gap.
offset_steps = st.one_of(st.just(1), st.just(1), st.integers(1, 200), st.integers(1, 1 << 20))


@st.composite
def records(draw, max_size=12):
    """Records of one batch, offsets ascending."""
    step = draw(st.booleans())
    rows = draw(
        st.lists(
            st.tuples(
                offset_steps if step else st.just(1),
                timestamps_ms,
                byte_strings,
                byte_strings,
                st.one_of(st.just([]), headers),
            ),
            min_size=1,
            max_size=max_size,
        )
    )
    delta = draw(st.sampled_from([-1, -1, 50])) if step else -1
    result = []
    for gap, timestamp_ms, key, value, record_headers in rows:
        delta += gap
        result.append(Record(delta, timestamp_ms, key, value, tuple(record_headers)))
    # What repeats is decoded by other paths than what does not.
    repeat = draw(st.sampled_from([1] * 8 + [5, 60]))
    width = result[-1].offset_delta + 1
    return tuple(
        Record(
            record.offset_delta + number * width,
            record.timestamp_ms,
            record.key,
            record.value,
            record.headers,
        )
        for number in range(repeat if width * repeat < MAX_INT else 1)
        for record in result
    )


@st.composite
def batches(draw, codecs=EVERY_CODEC, max_records=12):
    rows = draw(records(max_records))
    attributes = sum(draw(st.sets(st.sampled_from([LOG_APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON]))))
    return Batch(
        rows,
        codec=draw(st.sampled_from(codecs)),
        attributes=attributes,
        leader_epoch=draw(st.integers(-1, 100)),
        last_offset_delta=rows[-1].offset_delta + draw(st.sampled_from([0, 0, 1, 300])),
        base_timestamp_ms=draw(st.none() | timestamps_ms),
        max_timestamp_ms=draw(st.none() | timestamps_ms),
        producer_id=draw(st.integers(-1, 2**40)),
        varint_width=draw(st.sampled_from([1, 1, 1, 2, 5])),
    )


@st.composite
def logs(draw, codecs=EVERY_CODEC, max_batches=6, max_records=12):
    """Batches one after the other; some of them often, so that a window may hold many."""
    found = draw(st.lists(batches(codecs, max_records), min_size=1, max_size=max_batches))
    repeat = draw(st.sampled_from([1] * 6 + [2, 40]))
    if sum(len(batch.records) for batch in found) * repeat > 1_000:
        repeat = 1
    offset = draw(st.sampled_from([0, 0, 1000, 2**40, 2**62]))
    placed = []
    for batch in found * repeat:
        placed.append(batch.at(offset))
        offset = placed[-1].last_offset + 1
    return placed
