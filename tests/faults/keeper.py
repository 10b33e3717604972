"""A process that maintains a log until it is killed: it appends, transacts, cleans, retains, and reports progress.

A fork of `killed_process` calls `main`. It reads a line ``<root> <seed>`` and continues with the log there. It prints
a line for each completed step::

    <log start> <log end> <first offset> <what>

The records from the first offset to the log end are of one kind: ``plain``, ``committed``, or ``aborted``, which
includes those left open. A marker may follow the last two. ``kept`` reports no records.
"""

from __future__ import annotations

import os
import random
import sys

import pyarrow as pa

from storage_core import LogConfig, LogDirectory
from storage_core.log import CleanerConfig
from tests.faults.session import TOPIC

KEEPER_CONFIG = LogConfig(
    internal_segment_bytes=6_000,
    segment_index_bytes=2_400,
    index_interval_bytes=500,
    cleanup_policy="compact,delete",
    min_cleanable_dirty_ratio=0.1,
    retention_bytes=40_000,
    delete_retention_ms=50,
    file_delete_delay_ms=0,
)
KEYS = 40


def key_and_value_at(offset: int) -> tuple[bytes, bytes | None]:
    """Return the key and the value at an offset, which name the offset."""
    rng = random.Random(offset)
    key = b"key %d" % rng.randrange(KEYS)
    if rng.random() < 0.1:
        return key, None
    return key, b"%d:%s" % (offset, b"v" * rng.choice((0, 10, 100, 300)))


def keep_forever(root: str, seed: int) -> None:
    rng = random.Random(seed)
    with LogDirectory.open(root, config=KEEPER_CONFIG) as logs:
        log = logs.get_or_create(TOPIC)
        if rng.random() < 0.5:
            # In addition to the explicit steps, all of it runs in the background.
            cleaner = CleanerConfig(dedupe_buffer_size=2_400, backoff_ms=5)
            logs.start_housekeeping(retention_check_interval_ms=5, cleaner=cleaner)
        say(log, log.log_end_offset, "kept")
        while True:
            (step,) = rng.choices((append, transact, leave_open, roll, clean, retain), (10, 6, 1, 2, 3, 1))
            say(log, *step(log, rng))


def append(log, rng) -> tuple[int, str]:
    first = log.log_end_offset
    log.append(table(first, rng.randint(1, 8)), acks=rng.choice((1, 1, 1, -1)))
    return first, "plain"


def transact(log, rng) -> tuple[int, str]:
    is_abort = rng.random() < 0.3
    # This aborts a transaction that a killed process left open.
    transaction = log.transaction(rng.randint(1, 3), flush=rng.random() < 0.2)
    first = log.log_end_offset
    for _ in range(rng.randint(1, 3)):
        transaction.append(table(log.log_end_offset, rng.randint(1, 4)))
    if is_abort:
        transaction.abort()
        return first, "aborted"
    transaction.commit()
    return first, "committed"


def leave_open(log, rng) -> tuple[int, str]:
    """Leave a transaction open, as a program that dies halfway does; another producer fences it later."""
    number = 10 + rng.randint(1, 2)
    if any(each.producer_id == number for each in log.open_transactions()):
        log.abort_transaction(number)
        return log.log_end_offset, "kept"
    first = log.log_end_offset
    log.transaction(number).append(table(first, 2))
    return first, "aborted"


def roll(log, rng) -> tuple[int, str]:
    log.roll()
    return log.log_end_offset, "kept"


def clean(log, rng) -> tuple[int, str]:
    log.clean(CleanerConfig(dedupe_buffer_size=rng.choice((240, 2_400, 24_000))))
    return log.log_end_offset, "kept"


def retain(log, rng) -> tuple[int, str]:
    log.apply_retention()
    return log.log_end_offset, "kept"


def table(first: int, count: int) -> pa.Table:
    keys, values = zip(*map(key_and_value_at, range(first, first + count)), strict=True)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def say(log, first: int, what: str) -> None:
    os.write(1, b"%d %d %d %s\n" % (log.log_start_offset, log.log_end_offset, first, what.encode()))


def main() -> None:
    os.write(1, b"ready\n")
    folder, what = sys.stdin.readline().rsplit(maxsplit=1)
    keep_forever(folder, int(what))
