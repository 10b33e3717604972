from __future__ import annotations

import numpy as np
import pytest

from storage_core.errors import InvalidRecordError
from storage_core.record.record_batches import ProducerSequence, advance_sequence, batch_of, batches_of
from tests.record.encoding import Batch, counted_records
from tests.record.golden import TWO_RECORDS
from tests.record.sections import window_of
from tests.record.written import bytes_of

MAX_INT = 2**31 - 1


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [
        (0, 0, 0),
        (5, 3, 8),
        (MAX_INT, 0, MAX_INT),
        (MAX_INT, 1, 0),
        (MAX_INT - 1, 3, 1),
        (0, MAX_INT, MAX_INT),
        (1, MAX_INT, 0),
        (-1, 10, -1),
    ],
)
def test_sequence_numbers_wrap_behind_the_largest(sequence, count, expected):
    assert advance_sequence(sequence, count) == expected


@pytest.mark.parametrize("codec", TWO_RECORDS)
def test_a_header_is_put_before_records_byte_for_byte(codec):
    data = TWO_RECORDS[codec].data
    batch = batch_of(
        data[61:],
        count=2,
        base_timestamp_ms=283843,
        max_timestamp_ms=283843,
        attributes=["none", "gzip", "snappy", "lz4", "zstd"].index(codec),
    )
    assert bytes_of([batch]) == data


def test_many_headers_are_those_of_one_batch_after_the_other():
    made = [Batch(counted_records(count, start=count * 100)) for count in (3, 1, 5)]
    bodies = [batch.encode_records() for batch in made]
    together = batches_of(
        bodies,
        counts=np.array([3, 1, 5]),
        base_timestamps_ms=np.array([300, 100, 500]),
        max_timestamps_ms=np.array([302, 100, 504]),
        base_offset=10,
        attributes=0,
        producer=ProducerSequence(7, 1, MAX_INT - 1),
    )
    singles = [
        batch_of(
            body,
            count=batch.count,
            base_timestamp_ms=batch.base_timestamp_ms,
            max_timestamp_ms=batch.max_timestamp_ms,
            base_offset=offset,
            producer=ProducerSequence(7, 1, sequence),
        )
        for body, batch, offset, sequence in zip(bodies, made, (10, 13, 14), (MAX_INT - 1, 1, 2), strict=True)
    ]
    assert bytes_of([together]) == bytes_of(singles)
    assert window_of(bytes_of([together])).headers.tobytes() == together.headers.tobytes()
    assert together.sizes_bytes.tolist() == [61 + len(body) for body in bodies]


class Huge(bytes):
    """Bytes that say that they are more than they are."""

    def __len__(self):
        return 2**31 - 49


def test_records_beyond_what_a_batch_can_hold_are_refused():
    with pytest.raises(InvalidRecordError, match="at most 2147483647 bytes, found 2147483648"):
        batch_of(Huge(), count=1, base_timestamp_ms=0, max_timestamp_ms=0)
    zeros = np.zeros(2, np.int64)
    with pytest.raises(InvalidRecordError, match="found 2147483648"):
        batches_of(
            [b"", Huge()],
            counts=zeros + 1,
            base_timestamps_ms=zeros,
            max_timestamps_ms=zeros,
            base_offset=0,
            attributes=0,
        )
