from __future__ import annotations

from crc32c import crc32c

from storage_core.record.batch_header import batch_fingerprint
from storage_core.record.record_batches import RecordBatches
from tests.record.encoding import Batch, counted_records

BATCHES = [
    Batch(counted_records(3), base_offset=0).encode(),
    Batch(counted_records(5), base_offset=3).encode(),
]


def parse(data):
    return RecordBatches.parse(data)


def test_the_fingerprint_covers_the_length_and_all_that_follows_the_leader_epoch():
    by_hand = b"".join(batch[8:12] + batch[16:61] for batch in BATCHES)
    assert batch_fingerprint(parse(b"".join(BATCHES)).headers) == crc32c(by_hand)


def test_a_fingerprint_continues_another():
    first, second = (parse(batch).headers for batch in BATCHES)
    assert batch_fingerprint(second, batch_fingerprint(first)) == batch_fingerprint(
        parse(b"".join(BATCHES)).headers
    )


def test_offsets_and_epochs_do_not_change_it_and_anything_else_does():
    batches = parse(b"".join(BATCHES))
    fingerprint = batch_fingerprint(batches.headers)
    assert batch_fingerprint(batches.with_offsets(1000, 7).headers) == fingerprint
    for field in (
        "batch_length",
        "magic",
        "crc",
        "attributes",
        "last_offset_delta",
        "max_timestamp_ms",
        "record_count",
    ):
        changed = batches.headers.copy()
        changed[field][1] += 1
        assert batch_fingerprint(changed) != fingerprint


def test_the_fingerprint_of_no_batches_is_zero():
    assert batch_fingerprint(parse(b"").headers) == 0
