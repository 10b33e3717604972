"""Kafka's tool for inspecting log files, `kafka.tools.DumpLogSegments`: as a check of indexes, and of our decoders.

It prints nothing about a valid index. One JVM checks many files, because starting it costs more than the checks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.internal_records.internal_records import MESSAGE_DECODERS
from tests.interop.jars import QUICK_JVM, kafka_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


# Names in texts that are no JSON may hold line ends.
_LINE = re.compile(r"\n(?=\| offset: \d+ |baseOffset: |Dumping |\Z)")
_RECORD = re.compile(r"\| offset: (\d+) .*? headerKeys: \[\](.*)", re.DOTALL)


def printed_by_the_tool(decoder: str, log_file: Path) -> dict[int, str]:
    """By offset, what stands behind the metadata of each record of a log file, of control records too."""
    command = kafka_command(
        "kafka.tools.DumpLogSegments",
        *(f"--{decoder}-decoder", "--files", str(log_file)),
        options=[*QUICK_JVM, "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"],
    )
    result = subprocess.run(
        command, capture_output=True, check=True, timeout=_TIMEOUT_S, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    printed = (_RECORD.fullmatch(line) for line in _LINE.split(result.stdout.decode()))
    return {int(found[1]): found[2] for found in printed if found is not None}


def printed_by_ours(
    decoder: str, records: Iterable[tuple[int, bytes | None, bytes | None]]
) -> dict[int, str]:
    """Return the same of our decoder, for records of offset, key and value."""
    texts = {}
    for offset, key, value in records:
        key_text, value_text = MESSAGE_DECODERS[decoder](key, value, offset)
        texts[offset] = "".join(
            f" {name}: {text}"
            for name, text in (("key", key_text), ("payload", value_text))
            if text is not None
        )
    return texts


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
