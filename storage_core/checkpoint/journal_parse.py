"""Parsing a commit's journal; `commit_journal` shows its layout."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, Final, Literal

from storage_core.checkpoint._small_file import INT32_MAX, INT64_MAX
from storage_core.checkpoint.commits_file import JOB_ID, TXN_APP_ID
from storage_core.checkpoint.journal_values import (
    AppendOperation,
    CommitJournal,
    JournalledPartition,
    LinkOperation,
    PackRange,
)
from storage_core.checkpoint.json_fields import parse_json_file
from storage_core.checkpoint.leader_epoch_checkpoint import EpochEntry
from storage_core.checkpoint.stage_names import STAGE_PREFIX

if TYPE_CHECKING:
    from storage_core.checkpoint.json_fields import JsonFields

__all__ = ["JOURNAL_VERSION", "parse_commit_journal"]

JOURNAL_VERSION: Final = 1

_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
# A name in the root, and in no other directory.
_STAGED_FILE: Final = re.compile(rf"{re.escape(STAGE_PREFIX)}[A-Za-z0-9._-]{{1,200}}")
_STAGED_FILE_EXPECTED: Final = "the name of a staged file"
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_EMPTY: Final = "empty"
_EMPTY_PATTERN: Final = re.compile(_EMPTY)


def parse_commit_journal(data: bytes, path: str) -> CommitJournal:
    """Parse the content of a journal.

    Raises:
        CorruptCheckpointError: The CRC is wrong, or something in it is not as the format says.
    """
    fields = parse_json_file(data, path, JOURNAL_VERSION)
    manifests = fields.elements("manifests")
    if not all(isinstance(name, str) and _STAGED_FILE.fullmatch(name) for name in manifests):
        raise fields.error("manifests", "names of staged files")
    partitions = tuple(_partition(each) for each in fields.objects("partitions"))
    if len({each.topic_partition for each in partitions}) != len(partitions):
        raise fields.error("partitions", "each partition once")
    is_txn = not fields.is_null("txn_app_id")
    return CommitJournal(
        job_id=fields.text("job", JOB_ID, "32 hexadecimal digits"),
        generation=fields.integer("generation", minimum=1),
        time_ms=fields.integer("time_ms", minimum=-INT64_MAX),
        txn_app_id=fields.text("txn_app_id", TXN_APP_ID, "a text") if is_txn else None,
        txn_version=fields.integer("txn_version", minimum=-INT64_MAX - 1) if is_txn else None,
        clean_shutdown=_decoded(fields, "clean_shutdown"),
        manifests=tuple(manifests),
        partitions=partitions,
        is_flushed=fields.is_null("flushed") or fields.flag("flushed"),
    )


def _decoded(fields: JsonFields, name: str) -> bytes:
    try:
        return base64.b64decode(fields.text(name, _BASE64, "base64"), validate=True)
    except binascii.Error as error:
        raise fields.error(name, "base64") from error


def _partition(fields: JsonFields) -> JournalledPartition:
    log_start_before, log_start_after = fields.integer("log_start_before"), fields.integer("log_start_after")
    topic, partition = fields.topic_partition()
    is_new = fields.flag("is_new")
    has_topic_id = not fields.is_null("topic_id")
    return JournalledPartition(
        topic=topic,
        partition=partition,
        is_new=is_new,
        topic_id=fields.text("topic_id", _TOPIC_ID, "22 characters") if has_topic_id else None,
        leader_epoch=fields.integer("leader_epoch", maximum=INT32_MAX),
        log_start_before=log_start_before,
        log_start_after=log_start_after,
        log_end_before=fields.integer("log_end_before", minimum=log_start_before),
        log_end_after=fields.integer("log_end_after", minimum=log_start_after),
        epochs_after=tuple(_epoch(fields, value) for value in fields.elements("epochs_after")),
        snapshot_from=_snapshot_from(fields),
        operations=tuple(_operation(each) for each in fields.objects("operations")),
        keep_offsets=not fields.is_null("keep_offsets") and fields.flag("keep_offsets"),
    )


def _epoch(fields: JsonFields, value: Any) -> EpochEntry:
    match value:
        case [int(epoch), int(start_offset)] if 0 <= epoch <= INT32_MAX and 0 <= start_offset <= INT64_MAX:
            return EpochEntry(epoch, start_offset)
    raise fields.error("epochs_after", "pairs of epoch and start offset")


def _snapshot_from(fields: JsonFields) -> int | Literal["empty"] | None:
    if fields.is_null("snapshot_from"):
        return None
    if isinstance(fields.values["snapshot_from"], int):
        return fields.integer("snapshot_from")
    fields.text("snapshot_from", _EMPTY_PATTERN, "an offset, 'empty' or null")
    return "empty"


def _operation(fields: JsonFields) -> AppendOperation | LinkOperation:
    if "link" in fields.values:
        return LinkOperation(
            file=fields.text("link", _STAGED_FILE, _STAGED_FILE_EXPECTED),
            base_offset=fields.integer("base_offset"),
            size_bytes=fields.integer("size", maximum=INT32_MAX),
            fingerprint=fields.fingerprint(),
        )
    return AppendOperation(
        ranges=tuple(_range(each) for each in fields.objects("append")),
        base_offset=fields.integer("base_offset"),
        segment_base_offset=fields.integer("segment"),
        size_before_bytes=fields.integer("size_before", maximum=INT32_MAX),
        index_size_before_bytes=fields.integer("index_size_before", maximum=INT32_MAX),
        time_index_size_before_bytes=fields.integer("time_index_size_before", maximum=INT32_MAX),
    )


def _range(fields: JsonFields) -> PackRange:
    return PackRange(
        file=fields.text("file", _STAGED_FILE, _STAGED_FILE_EXPECTED),
        position_bytes=fields.integer("position"),
        size_bytes=fields.integer("size", minimum=1, maximum=INT32_MAX),
    )
