"""The files of a log directory for fixed records at a fixed time: their bytes do not change unnoticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from tests.log.logs import NOW_MS, open_directory, small

# Of a random topic id, and of ours alone.
LEFT_OUT = {"partition.metadata", ".segmentlog-truncations"}


def records(first: int, count: int, *, keys: int = 7, every_key: bool = False) -> pa.Table:
    """Records told by their numbers, of many sizes, some with null keys, null values or headers."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": pa.array(
                [None if n % 5 == 0 and not every_key else b"key-%d" % (n % keys) for n in numbers],
                pa.binary(),
            ),
            "value": pa.array([None if n % 11 == 0 else b"%d " % n * (n % 40) for n in numbers], pa.binary()),
            "timestamp": pa.array([NOW_MS + n for n in numbers], pa.int64()),
            "headers": pa.array(
                [
                    [{"key": "trace", "value": b"%d" % n}, {"key": "empty", "value": None}][: n % 3]
                    for n in numbers
                ],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


def appends(log) -> None:
    """Append in every way, over several segments."""
    for first in range(0, 300, 30):
        log.append(records(first, 30), leader_epoch=first // 100)
    log.append(records(300, 3))
    log.flush()


def transactions(log) -> None:
    for number, how in enumerate(["commit", "abort", "commit"]):
        transaction = log.transaction(number, flush=True)
        for part in range(3):
            transaction.append(records(20 * number + part, 5))
        getattr(transaction, how)()
        log.append(records(100 + number, 2))
    log.roll()
    log.append(records(200, 2))


def cleaned(log) -> None:
    for first in range(0, 200, 10):
        log.append(records(first, 10, every_key=True))
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    log.clean()


def truncated(log) -> None:
    appends(log)
    log.truncate_to(217)
    log.append(records(1000, 4))
    log.delete_records(95)


def digest(root: Path) -> tuple[int, str]:
    """Return how many files with bytes are below a directory, and one SHA-256 of their names and bytes."""
    total = hashlib.sha256()
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name not in LEFT_OUT]
    files = [path for path in files if path.stat().st_size]
    for path in files:
        total.update(str(path.relative_to(root)).encode() + b"\n" + path.read_bytes())
    return len(files), total.hexdigest()[:16]


@pytest.mark.parametrize(
    ("work", "config", "expected"),
    [
        pytest.param(appends, {}, (34, "087a1f8c0360ccf4"), id="appends"),
        pytest.param(transactions, {}, (13, "d1a63d2820f52941"), id="transactions"),
        pytest.param(cleaned, {"cleanup_policy": "compact"}, (13, "bef2abd75e37e96a"), id="cleaned"),
        pytest.param(truncated, {}, (21, "069461ad5d2b1799"), id="truncated"),
    ],
)
def test_fixed_records_make_the_same_files_as_ever(tmp_path, work, config, expected):
    # Not compressed: other versions of the codecs' libraries write other bytes.
    with open_directory(tmp_path, config=small(4000, file_delete_delay_ms=0, **config)) as logs:
        work(logs.get_or_create("orders"))
    assert digest(tmp_path) == expected
