"""Kafka's tool for inspecting log files, `kafka.tools.DumpLogSegments`, as a check of indexes.

It prints nothing about a valid index. One JVM checks many files, because starting it costs more than the checks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.interop.jars import kafka_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SANITY_CHECK = "--index-sanity-check"
VERIFY_INDEX_ONLY = "--verify-index-only"

# Linux limits one argument to 128 KiB, and a path takes some hundred bytes.
_FILES_PER_RUN = 500
_TIMEOUT_S = 600

# What the tool prints for valid files.
_GOOD_LINE = re.compile(r"Dumping \S+|\S+ is empty\.|\S+ passed sanity check\.")


def complaints_about_indexes(partitions: Iterable[Path]) -> list[str]:
    """Return what the tool reports about offset and time indexes in both of its checks, apart from success.

    Args:
        partitions: Partition directories with different names. The tool runs on copies, because it creates missing
            indexes.

    Raises:
        AssertionError: The tool did not check every file.
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
    # After an exception, the tool skips the remaining files.
    assert wrong or dumped == {str(path) for path in files}, "not every file was checked"
    return wrong


def _run(option: str, files: Iterable[Path]) -> Iterator[str]:
    # With relative paths, the tool reports other names than it was given.
    names = ",".join(str(path) for path in files)
    command = kafka_command("kafka.tools.DumpLogSegments", option, "--files", names)
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_TIMEOUT_S
    )
    yield from (line for line in result.stdout.splitlines() if line.strip())
    if result.returncode:
        yield f"DumpLogSegments ended with status {result.returncode}"


# What the tool prints of a batch of format v2.
_BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) "
    r"producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (-?\d+) isTransactional: (\w+) "
    r"isControl: (\w+) deleteHorizonMs: \S+ position: (\d+) \w+: (-?\d+) size: (\d+) magic: (\d+) "
    r"compresscodec: (\w+) crc: (\d+) isvalid: (\w+)"
)
_BOOLEANS = {"true": True, "false": False}


def dumped_batches(files: Sequence[Path]) -> dict[str, list[tuple[object, ...]]]:
    """Return the batches of each log file as the tool prints them: numbers, texts and booleans in its order."""
    found: dict[str, list[tuple[object, ...]]] = {str(file): [] for file in files}
    for file in files_at_a_time(files):
        current = ""
        for line in _run("--deep-iteration", file):
            if line.startswith("Dumping "):
                current = line.removeprefix("Dumping ")
            matched = _BATCH.match(line)
            if matched is not None:
                found[current].append(tuple(map(_value, matched.groups())))
    return found


def files_at_a_time(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Yield as many files as fit the arguments of a process."""
    for first in range(0, len(files), _FILES_PER_RUN):
        yield files[first : first + _FILES_PER_RUN]


def _value(text: str) -> object:
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    return int(text) if text.lstrip("-").isdigit() else text
