"""The manifest of a task attempt: the batches that it has staged, by partition and file.

The file has two lines, JSON and its CRC-32C. The attempt reports its name and the CRC-32C of the whole file to the
driver, which thereby recognizes the manifest that was reported:

    {"version":1,"job":"<32 hex>","task":0,"attempt":12,"pieces":[{"topic":"t","partition":0,
     "file":"<name without suffix>","position":0,"size":486332,"batches":120,"records":4000,
     "first_timestamp_ms":1772500000000,"max_timestamp_ms":1772500003999,"fingerprint":"<8 hex>"}]}

If the batches keep the offsets of their rows, their first and last offset follow, "min_offset" and "max_offset". The
pieces of one partition are in the order of its rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from storage_core.commit_files.commits_file import JOB_ID
from storage_core.commit_files.json_fields import JsonFields, json_bytes, parse_json_file, with_crc_line
from storage_core.commit_files.stage_names import STAGED_BASE_NAME, StageId, data_suffix_of, stage_of
from storage_core.config import INT_MAX, LONG_MAX
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.filesystem import FileSystem


# 4 million pieces of about 250 bytes each.
MAX_MANIFEST_BYTES: Final = 1 << 30
_VERSION: Final = 1
_INT64_MIN: Final = -LONG_MAX - 1


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """Manifest as an attempt reports it: its name in the root and the CRC-32C of the whole file."""

    name: str
    crc32c: int


@dataclass(frozen=True, slots=True)
class StagedBatches:
    """Adjacent batches of one partition in a staged file.

    The record grows while a task writes the batches, is reported in the manifest, and tells the commit what to append
    or link.

    Attributes:
        file: Name of the file in the root, without suffix.
        position_bytes: Position of the first batch in the file.
        first_timestamp_ms: The max timestamp of the first batch, from which a segment's age is counted.
        max_timestamp_ms: The max timestamp of all batches.
        fingerprint: Checksum that does not depend on offsets and leader epoch: see `batch_fingerprint`.
        min_offset, max_offset: First and last offset, if the rows keep their offsets.
        index_size_bytes, time_index_size_bytes: Of the indexes, if the commit links the file. Not in the manifest.
    """

    topic: str
    partition: int
    file: str
    position_bytes: int
    size_bytes: int = 0
    batch_count: int = 0
    record_count: int = 0
    first_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    fingerprint: int = 0
    min_offset: int | None = None
    max_offset: int | None = None
    index_size_bytes: int | None = None
    time_index_size_bytes: int = 0

    @property
    def topic_partition(self) -> tuple[str, int]:
        """The key of the partition."""
        return self.topic, self.partition

    @property
    def suffix(self) -> str:
        """The suffix of the file: ``.pack``, or ``.log`` for a staged segment, which has indexes, too."""
        return data_suffix_of(self.file)

    @property
    def offset_count(self) -> int:
        """How many offsets the batches span, including gaps."""
        if self.min_offset is None or self.max_offset is None:
            return self.record_count
        return self.max_offset - self.min_offset + 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that an attempt has staged."""

    stage: StageId
    pieces: tuple[StagedBatches, ...]


def read_manifest(filesystem: FileSystem, root: str, reported: StagedManifest) -> Manifest:
    """Read the manifest that an attempt has reported.

    Raises:
        CorruptCheckpointError: It is missing or damaged, a newer release wrote it, or another one was reported.
    """
    path = os.path.join(root, reported.name)
    data = filesystem.read_file(path, MAX_MANIFEST_BYTES)
    if data is None:
        raise CorruptCheckpointError(
            "Expected the manifest that a task has reported, found no such file. Tasks and driver must see the same "
            "directory: write to a shared file system, or run on one host.",
            path=path,
        )
    found = int(crc32c(data))
    if found != reported.crc32c:
        raise CorruptCheckpointError(
            f"Expected the manifest that a task has reported, with the CRC-32C {reported.crc32c:08x}, found one "
            f"with {found:08x}. Another attempt or another program overwrote it: run the job again.",
            path=path,
        )
    return parse_manifest(data, path)


def reported_manifest(stage: StageId, data: bytes) -> StagedManifest:
    """Return what the attempt that wrote this manifest reports."""
    return StagedManifest(stage.manifest_name, int(crc32c(data)))


def manifest_bytes(stage: StageId, pieces: Iterable[bytes]) -> bytes:
    """Format a manifest from pieces encoded by `encode_staged`."""
    data = b'{"attempt":%d,"job":"%b","pieces":[%b],"task":%d,"version":%d}' % (
        stage.attempt,
        stage.job_id.encode(),
        b",".join(pieces),
        stage.task,
        _VERSION,
    )
    return with_crc_line(data)


def encode_staged(piece: StagedBatches) -> bytes:
    """Encode a piece for the manifest. The result takes less memory than the object, of which there may be very many."""
    values: dict[str, Any] = {
        "topic": piece.topic,
        "partition": piece.partition,
        "file": piece.file,
        "position": piece.position_bytes,
        "size": piece.size_bytes,
        "batches": piece.batch_count,
        "records": piece.record_count,
        "first_timestamp_ms": piece.first_timestamp_ms,
        "max_timestamp_ms": piece.max_timestamp_ms,
        "fingerprint": f"{piece.fingerprint:08x}",
    }
    if piece.min_offset is not None:
        values |= {"min_offset": piece.min_offset, "max_offset": piece.max_offset}
    return json_bytes(values)


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Check and parse a manifest.

    Raises:
        CorruptCheckpointError: It is damaged, or a newer release wrote it.
    """
    fields = parse_json_file(data, path, _VERSION)
    stage = StageId(
        fields.text("job", JOB_ID, "32 hexadecimal digits"),
        fields.integer("task"),
        fields.integer("attempt"),
    )
    return Manifest(stage, tuple(_piece(each, stage) for each in fields.objects("pieces")))


def _piece(fields: JsonFields, stage: StageId) -> StagedBatches:
    file = fields.text("file", STAGED_BASE_NAME, "the name of a staged file")
    # A manifest must not name files of other attempts.
    if stage_of(file) != stage:
        raise fields.error("file", "a file of the attempt that the manifest belongs to")
    topic, partition = fields.topic_partition()
    keeps_offsets = not fields.is_null("min_offset")
    min_offset = fields.integer("min_offset") if keeps_offsets else None
    return StagedBatches(
        topic=topic,
        partition=partition,
        file=file,
        position_bytes=fields.integer("position"),
        size_bytes=fields.integer("size", minimum=1, maximum=INT_MAX),
        batch_count=fields.integer("batches", minimum=1),
        record_count=fields.integer("records", minimum=1),
        first_timestamp_ms=fields.integer("first_timestamp_ms", minimum=_INT64_MIN),
        max_timestamp_ms=fields.integer("max_timestamp_ms", minimum=_INT64_MIN),
        fingerprint=fields.fingerprint(),
        min_offset=min_offset,
        max_offset=None if min_offset is None else fields.integer("max_offset", minimum=min_offset),
    )
