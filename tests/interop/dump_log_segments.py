"""Kafka's own tool for looking at log files, as a judge of indexes: `kafka.tools.DumpLogSegments`.

It is silent about a good index. One virtual machine looks at many files, because its start costs more than they do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.interop.jars import java_command, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SANITY_CHECK = "--index-sanity-check"
VERIFY_INDEX_ONLY = "--verify-index-only"

# Linux takes no argument of 128 KiB; a path has some hundred bytes.
_FILES_PER_RUN = 500
_TIMEOUT_S = 120

# What it says of good files.
_GOOD_LINE = re.compile(r"Dumping \S+|\S+ is empty\.|\S+ passed sanity check\.")


def complaints_about_indexes(partitions: Iterable[Path]) -> list[str]:
    """What the tool says in both of its checks of all offset and time indexes, except that all is well.

    Args:
        partitions: Partition directories of different names. Copies are looked at: the tool makes indexes that
            are missing.

    Raises:
        AssertionError: It did not look at every file.
    """
    complaints = []
    with tempfile.TemporaryDirectory(prefix="dumped-") as scratch:
        files: list[Path] = []
        for partition in partitions:
            copy = Path(shutil.copytree(partition, Path(scratch) / partition.name))
            files.extend(path for path in sorted(copy.iterdir()) if path.suffix in {".index", ".timeindex"})
        for option in (SANITY_CHECK, VERIFY_INDEX_ONLY):
            for first in range(0, len(files), _FILES_PER_RUN):
                complaints.extend(_complaints(option, files[first : first + _FILES_PER_RUN]))
    return complaints


def _complaints(option: str, files: Sequence[Path]) -> list[str]:
    lines = list(_run(option, files))
    dumped = {line.removeprefix("Dumping ") for line in lines if line.startswith("Dumping ")}
    wrong = [line for line in lines if not _GOOD_LINE.fullmatch(line)]
    # Where it throws, it says nothing of the files behind.
    assert wrong or dumped == {str(path) for path in files}, "not every file was looked at"
    return wrong


def _run(option: str, files: Iterable[Path]) -> Iterator[str]:
    # With relative paths it names other files than it looked at.
    names = ",".join(str(path) for path in files)
    command = [java_command(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{kafka_jars()}/*"]
    command += ["kafka.tools.DumpLogSegments", option, "--files", names]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_TIMEOUT_S
    )
    yield from (line for line in result.stdout.splitlines() if line.strip())
    if result.returncode:
        yield f"DumpLogSegments ended with status {result.returncode}"
