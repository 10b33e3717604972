"""The manifest of one attempt: which pieces of which partitions it has staged, and where.

Two lines, JSON and its CRC-32C. The attempt reports the file's name and the CRC-32C of all of it to the
driver, who knows by it that this is the manifest that was reported:

    {"version":1,"job":"<32 hex>","task":0,"attempt":12,"pieces":[{"topic":"t","partition":0,
     "file":"<name without suffix>","position":0,"size":486332,"batches":120,"records":4000,
     "first_timestamp_ms":1772500000000,"max_timestamp_ms":1772500003999,"fingerprint":"<8 hex>"}]}

A piece whose batches keep the offsets that their rows came with also has its first and last
one, "min_offset" and "max_offset". The pieces of one partition stand in the order of its rows.

What a job says of itself: which rows it writes and where, and how they become visible.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from crc32c import crc32c

from storage_core.checkpoint.checkpoint_file import INT32_MAX, INT64_MAX
from storage_core.commit_files.commits_file import JOB_ID
from storage_core.commit_files.json_fields import JsonFields, parse_json_file
from storage_core.commit_files.stage_names import STAGED_BASE_NAME, StageId, data_suffix_of, stage_of
from storage_core.commit_replay.replay import DEFAULT_THREADS
from storage_core.errors import CorruptCheckpointError, OptionError
from storage_core.log_config import LogConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.filesystem import FileSystem

__all__ = [
    "MAX_MANIFEST_BYTES",
    "JobSettings",
    "Manifest",
    "StagedManifest",
    "StagedPiece",
    "encode_piece",
    "manifest_bytes",
    "parse_manifest",
    "read_manifest",
    "reported_manifest",
]


# 4 million pieces of about 250 bytes each.
MAX_MANIFEST_BYTES: Final = 1 << 30
_VERSION: Final = 1
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_INT64_MIN: Final = -INT64_MAX - 1


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """What an attempt reports: the name of its manifest in the root, and the CRC-32C of the whole file."""

    name: str
    crc32c: int


@dataclass(frozen=True, slots=True)
class StagedPiece:
    """Batches of one partition, back to back in one staged file.

    Attributes:
        topic: Their topic.
        partition: Their partition.
        file: Name of the file in the root, without suffix.
        position_bytes: Where they begin in it.
        size_bytes: Their size; never above ``segment.bytes``.
        batch_count: How many there are.
        record_count: How many records they hold.
        first_timestamp_ms: The largest timestamp of the first of them: from there on a segment's age is counted.
        max_timestamp_ms: The largest timestamp of all.
        fingerprint: Checksum that stays what it is when they get their offsets: see `batch_fingerprint`.
        min_offset: The first one's base offset, if they keep the offsets that they have.
        max_offset: The last one's last offset, likewise.
    """

    topic: str
    partition: int
    file: str
    position_bytes: int
    size_bytes: int
    batch_count: int
    record_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    fingerprint: int
    min_offset: int | None = None
    max_offset: int | None = None

    @property
    def topic_partition(self) -> tuple[str, int]:
        """The key of their partition."""
        return self.topic, self.partition

    @property
    def suffix(self) -> str:
        """The suffix of the file: ``.pack``, or ``.log`` if it is a segment of its own, with indexes beside it."""
        return data_suffix_of(self.file)

    @property
    def offset_count(self) -> int:
        """How many offsets they take, gaps included."""
        if self.min_offset is None or self.max_offset is None:
            return self.record_count
        return self.max_offset - self.min_offset + 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that an attempt has staged."""

    stage: StageId
    pieces: tuple[StagedPiece, ...]


def read_manifest(filesystem: FileSystem, root: str, reported: StagedManifest) -> Manifest:
    """Read the manifest that an attempt has reported.

    Raises:
        CorruptCheckpointError: It is missing, damaged, written by a newer release, or not the one reported.
    """
    path = os.path.join(root, reported.name)
    data = filesystem.read_file(path, MAX_MANIFEST_BYTES)
    if data is None:
        raise CorruptCheckpointError(
            "Expected the manifest that a task has reported, found no such file. The tasks must see the directory "
            "that the driver sees: write to a shared file system, or run on one host.",
            path=path,
        )
    found = int(crc32c(data))
    if found != reported.crc32c:
        raise CorruptCheckpointError(
            f"Expected the manifest that a task has reported, with the CRC-32C {reported.crc32c:08x}, found one "
            f"with {found:08x}. Another attempt, or another program, wrote over it: run the job again.",
            path=path,
        )
    return parse_manifest(data, path)


def reported_manifest(stage: StageId, data: bytes) -> StagedManifest:
    """What an attempt reports that has written this manifest."""
    return StagedManifest(stage.manifest_name, int(crc32c(data)))


def manifest_bytes(stage: StageId, pieces: Iterable[bytes]) -> bytes:
    """The content of a manifest, given its pieces as `encode_piece` gives them."""
    data = b'{"attempt":%d,"job":"%b","pieces":[%b],"task":%d,"version":%d}' % (
        stage.attempt,
        stage.job_id.encode(),
        b",".join(pieces),
        stage.task,
        _VERSION,
    )
    return b"%b\n%08x\n" % (data, crc32c(data))


def encode_piece(piece: StagedPiece) -> bytes:
    """A piece as the manifest has it; less than the object takes, where there are very many."""
    return _ENCODER.encode(_piece_values(piece)).encode()


def _piece_values(piece: StagedPiece) -> dict[str, Any]:
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
    return values


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Check and parse a manifest.

    Raises:
        CorruptCheckpointError: It is damaged, or written by a newer release.
    """
    fields = parse_json_file(data, path, _VERSION)
    stage = StageId(
        fields.text("job", JOB_ID, "32 hexadecimal digits"),
        fields.integer("task"),
        fields.integer("attempt"),
    )
    return Manifest(stage, tuple(_piece(each, stage) for each in fields.objects("pieces")))


def _piece(fields: JsonFields, stage: StageId) -> StagedPiece:
    file = fields.text("file", STAGED_BASE_NAME, "the name of a staged file")
    # Nothing that a manifest names may lie elsewhere.
    if stage_of(file) != stage:
        raise fields.error("file", "a file of the attempt that the manifest belongs to")
    topic, partition = fields.topic_partition()
    keeps_offsets = not fields.is_null("min_offset")
    min_offset = fields.integer("min_offset") if keeps_offsets else None
    return StagedPiece(
        topic=topic,
        partition=partition,
        file=file,
        position_bytes=fields.integer("position"),
        size_bytes=fields.integer("size", minimum=1, maximum=INT32_MAX),
        batch_count=fields.integer("batches", minimum=1),
        record_count=fields.integer("records", minimum=1),
        first_timestamp_ms=fields.integer("first_timestamp_ms", minimum=_INT64_MIN),
        max_timestamp_ms=fields.integer("max_timestamp_ms", minimum=_INT64_MIN),
        fingerprint=fields.fingerprint(),
        min_offset=min_offset,
        max_offset=None if min_offset is None else fields.integer("max_offset", minimum=min_offset),
    )


# The line of a job that tells of it has to stay one that is read.
_MAX_APP_ID_LENGTH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One job that writes to a log directory.

    Args:
        job_id: 32 hexadecimal digits that no other job has.
        mode: ``append``, or ``overwrite``: the log start of every partition of the targeted topics moves to where
            the job's rows begin.
        config: Of all topics, or by topic.
        new_partitions: Topics of which partitions are made that do not exist, and how many each has then.
        targeted_topics: Topics that are written to although no row may go there.
        txn_app_id: An application that numbers its jobs.
        txn_version: The number of this one. One that is not above the last committed is taken as done.
        topic_ids: The ids of topics that are made, 22 characters; those of others must agree.
        broker_directory: Whether a directory may be written to that belongs to a broker, which is stopped.
        preserve_offsets: Whether the rows keep the offsets that they were staged with.
        restored_offsets: Log start and log end of the partitions that the rows come from.
        flush: Whether everything is on the disk before the rows are visible. False: a power cut may take some of them,
            and the directory is left without the marker of a clean shutdown. Whoever opens it next recovers its logs,
            but for another such job.
        threads: How many partitions are worked on at a time.
        lock_wait_seconds: How long a commit waits for another job to end.
    """

    job_id: str
    mode: Literal["append", "overwrite"] = "append"
    config: LogConfig | Mapping[str, LogConfig] = field(default_factory=LogConfig)
    new_partitions: Mapping[str, int] = field(default_factory=dict)
    targeted_topics: tuple[str, ...] = ()
    txn_app_id: str | None = None
    txn_version: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    broker_directory: bool = False
    preserve_offsets: bool = False
    restored_offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    flush: bool = True
    threads: int = DEFAULT_THREADS
    lock_wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not JOB_ID.fullmatch(self.job_id):
            raise OptionError(
                f"Expected 32 lower-case hexadecimal digits as the id of a job, found {self.job_id!r}."
            )
        if self.mode not in ("append", "overwrite"):
            raise OptionError(f"Expected the mode 'append' or 'overwrite', found {self.mode!r}.")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise OptionError(
                "Expected both txnAppId and txnVersion, or none of them, found one. A number counts for the "
                "application that gave it."
            )
        if self.txn_app_id is not None:
            _check_app_id(self.txn_app_id)
        if self.restored_offsets and not self.preserve_offsets:
            raise OptionError("Expected offsets to be restored with preserveOffsets only. Set it, too.")
        for (topic, partition), (start, end) in self.restored_offsets.items():
            if not 0 <= start <= end:
                raise OptionError(
                    f"Expected {topic}-{partition} to start at offset 0 or behind it and to end there or behind it, "
                    f"found {start} and {end}."
                )
        if self.threads < 1:
            raise OptionError(f"Expected at least 1 thread, found {self.threads}.")

    def config_of(self, topic: str) -> LogConfig:
        """The configuration of a topic."""
        if isinstance(self.config, LogConfig):
            return self.config
        return self.config.get(topic) or LogConfig()


def _check_app_id(app_id: str) -> None:
    if not 0 < len(app_id) <= _MAX_APP_ID_LENGTH:
        raise OptionError(
            f"Expected a name of 1 to {_MAX_APP_ID_LENGTH} characters as txnAppId, found one of {len(app_id)}."
        )
    try:
        app_id.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"Expected text as txnAppId, found half a character in {app_id!r}.") from error
