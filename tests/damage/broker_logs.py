"""Logs that real brokers wrote: partitions from the conformance archives, with their root's files."""

from __future__ import annotations

import base64
import json
import tarfile
from functools import cache
from typing import Any

from tests.conformance.archives import ARCHIVE_SUFFIX, CASES_FOLDER
from tests.damage.base_log import BaseLog, TopicPartition
from tests.damage.entries import Row

# The partitions that are read together, by archive: small ones of every kind.
_PARTITIONS = (
    ("compact", "compact-keep-0"),
    ("compact-txn", "ctxn-keep-0"),
    ("delete-records", "delrec-3", "delrec-4"),
    ("empty-active", "u-last-alone-0"),
    ("idempotent", "idem-wrap-0"),
    ("legacy-compact", "lc0-drop-0"),
    ("legacy-compact", "lc1-drop-0"),
    ("magic0", "m0-broker-0", "m0-lz4-0"),
    ("magic0", "m0-snappy-0"),
    ("magic1", "m1-append-0", "m1-lz4-0"),
    ("magic1", "m1-none-1"),
    ("mixed-magic", "mixed-0"),
    ("mixed-magic", "mixed-one-segment-0"),
    ("retention", "ret-ms-0"),
    ("timestamps", "ts-negative-0", "ts-none-gzip-0"),
    ("torn-tail", "u-plain-0"),
    ("txn", "txn-mix-0"),
    ("txn-ongoing", "ongoing-rd-0"),
    ("unclean", "u-prealloc-0"),
    ("unclean", "u-txn-0"),
    ("upgrade", "up0-compact-0", "up0-plain-0"),
    ("v2-foreign", "foreign-gzip-0", "foreign-snappy-0"),
    ("v2-foreign", "foreign-zstd-0"),
    ("v2-lz4", "lz4-broker-0"),
)


@cache
def broker_logs() -> dict[str, BaseLog]:
    """Return every log by its name."""
    logs = [_log(case, partitions) for case, *partitions in _PARTITIONS]
    return {log.name: log for log in logs}


@cache
def _archive(case: str) -> tuple[dict[str, bytes], dict[str, Any]]:
    files = {}
    with tarfile.open(CASES_FOLDER / f"{case}{ARCHIVE_SUFFIX}", "r:xz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                files[member.name] = content.read()
    expected: dict[str, Any] = json.loads(files.pop("expected.json"))
    return {name.removeprefix("logs/"): content for name, content in files.items()}, expected


def _log(case: str, partitions: list[str]) -> BaseLog:
    files, expected = _archive(case)
    chosen = {
        path: content
        for path, content in files.items()
        if "/" not in path or path.partition("/")[0] in partitions
    }
    rows: dict[TopicPartition, dict[int, Row]] = {}
    committed = {}
    for name in partitions:
        fields = expected["partitions"][name]
        key = (fields["topic"], fields["partition"])
        rows[key] = {record[0]: _row(*record[1:]) for record in fields["records"]}
        committed[key] = frozenset(fields["committed_offsets"])
    modified_ms = {path: times[1] for path, times in expected["files"].items() if path in chosen}
    return BaseLog(f"{case}/{partitions[0]}", chosen, rows, committed, modified_ms=modified_ms)


def _row(
    timestamp_ms: int, kind: int, key: str | None, value: str | None, headers: list[list[str | None]]
) -> Row:
    decoded = tuple((str(name), _bytes(content)) for name, content in headers)
    return timestamp_ms, kind, _bytes(key), _bytes(value), decoded


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
