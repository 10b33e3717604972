"""A last segment that was cut, with extra bytes after it, or in which a bit has changed."""

from __future__ import annotations

import functools
import random

import pytest

from tests.faults.counting import cases
from tests.faults.crash_points import log_files, new_filesystem, open_directory, open_or_none
from tests.faults.session import ROOT, TOPIC, Session, records_of, table_of
from tests.faults.simulated_disk import CrashStyle
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.faults.soak import soak_seeds
from tests.faults.valid_batches import loses_valid_batches, valid_prefix_bytes

HEADER_BYTES = 61
# Bytes of a header that no CRC covers: base offset and leader epoch. Length and magic decide where and how it is checked.
NOT_COVERED = {*range(8), *range(12, 16)}
CLEAN_SHUTDOWN = f"{ROOT}/.kafka_cleanshutdown"
SIZES = (20, 50, 3, 90)
RECOVERIES = ("tail", "kafka")


@functools.cache
def golden(*, is_clean: bool = False) -> tuple[dict[str, bytes], tuple[tuple[int, bytes], ...]]:
    """Files and records of a log of several segments, the last of which holds several batches."""
    filesystem = new_filesystem()
    session = Session(filesystem).open()
    for number in range(6):
        session.append(SIZES[number % 4], 200)
    session.roll()
    for size in SIZES:
        session.append(size, 10)
    if is_clean:
        session.close()
    return filesystem.kill().files(), tuple(session.model.records)


def last_segment(files) -> str:
    return max(log_files(files))


def base_offset_of(path: str) -> int:
    return int(path.rpartition("/")[2][:20])


def filesystem_with(files, **changed) -> SimulatedFileSystem:
    filesystem = SimulatedFileSystem()
    for path, content in {**files, **changed}.items():
        filesystem.put(path, content)
    return filesystem


def batch_ends(data: bytes) -> list[int]:
    """Return where each batch of a log file ends, beginning with 0."""
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 12 + int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big"))
    return ends


def records_up_to(records, files, path, size_bytes) -> list[tuple[int, bytes]]:
    """Return the records in front of a place in the last segment."""
    data = files[path]
    whole = sum(end <= size_bytes for end in batch_ends(data)) - 1
    return [pair for pair in records if pair[0] < base_offset_of(path) + 2 * whole]


def open_and_go_on(filesystem, expected, recovery, name, *, is_thorough=True) -> None:
    """Check that the log holds what is expected, also after one more record and after a clean close."""
    with open_directory(filesystem, recovery) as logs:
        log = logs.get(TOPIC, 0)
        assert records_of(log) == expected, name
        path = max(log_files(filesystem.files()))
        content = filesystem.files()[path]
        assert len(content) == valid_prefix_bytes(content, base_offset_of(path)), (
            f"{name}: a torn end is left"
        )
        end_offset = log.log_end_offset
        assert end_offset == (expected[-1][0] + 1 if expected else 0), name
        log.append(table_of([b"999999:new"]))
    if not is_thorough:
        return
    with open_directory(filesystem) as logs:
        assert records_of(logs.get(TOPIC, 0)) == [*expected, (end_offset, b"999999:new")], name


@pytest.mark.cases(1, 1)
@pytest.mark.parametrize("recovery", RECOVERIES)
def test_every_length_of_the_last_segment(recovery, record_property):
    files, records = golden()
    path = last_segment(files)
    lengths = range(RECOVERIES.index(recovery), len(files[path]) + 1, 2)
    record_property(cases("The last segment cut at every length"), len(lengths))
    for size_bytes in lengths:
        filesystem = filesystem_with(files, **{path: files[path][:size_bytes]})
        expected = records_up_to(records, files, path, size_bytes)
        name = f"cut to {size_bytes}"
        open_and_go_on(filesystem, expected, recovery, name, is_thorough=size_bytes % 5 == 0)


def test_every_length_under_a_marker_that_says_all_is_well(record_property):
    """A cleanly closed log was cut: nothing is ever appended after half a batch."""
    files, records = golden(is_clean=True)
    assert CLEAN_SHUTDOWN in files
    path = last_segment(files)
    lengths = range(0, len(files[path]) + 1, 2)
    record_property(cases("The last segment cut at every length"), len(lengths))
    for size_bytes in lengths:
        filesystem = filesystem_with(files, **{path: files[path][:size_bytes]})
        expected = records_up_to(records, files, path, size_bytes)
        name = f"cut to {size_bytes}"
        open_and_go_on(filesystem, expected, "tail", name, is_thorough=size_bytes % 5 == 0)


TAILS = {
    "one zero": bytes(1),
    "zeros shorter than a header": bytes(17),
    "a header of zeros": bytes(HEADER_BYTES),
    "a sector of zeros": bytes(512),
    "many zeros": bytes(9000),
    "ones": b"\xff" * 300,
    "twos": b"\2" * 300,
    "noise": random.Random(1).randbytes(1000),
}


@pytest.mark.cases(4, 12)
@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("is_clean", [False, True], ids=["crashed", "clean"])
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_something_after_the_last_batch(tail, is_clean, recovery, record_property):
    record_property(cases("Zeros, garbage and old batches after the last batch"), 1)
    files, records = golden(is_clean=is_clean)
    path = last_segment(files)
    filesystem = filesystem_with(files, **{path: files[path] + tail})
    open_and_go_on(filesystem, list(records), recovery, "tail")


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("is_torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("number", range(3))
def test_batches_of_old_after_the_last_batch(number, is_torn, recovery, record_property):
    """Blocks of the disk that held the beginning of a log before: their CRC is right, their offsets are too low."""
    record_property(cases("Zeros, garbage and old batches after the last batch"), 1)
    files, records = golden()
    path = last_segment(files)
    stale = files[min(log_files(files))]
    ends = batch_ends(stale)
    stale = stale[ends[number] : ends[number + 2] - (9 if is_torn else 0)]
    filesystem = filesystem_with(files, **{path: files[path] + stale})
    before = filesystem.files()
    logs = open_or_none(filesystem, recovery)
    if logs is None:
        assert recovery == "tail"
        assert log_files(filesystem.files()) == log_files(before)
        logs = open_directory(filesystem, "kafka")
    logs.close()
    open_and_go_on(filesystem, list(records), "tail", "stale")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_flip(files, records, path, bit, batch) -> str:
    """Flip a bit of a batch, open in both ways."""
    data = files[path]
    ends = batch_ends(data)
    byte = bit // 8 - ends[batch]
    is_last = batch == len(ends) - 2 and path == last_segment(files)
    name = f"bit {bit % 8} of byte {byte} of batch {batch} in {path}"
    damaged = filesystem_with(files, **{path: flipped(data, bit)})
    before = damaged.files()
    in_front = records_up_to(records, files, path, ends[batch])
    others = [pair for pair in records if pair not in records_up_to(records, files, path, ends[batch + 1])]
    logs = open_or_none(damaged, "tail")
    if logs is None:
        assert loses_valid_batches(before), f"{name}: refused without a reason"
        assert log_files(damaged.files()) == log_files(before), f"{name}: refused, and changed files"
        with open_directory(damaged, "kafka") as again:
            found = records_of(again.get(TOPIC, 0))
        assert found[: len(in_front)] == in_front, name
        # An offset that no CRC covers may be taken for another one; a value never.
        assert byte in NOT_COVERED or found == in_front, name
        return "refused"
    with logs:
        found = records_of(logs.get(TOPIC, 0))
    assert found[: len(in_front)] == in_front, name
    assert {value for _, value in others} <= {value for _, value in found}, f"{name}: lost valid batches"
    if byte in NOT_COVERED:
        return "not provable"
    # What is left is no torn end, unless it was the last batch.
    assert is_last, f"{name}: damage went unnoticed"
    assert found == in_front, name
    return "cut"


@pytest.mark.parametrize("batch", [1, 3], ids=["in the middle", "the last one"])
def test_every_bit_of_a_header(batch, record_property):
    record_property(
        cases("Each bit of a batch header flipped, and a sample of its records"), HEADER_BYTES * 8
    )
    files, records = golden()
    path = last_segment(files)
    start = batch_ends(files[path])[batch]
    outcomes = [
        check_flip(files, records, path, bit, batch) for bit in range(start * 8, (start + HEADER_BYTES) * 8)
    ]
    assert outcomes.count("cut" if batch == 3 else "refused") >= (HEADER_BYTES - 12) * 8


@pytest.mark.parametrize("batch", range(4))
def test_bits_of_the_records(batch, record_property):
    record_property(cases("Each bit of a batch header flipped, and a sample of its records"), 60)
    files, records = golden()
    path = last_segment(files)
    start, end = batch_ends(files[path])[batch : batch + 2]
    bits = range((start + HEADER_BYTES) * 8, end * 8)
    for bit in random.Random(batch).sample(bits, 60):
        assert check_flip(files, records, path, bit, batch) == ("cut" if batch == 3 else "refused")


def test_what_recovery_has_dropped_does_not_come_back_after_new_records(record_property):
    """A new batch takes the place of a damaged one to the byte: the old ones after it would fit."""
    states, style = 60, CrashStyle("any", 512, fills_with_zeros=True)
    record_property(cases("Zeros, garbage and old batches after the last batch"), states)
    filesystem = new_filesystem()
    session = Session(filesystem).open()
    for _ in range(4):
        session.append(280, acks="all")
    path = last_segment(filesystem.files())
    damaged = filesystem_with(filesystem.files())
    data = filesystem.files()[path]
    damaged.put(path, flipped(data, 8 * (batch_ends(data)[2] - 1)))
    with open_directory(damaged.kill(), "kafka") as logs:
        assert [offset for offset, _ in records_of(logs.get(TOPIC, 0))] == [0]
    logs = open_directory(damaged, "kafka")
    new = b"5:" + b"n" * 280
    logs.get(TOPIC, 0).append(table_of([new]))
    assert len(damaged.files()[path]) == batch_ends(data)[2]
    old = session.model.records
    for seed in range(states):
        after = damaged.crash(random.Random(seed), style)
        with open_directory(after, "kafka") as again:
            found = records_of(again.get(TOPIC, 0))
        assert found in (old[:1], [*old[:1], (1, new)]), f"seed {seed}"


@pytest.mark.soak
def test_bits_of_all_segments_above_the_recovery_point():
    files, records = golden()
    path = last_segment(files)
    ends = batch_ends(files[path])
    for batch in range(len(ends) - 1):
        for bit in range(ends[batch] * 8, ends[batch + 1] * 8):
            check_flip(files, records, path, bit, batch)


@pytest.mark.soak
def test_any_damage_to_the_last_segment(capsys):
    """Several changes at once: what is opened is a prefix, and nothing valid is lost unasked."""
    files, records = golden()
    path = last_segment(files)
    count = 0
    for seed in soak_seeds(share=10):
        rng = random.Random(seed)
        data = bytearray(files[path])
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(data) + 1)
            data[start : start + rng.randint(0, 40)] = rng.choice(
                [bytes(20), rng.randbytes(30), b"", data[:90]]
            )
        filesystem = filesystem_with(files, **{path: bytes(data)})
        before = filesystem.files()
        logs = open_or_none(filesystem, "tail")
        assert logs is not None or loses_valid_batches(before), f"seed {seed}"
        with logs or open_directory(filesystem, "kafka") as opened:
            found = records_of(opened.get(TOPIC, 0))
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets)), f"seed {seed}"
        assert {value for _, value in found} <= {value for _, value in records}, f"seed {seed}"
        count += 1
    with capsys.disabled():
        print(f"\n{count:,} damaged last segments")
