"""A process that appends until it is killed, and the expected content of its log.

As a script, it opens a log directory, appends record after record and prints the last acknowledged offset of each
append. Each record follows from its number, so the expected content is known afterwards.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.interop.clients import Row
from tests.interop.produced import small_records
from tests.interop.writing import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.interop.workload import Sendable

_REPOSITORY = Path(__file__).resolve().parents[2]
_LONGEST_TABLE = 90


def append_until_killed(
    root: Path, topic: str, settings: Mapping[str, object], *, acknowledged: int, seed: int
) -> int:
    """Start a process that appends to a new log, and kill it with SIGKILL while it does.

    Args:
        root: A log directory; created if it does not exist.
        topic: Partition 0 of it is written.
        settings: Of the log.
        acknowledged: The kill comes some time after this offset is acknowledged.
        seed: Determines the sizes of the appends and the moment of the kill.

    Returns:
        The last acknowledged offset.
    """
    arguments = [f"{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "tests.interop.crash_appender", str(root), topic, str(seed), *arguments]
    source = random.Random(f"crash {seed}")
    last = -1
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY) as appender:
        assert appender.stdout is not None
        for line in appender.stdout:
            last = int(line)
            if last >= acknowledged:
                break
        time.sleep(source.random() / 100)
        appender.kill()
        # Offsets printed before the kill were acknowledged, too.
        for line in appender.stdout:
            last = int(line) if line.endswith("\n") else last
    assert last >= acknowledged, "the process ended by itself"
    return last


def rows_of_appender(topic: str, end_offset: int) -> list[Row]:
    """Return the rows of a log up to an end offset."""
    return [
        Row(topic, 0, offset, record.key, record.value, (), record.timestamp_ms, 0)
        for offset, record in enumerate(small_records(end_offset))
    ]


def _tables(seed: int) -> Iterator[list[Sendable]]:
    source = random.Random(f"tables {seed}")
    first = 0
    while True:
        count = source.randint(1, _LONGEST_TABLE)
        yield small_records(count, first=first)
        first += count


def _append(root: str, topic: str, seed: str, *arguments: str) -> None:
    from storage_core import LogConfig, LogDirectory

    config = LogConfig.from_dict(dict(argument.split("=", 1) for argument in arguments))
    with LogDirectory.open(root) as logs:
        log = logs.create(topic, 0, config)
        for records in _tables(int(seed)):
            print(log.append(table_of(records)).last_offset, flush=True)


if __name__ == "__main__":
    _append(*sys.argv[1:])
