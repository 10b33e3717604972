"""A process that appends until it is killed, and reports what was acknowledged.

A fork of `killed_process` calls `main`. It reads a line ``<root> <seed>`` and appends to the log there, or
``<root> hold`` and only keeps the log directory open. After each append it prints the acknowledged ``<end offset>``.
"""

from __future__ import annotations

import os
import random
import sys

from storage_core import LogConfig, LogDirectory
from tests.faults.session import TOPIC, table_of

APPENDER_CONFIG = LogConfig(
    internal_segment_bytes=20_000, segment_index_bytes=2_400, index_interval_bytes=500
)


def value_at(offset: int) -> bytes:
    """The value at an offset, which names the offset."""
    return b"%d:%s" % (offset, b"v" * random.Random(offset).choice((0, 10, 100, 1000)))


def append_forever(root: str, seed: int) -> None:
    rng = random.Random(seed)
    with LogDirectory.open(root, config=APPENDER_CONFIG) as logs:
        exists = any(log.topic == TOPIC for log in logs.logs())
        log = logs.get(TOPIC, 0) if exists else logs.create(TOPIC, 0, APPENDER_CONFIG)
        say(log.log_end_offset)
        while True:
            first = log.log_end_offset
            values = [value_at(offset) for offset in range(first, first + rng.randint(1, 5))]
            info = log.append(table_of(values), acks=rng.choice((1, 1, 1, 1, 1, -1)))
            say(info.last_offset + 1)
            if rng.random() < 0.01:
                log.roll()


def hold(root: str) -> None:
    with LogDirectory.open(root, config=APPENDER_CONFIG):
        say(0)
        sys.stdin.read()


def say(end_offset: int) -> None:
    os.write(1, b"%d\n" % end_offset)


def main() -> None:
    os.write(1, b"ready\n")
    folder, what = sys.stdin.readline().rsplit(maxsplit=1)
    if what == "hold":
        hold(folder)
    else:
        append_forever(folder, int(what))
