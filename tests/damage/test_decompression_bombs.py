"""Batches that inflate to many times their size: rejected within the limit, with an error that names them."""

from __future__ import annotations

import pytest

from tests.damage.bombs import BOMBS
from tests.damage.legacy import message, wrapper
from tests.damage.measured import can_measure_memory
from tests.record.encoding import Batch, Record, compress, sized, varint

LIMIT_BYTES = 64 << 20
"""The default of ``maxDecompressedBatchBytes``."""

# The decompressed batch, two copies while its buffer grows and gzip returns it, and everything else that a read needs.
FACTOR = 3
ALLOWANCE_BYTES = 64 << 20

TOO_LARGE = {
    "gzip, one member", "gzip, many members", "snappy, one block", "snappy, xerial blocks", "snappy, lying length",
    "lz4, large blocks", "zstd, one frame", "zstd, many frames",
}  # fmt: skip
LEGACY_BOMBS = [name for name, (codec, _) in BOMBS.items() if codec != 4]


def v2_bomb(name):
    codec, make = BOMBS[name]
    return Batch((Record(),), 1, codec, payload=make(), count=1).encode()


def legacy_bomb(name, magic):
    codec, make = BOMBS[name]
    return message(magic, 1, None, make(), timestamp_ms=5, attributes=codec)


def write_around(root, bomb):
    """Write good batches at offsets 0, 2 and, in a separate segment, 3; the bomb at offset 1."""
    folder = root / "events-0"
    folder.mkdir()
    good = [Batch((Record(),), offset).encode() for offset in (0, 2, 3)]
    (folder / f"{0:020d}.log").write_bytes(good[0] + bomb + good[1])
    (folder / f"{3:020d}.log").write_bytes(good[2])
    return len(good[0]), len(good[0]) + len(bomb)


def check_memory(measured, limit_bytes=LIMIT_BYTES):
    most_bytes = FACTOR * limit_bytes + ALLOWANCE_BYTES
    if can_measure_memory():
        assert measured.resident_bytes < most_bytes
    assert measured.allocated_bytes < most_bytes


@pytest.fixture(params=[2, 0, 1])
def magic(request):
    return request.param


@pytest.fixture
def bomb(magic, name):
    return v2_bomb(name) if magic == 2 else legacy_bomb(name, magic)


cases = pytest.mark.parametrize(
    ("magic", "name"),
    [*((2, name) for name in BOMBS), *((magic, name) for magic in (0, 1) for name in LEGACY_BOMBS)],
    indirect=["magic"],
)


@pytest.mark.cases(4, 14)
@cases
def test_a_bomb_is_an_error_that_names_it(root, measuring_process, bomb, name, magic):
    start, _ = write_around(root, bomb)
    measured = measuring_process.read(root)
    assert measured.error == ("BatchTooLargeError" if name in TOO_LARGE else "CorruptRecordError")
    assert f"byte{'s' if measured.error else ''} {start}" in measured.message
    check_memory(measured)


@cases
def test_reading_continues_after_a_bomb(root, measuring_process, bomb, name, magic):
    start, end = write_around(root, bomb)
    dropped = measuring_process.read(root, mode="DROPMALFORMED")
    assert (dropped.error, dropped.offsets) == (None, [0, 2, 3])
    check_memory(dropped)
    permissive = measuring_process.read(root, mode="PERMISSIVE")
    assert [offset for offset in permissive.offsets if offset is not None] == [0, 2, 3]
    (damage,) = permissive.damage
    assert (damage["startByte"], damage["endByte"]) == (start, end)
    assert (damage["startOffset"], damage["endOffset"]) == (1, 2)
    check_memory(permissive)


@pytest.mark.parametrize("name", sorted(TOO_LARGE))
def test_a_smaller_limit_takes_less_memory(root, measuring_process, name):
    write_around(root, v2_bomb(name))
    limit_bytes = 16 << 20
    measured = measuring_process.read(root, max_decompressed_batch_bytes=limit_bytes)
    assert measured.error == "BatchTooLargeError"
    assert str(limit_bytes) in measured.message
    check_memory(measured, limit_bytes)


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_in_a_wrapper_is_refused(root, measuring_process, magic, codec):
    inner = wrapper(magic, codec, 1, message(magic, 1, b"k", b"v"))
    start, _ = write_around(root, wrapper(magic, codec, 1, inner))
    measured = measuring_process.read(root)
    assert measured.error == "CorruptRecordError"
    assert f"{start}" in measured.message
    dropped = measuring_process.read(root, mode="DROPMALFORMED")
    assert dropped.offsets == [0, 2, 3]


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_in_wrappers_do_not_multiply(root, measuring_process, magic, codec):
    """A thousand levels would inflate without end; the first one is rejected."""
    nested = message(magic, 1, b"k", bytes(1 << 20))
    for _ in range(8):
        nested = wrapper(magic, codec, 1, nested * 4)
    write_around(root, nested)
    measured = measuring_process.read(root)
    assert measured.error == "CorruptRecordError"
    check_memory(measured)


# Many small things in few bytes, each of which is allocated when it is decoded.
HEADERS = b"\0\x01"
SMALLEST_RECORD = sized(b"\0\0\0" + varint(-1) * 2 + b"\0")


def record_of_headers(count):
    return sized(b"\0\0\0" + varint(-1) * 2 + varint(count) + HEADERS * count)


MANY = {"thirty million": 30_000_000, "one more than the limit allows": LIMIT_BYTES // 128 + 1}


@pytest.mark.parametrize("include_headers", [True, False])
@pytest.mark.parametrize("name", MANY)
def test_a_bomb_of_record_headers(root, measuring_process, name, include_headers):
    payload = compress(4, record_of_headers(MANY[name]))
    start, end = write_around(root, Batch((Record(),), 1, 4, payload=payload, count=1).encode())
    options = {"include_headers": include_headers}
    measured = measuring_process.read(root, **options)
    assert measured.error == "BatchTooLargeError"
    assert f"bytes {start} to {end - 1}" in measured.message
    check_memory(measured)
    permissive = measuring_process.read(root, mode="PERMISSIVE", **options)
    assert [offset for offset in permissive.offsets if offset is not None] == [0, 2, 3]
    (damage,) = permissive.damage
    assert (damage["startByte"], damage["endByte"], damage["error"]) == (start, end, "BatchTooLargeError")
    check_memory(permissive)


def test_as_many_record_headers_as_the_limit_allows(root, measuring_process):
    limit_bytes = 8 << 20
    payload = compress(4, record_of_headers(limit_bytes // 128))
    write_around(root, Batch((Record(),), 1, 4, payload=payload, count=1).encode())
    measured = measuring_process.read(root, include_headers=True, max_decompressed_batch_bytes=limit_bytes)
    assert (measured.error, measured.offsets) == (None, [0, 1, 2, 3])
    check_memory(measured, limit_bytes)


@pytest.mark.parametrize("columns", [None, ["offset"], ["timestamp"]])
def test_a_bomb_of_records(root, measuring_process, columns):
    count = 9_000_000
    payload = compress(4, (SMALLEST_RECORD * count))
    (root / "events-0").mkdir()
    bomb = Batch((Record(),), 0, 4, payload=payload, count=count, last_offset_delta=count - 1)
    (root / "events-0" / f"{0:020d}.log").write_bytes(bomb.encode())
    measured = measuring_process.read(root, **{} if columns is None else {"columns": columns})
    assert measured.error == "BatchTooLargeError"
    check_memory(measured)
