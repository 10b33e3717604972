"""A sound log whose values hold copies of batches, and indexes that point at them: no answer changes."""

from __future__ import annotations

import random
import struct

import pytest

MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
OFFSETS = 100
COPIES = 5
COPIED_MS = 7_000_000


@pytest.fixture
def log(log_root, record_of, batch_bytes, record_bytes):
    """Offsets 0 to 49 and 50 to 99, a batch each; every fifth value is copies of the batches that would come next."""

    def copy(offset):
        times = (COPIED_MS + offset, COPIED_MS + offset)
        records = [record_bytes(0, 0, None, b"never a row" * 12)]
        return batch_bytes(offset, records, last_offset_delta=0, timestamps_ms=times)

    log = log_root.rows()
    for offset in range(OFFSETS):
        value = bytes([offset]) * 150
        if offset % 5 == 2:
            value = b"-" * 9 + b"".join(copy(offset + 1 + n) for n in range(COPIES)) + b"-" * 9
        log.append(record_of(0, 1_000 + offset, None, value))
        if offset == OFFSETS // 2 - 1:
            log.roll()
    return log.write(index_interval_bytes=600)


def copies_in(segment):
    """Where copies begin in a segment: offset and position of each, value by value."""
    found = []
    for outer in (2 + segment.base_offset + 5 * n for n in range(10)):
        position, values = -1, []
        for offset in range(outer + 1, outer + 1 + COPIES):
            head = struct.pack(">q", offset)
            times = struct.pack(">qq", COPIED_MS + offset, COPIED_MS + offset)
            position = segment.data.index(times, position + 1)
            assert segment.data[position - 27 : position - 19] == head
            values.append((offset, position - 27))
        found.append(values)
    return found


def true_entries(log, segment):
    content = log.log_path(segment.base_offset).with_suffix(".index").read_bytes()
    return [
        (segment.base_offset + offset, position) for offset, position in struct.iter_unpack(">ii", content)
    ]


def write_index(log, segment, entries):
    content = b"".join(
        struct.pack(">ii", offset - segment.base_offset, position) for offset, position in entries
    )
    log.log_path(segment.base_offset).with_suffix(".index").write_bytes(content)


def write_time_index(log, segment, entries):
    content = b"".join(
        struct.pack(">qi", timestamp_ms, offset - segment.base_offset) for timestamp_ms, offset in entries
    )
    log.log_path(segment.base_offset).with_suffix(".timeindex").write_bytes(content)


def with_entry(entries, forged):
    """Entries that ascend, with one that was forged among them."""
    before = [each for each in entries if each[0] < forged[0] and each[1] < forged[1]]
    after = [each for each in entries if each[0] > forged[0] and each[1] > forged[1]]
    return [*before, forged, *after]


def check_reads(log, read_rows, rng):
    for _ in range(8):
        start, end = sorted(rng.sample(range(OFFSETS + 1), 2))
        mode = rng.choice(MODES)
        options = {"mode": mode, "start": start, "end": end}
        if rng.random() < 0.5:
            options["max_records_per_partition"] = rng.randrange(1, 30)
        check(read_rows(log.root, **options), log.rows[start:end], options)
    options = {"mode": rng.choice(MODES)}
    check(read_rows(log.root, **options), log.rows, options)
    first, last = sorted(rng.sample(range(OFFSETS + 1), 2))
    options |= {"starting_timestamp": 1_000 + first, "ending_timestamp": 1_000 + last}
    check(read_rows(log.root, **options), log.rows[first:last], options)


def check(found, expected, options):
    found = [{name: value for name, value in row.items() if name != "_corrupt_record"} for row in found]
    assert found == expected, options


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(4, 12))]


@pytest.mark.cases(3, 10)
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_entry_into_a_value(log, log_root, read_rows, seed, is_clean):
    """One of each value, beside true ones; and what the copies say of times."""
    rng = random.Random(seed)
    if is_clean:
        log_root.mark_clean()
    for segment in log.segments:
        entries = true_entries(log, segment)
        values = copies_in(segment)
        forged = [rng.choice(copies) for copies in rng.sample(values, rng.randrange(1, len(values)))]
        for each in forged:
            entries = with_entry(entries, each)
        write_index(log, segment, entries)
        if rng.random() < 0.5:
            write_time_index(log, segment, [(COPIED_MS + offset, offset) for offset, _ in sorted(forged)])
    check_reads(log, read_rows, rng)


@pytest.mark.parametrize("seed", SEEDS)
def test_entries_at_random(log, read_rows, seed):
    rng = random.Random(seed)
    for segment in log.segments:
        count = rng.randrange(1, 20)
        offsets = sorted(rng.sample(range(segment.base_offset, segment.base_offset + 50), count))
        positions = sorted(rng.sample(range(len(segment.data)), count))
        write_index(log, segment, list(zip(offsets, positions, strict=True)))
    check_reads(log, read_rows, rng)


@pytest.mark.parametrize("mode", MODES)
def test_the_first_entry_is_compared_with_the_segment_itself(log, read_rows, mode):
    """However many follow that bear one another out."""
    segment = log.segments[0]
    for copies in copies_in(segment):
        write_index(log, segment, copies[:1])
        for offset in (copies[0][0], copies[-1][0]):
            options = {"mode": mode, "start": offset, "end": offset + 1}
            check(read_rows(log.root, **options), log.rows[offset : offset + 1], options)
