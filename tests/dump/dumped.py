"""Dumps of whole directories, here and by Kafka's own tool, so that both are compared by the same rules.

`dump_digests.json` has, of each conformance case and each set of flags, the SHA-256 of what `kafka.tools.DumpLogSegments`
4.1.0 prints of the case's files, one run a file; `tests/interop/test_dump_beside_kafka.py` keeps it true.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from storage_core.dump.dump_log import SUFFIXES, LogDump
from storage_core.dump.log_text import DumpOptions, RecordFormat
from storage_core.errors import SegmentLogError
from storage_core.filesystem import FileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIGESTS = Path(__file__).with_name("dump_digests.json")
# What the directory of a case is called in the texts.
_ROOT = b"ROOT"
LOG_SUFFIXES = (".log", ".checkpoint")

CONTENT = DumpOptions(RecordFormat(has_content=True))
# By the tool's flags, separated by spaces.
LOG_FLAGS = {
    "": DumpOptions(),
    "--print-data-log": CONTENT,
    "--deep-iteration": DumpOptions(RecordFormat(has_content=False)),
    "--print-data-log --skip-record-metadata": DumpOptions(
        RecordFormat(has_content=True, has_metadata=False)
    ),
    "--deep-iteration --skip-record-metadata": DumpOptions(
        RecordFormat(has_content=False, has_metadata=False)
    ),
    "--print-data-log --max-bytes 1000": DumpOptions(RecordFormat(has_content=True), max_bytes=1000),
}
INDEX_FLAGS = {
    "": DumpOptions(),
    "--verify-index-only": DumpOptions(verify_index_only=True),
    "--index-sanity-check": DumpOptions(index_sanity_check=True),
    "--max-message-size 500": DumpOptions(max_message_size=500),
}
DECODERS = ("offsets", "transaction-log", "cluster-metadata", "share-group-state", "remote-log-metadata")
DECODER_FLAGS = {
    f"--{name}-decoder": DumpOptions(RecordFormat(has_content=True, decoder=name)) for name in DECODERS
}


class Dumped(NamedTuple):
    """What was printed, and what ended it early; empty if nothing did."""

    stdout: bytes
    stderr: list[str]
    failure: str
    has_damage: bool = False


def dumped(path: Path, options: DumpOptions = CONTENT) -> Dumped:
    """Dump one file."""
    complaints: list[str] = []
    dump = LogDump(FileSystem(), options, complaints.append)
    pieces, failure = [], ""
    try:
        pieces.extend(dump.file(str(path)))
    except (SegmentLogError, OSError) as error:
        failure = str(error)
    return Dumped(b"".join(pieces), [*complaints, *dump.report.lines()], failure, dump.report.has_damage)


def dumpable(logs: Path) -> list[Path]:
    """Return the files of a directory that the tool knows."""
    return sorted(path for path in logs.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file())


def runs(logs: Path, case: str) -> Iterator[tuple[str, Path]]:
    """Yield each file of a case with each set of flags that says something about it."""
    for path in dumpable(logs):
        flag_sets = list(LOG_FLAGS if path.name.endswith(LOG_SUFFIXES) else INDEX_FLAGS)
        if case == "internal" and path.name.endswith(LOG_SUFFIXES):
            flag_sets += DECODER_FLAGS
        for flags in flag_sets:
            yield flags, path


def options_of(flags: str) -> DumpOptions:
    """Return the options that a set of flags stands for."""
    return {**LOG_FLAGS, **INDEX_FLAGS, **DECODER_FLAGS}[flags]


def digests(logs: Path, case: str, dump: Callable[[str, Path], bytes]) -> dict[str, str]:
    """Return the digest of all that is printed of a case, by set of flags."""
    found = {}
    for flags, path in runs(logs, case):
        digest = found.setdefault(flags, hashlib.sha256())
        digest.update(dump(flags, path).replace(str(logs).encode(), _ROOT))
    return {flags: digest.hexdigest() for flags, digest in found.items()}


def expected_digests() -> dict[str, dict[str, str]]:
    """Return the digests of Kafka's texts, by case."""
    found: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return found
