"""A partition in a tier, as a directory with Kafka's names for its files.

Two layouts are known. The topic's id ends the name of a directory, which so cannot be that of a partition:

    <topic>-<partition>-<topic id>/<base offset>-<segment id>.{log,index,timeindex,...}        LocalTieredStorage of Kafka
    <prefix><topic>-<topic id>/<partition>/<base offset>-<segment id>.{log,indexes,rsm-manifest}    Aiven's plugin

A prefix need not end with a slash, so that only manifests say how a topic is called.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.checkpoint import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, EpochEntry, is_topic_id
from storage_core.checkpoint.partition_files import (
    leader_epoch_checkpoint_text,
    partition_metadata_bytes,
    read_leader_epoch_checkpoint,
)
from storage_core.commit_files.json_fields import TOPIC
from storage_core.config import INT_MAX, LONG_MAX
from storage_core.errors import CorruptCheckpointError, warn_once
from storage_core.filesystem import FileStatus, FileSystemView
from storage_core.filesystem.values import MissingError
from storage_core.segment import SegmentReader, base_offset_of
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    snapshot_file_name,
)
from storage_core.segment.transaction_index import ENTRY_SIZE_BYTES
from storage_core.tier.segment_choice import UploadedSegment, choose_segments, history_of
from storage_core.tier.tier_objects import LOG_PART, TierObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from storage_core.filesystem import FileVersion, ReadableFile
    from storage_core.tier.tier_objects import TierObjects


_log: Final = logging.getLogger(__name__)
# 22 characters of base64 for 16 bytes: the last one is one of four, and no digit.
TIER_DIRECTORY: Final = re.compile(r"(.+)-([A-Za-z0-9_-]{21}[AQgw])")
_TOPIC_PARTITION: Final = re.compile(r"(.+)-([0-9]{1,10})")
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SEGMENT_FILE: Final = re.compile(r"([0-9]{20}-[A-Za-z0-9_-]{22})(\.[a-z_-]+)")
_BASE_OFFSET_DIGITS: Final = 20
_MANIFEST_SUFFIX: Final = ".rsm-manifest"
_INDEXES_SUFFIX: Final = ".indexes"
_EPOCHS_SUFFIX: Final = ".leader_epoch_checkpoint"
_LOCAL_SUFFIXES: Final = frozenset({LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, _EPOCHS_SUFFIX})
_INDEX_SUFFIXES: Final = {
    "offset": OFFSET_INDEX_SUFFIX,
    "timestamp": TIME_INDEX_SUFFIX,
    "producerSnapshot": SNAPSHOT_SUFFIX,
    "transaction": TRANSACTION_INDEX_SUFFIX,
}


class TierPartition:
    """One partition in a tier. The first question about a segment looks through it, and `look_again` does so again.

    Attributes:
        path: Where its objects lie.
        status: That of the directory which is shown for it.
    """

    def __init__(self, objects: TierObjects, path: str, topic: str, partition: int, topic_id: str) -> None:
        self.path = path
        self.directory_name = f"{topic}-{partition}"
        self.status = FileStatus(0, 0, path, 0, is_regular_file=False, is_directory=True)
        self._identity = topic, partition, topic_id
        self._objects = objects
        self._metadata = TierObject.of_text(partition_metadata_bytes(topic_id, path).decode())
        self._files: Mapping[str, TierObject] | None = None

    def made_of(self, name: str) -> TierObject | None:
        """Return what a file is made of, or None if there is none of this name."""
        if name == PARTITION_METADATA:
            return self._metadata
        return (self.look_again() if self._files is None else self._files).get(name)

    def last_upload_ms(self) -> int:
        """Return when a segment was last uploaded, as far as the layout says."""
        return max((segment.uploaded_ms for segment in self._complete_segments()), default=0)

    def look_again(self) -> Mapping[str, TierObject]:
        """Return what the files are made of now. Manifests that were read are not read again.

        Raises:
            CorruptCheckpointError: A manifest, or the leader epochs of a segment, are damaged.
        """
        segments = self._complete_segments()
        history = history_of(segments)
        epochs = TierObject.of_text(leader_epoch_checkpoint_text(history))
        files = {PARTITION_METADATA: self._metadata, LEADER_EPOCH_CHECKPOINT: epochs}
        for segment, end_offset in choose_segments(segments, history, partial(self._check_epoch, segments)):
            files.update(_named(self._cut(segment, end_offset)))
        self._files = files
        return files

    def _check_epoch(self, segments: Iterable[UploadedSegment], entry: EpochEntry) -> None:
        """Check against the log that an epoch begins where a manifest or a checkpoint says: they have no checksums."""
        segment = next(segment for segment in segments if entry in segment.epochs)
        header = self._reader(segment).translate_offset(entry.start_offset)
        if header is not None and header.leader_epoch not in {entry.epoch, -1}:
            raise CorruptCheckpointError(
                f"Expected batches of leader epoch {entry.epoch} in this segment, as its metadata say, found "
                f"{header.leader_epoch}. Restore its manifest, or its leader epochs.",
                path=segment.log.source,
                offset=entry.start_offset,
            )

    def _complete_segments(self) -> list[UploadedSegment]:
        names = [
            entry.name
            for entry in self._objects.filesystem.list_directory(self.path)
            if entry.is_regular_file
        ]
        self._objects.keep_known(self.path, names)
        suffixes: dict[str, set[str]] = {}
        for match in filter(None, map(_SEGMENT_FILE.fullmatch, names)):
            if _base_offset(match[1]) is not None:
                suffixes.setdefault(match[1], set()).add(match[2])
        has_manifests = any(_MANIFEST_SUFFIX in found for found in suffixes.values())
        needed, load = (
            ({_MANIFEST_SUFFIX}, self._of_manifest) if has_manifests else (_LOCAL_SUFFIXES, self._of_files)
        )
        stems = [stem for stem, found in suffixes.items() if found >= needed]
        # Several at a time in a store.
        loaded = dict(zip(stems, self._objects.filesystem.map(load, stems), strict=True))
        for stem in suffixes:
            if loaded.get(stem) is None:
                warn_once(_log, f"Left out {self._path_of(stem, '.*')}: this upload is not complete.")
        return [segment for segment in loaded.values() if segment is not None]

    def _path_of(self, stem: str, suffix: str) -> str:
        return os.path.join(self.path, stem + suffix)

    def _of_manifest(self, stem: str) -> UploadedSegment | None:
        """Return a segment of Aiven's layout, or None if its objects do not fit its manifest."""
        described, log, indexes = (
            self._objects.stored(self._path_of(stem, suffix))
            for suffix in (_MANIFEST_SUFFIX, LOG_SUFFIX, _INDEXES_SUFFIX)
        )
        if described is None:
            return None
        manifest = self._objects.manifest(described.source, described.source_version)
        segment = f"{manifest.base_offset:0{_BASE_OFFSET_DIGITS}d}-{manifest.segment_id}"
        found = (manifest.topic, manifest.partition, manifest.topic_id, segment)
        if found != (*self._identity, stem):
            message = (
                f"Expected the manifest of {(*self._identity, stem)}, found that of {found}. Restore it."
            )
            raise CorruptCheckpointError(message, path=described.source)
        indexes_bytes = max((part.borders[-1] for part in manifest.parts.values()), default=0)
        if log is None or log.size_bytes != manifest.log.borders[-1]:
            return None
        if indexes is None or indexes.size_bytes != indexes_bytes:
            return None
        newest_ms = manifest.max_timestamp_ms if manifest.max_timestamp_ms >= 0 else None
        decoded = log.decoded(described, LOG_PART, manifest.log.file_bytes)
        files = {LOG_SUFFIX: decoded._replace(newest_timestamp_ms=newest_ms)}
        for part, suffix in _INDEX_SUFFIXES.items():
            if part in manifest.parts:
                files[suffix] = indexes.decoded(described, part, manifest.parts[part].file_bytes)
        return UploadedSegment(
            manifest.base_offset, manifest.end_offset, manifest.epochs, manifest.uploaded_ms, files
        )

    def _of_files(self, stem: str) -> UploadedSegment | None:
        """Return a segment of Kafka's layout, or None if it is gone or empty. Its end is looked up in the log."""
        base_offset, files = _base_offset(stem) or 0, {}
        for suffix in (*_LOCAL_SUFFIXES, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            made_of = self._objects.stored(self._path_of(stem, suffix))
            if made_of is not None:
                files[suffix] = made_of
        if not files.keys() >= _LOCAL_SUFFIXES:
            return None
        path = files.pop(_EPOCHS_SUFFIX).source
        listed = read_leader_epoch_checkpoint(self._objects.filesystem, path)
        # The checkpoint is that of the log up to the segment's end.
        epochs = [EpochEntry(entry.epoch, max(entry.start_offset, base_offset)) for entry in listed]
        # Of those that began before the segment, the last one.
        epochs = list({entry.start_offset: entry for entry in epochs}.values())
        if not epochs:
            message = (
                f"Expected the leader epoch of offset {base_offset} in this file, found none. Restore it."
            )
            raise CorruptCheckpointError(message, path=path)
        # A log start within the segment has shortened the first one.
        epochs[0] = replace(epochs[0], start_offset=base_offset)
        log = files[LOG_SUFFIX]
        segment = UploadedSegment(base_offset, LONG_MAX, tuple(epochs), log.modified_ms, files)
        find_end = self._reader(segment, skip_damage=True).end
        end_offset = self._objects.known(log.source, log.source_version, find_end).next_offset
        return replace(segment, end_offset=end_offset) if end_offset > base_offset else None

    def _cut(self, segment: UploadedSegment, end_offset: int) -> UploadedSegment:
        """Cut a segment's files at the offset up to which it is read."""
        if end_offset == segment.end_offset:
            return segment
        reader, files = self._reader(segment), dict(segment.files)
        header = reader.translate_offset(end_offset)
        if header is not None:
            # A batch with offsets on both sides stays: a read reports it.
            is_across = header.base_offset < end_offset
            cut_bytes = header.end_position_bytes if is_across else header.position_bytes
            files[LOG_SUFFIX] = segment.log._replace(size_bytes=cut_bytes, newest_timestamp_ms=None)
        # A snapshot is of the segment's own end. Markers beyond the cut belong to the next segment, or to no history.
        files.pop(SNAPSHOT_SUFFIX, None)
        aborted = reader.transaction_index
        if TRANSACTION_INDEX_SUFFIX in files and aborted.problem is None:
            count = int(np.count_nonzero(aborted.table["last_offset"] < end_offset))
            made_of = files[TRANSACTION_INDEX_SUFFIX]._replace(size_bytes=count * ENTRY_SIZE_BYTES)
            files[TRANSACTION_INDEX_SUFFIX] = made_of
        return replace(segment, end_offset=end_offset, files=files)

    def _reader(self, segment: UploadedSegment, *, skip_damage: bool = False) -> SegmentReader:
        filesystem = _FilesOfSegment(self._objects, segment)
        return SegmentReader(filesystem, self.path, segment.base_offset, skip_damage=skip_damage)


class _FilesOfSegment(FileSystemView):
    """What a `SegmentReader` needs of a file system, for one upload."""

    def __init__(self, objects: TierObjects, segment: UploadedSegment) -> None:
        super().__init__(objects.filesystem)
        self._objects = objects
        self._files = segment.files

    def open(self, path: str, version: FileVersion | None = None) -> ReadableFile:  # noqa: ARG002
        made_of = self._files.get(os.path.splitext(path)[1])
        if made_of is None:
            raise MissingError("No such file or directory.", path=path)
        return self._objects.open(path, made_of)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:  # noqa: ARG002
        made_of = self._files.get(os.path.splitext(path)[1])
        return None if made_of is None else made_of.status


def _base_offset(stem: str) -> int | None:
    return base_offset_of(stem[:_BASE_OFFSET_DIGITS] + ".")


def _named(segment: UploadedSegment) -> Iterator[tuple[str, TierObject]]:
    """Name a segment's files as a broker does. The snapshot that is uploaded with a segment is the one at its end."""
    for suffix, made_of in segment.files.items():
        if suffix != SNAPSHOT_SUFFIX:
            yield f"{segment.base_offset:0{_BASE_OFFSET_DIGITS}d}{suffix}", made_of
        else:
            yield snapshot_file_name(segment.end_offset), made_of


def find_tier_partitions(objects: TierObjects, path: str) -> list[TierPartition]:
    """Find the partitions in a directory whose name ends with a topic's id; none if it is not of a tier."""
    match = TIER_DIRECTORY.fullmatch(os.path.basename(path))
    if match is None or not is_topic_id(match[2]):
        return []
    name, topic_id = match.groups()
    entries = objects.filesystem.list_directory(path)
    if any(entry.is_regular_file and _SEGMENT_FILE.fullmatch(entry.name) for entry in entries):
        named = _TOPIC_PARTITION.fullmatch(name)
        found = [(path, named[1], int(named[2]))] if named else []
    else:
        numbers = [entry.name for entry in entries if entry.is_directory and _PARTITION.fullmatch(entry.name)]
        manifests = {number: _first_manifest(objects, os.path.join(path, number)) for number in numbers}
        topic = _topic_of(objects, manifests.values(), name)
        found = [
            (os.path.join(path, number), topic, int(number))
            for number, manifest in manifests.items()
            if manifest is not None
        ]
    return [
        TierPartition(objects, partition_path, topic, number, topic_id)
        for partition_path, topic, number in found
        if number <= INT_MAX and TOPIC.fullmatch(topic)
    ]


def _first_manifest(objects: TierObjects, path: str) -> TierObject | None:
    for entry in objects.filesystem.list_directory(path):
        if entry.name.endswith(_MANIFEST_SUFFIX) and _SEGMENT_FILE.fullmatch(entry.name):
            return objects.stored(os.path.join(path, entry.name))
    return None


def _topic_of(objects: TierObjects, manifests: Iterable[TierObject | None], name: str) -> str:
    """Return the topic that a manifest names. The directory's own name may begin with a prefix."""
    for made_of in manifests:
        if made_of is not None:
            # Whoever looks into the partition hears of a damaged one.
            with contextlib.suppress(CorruptCheckpointError):
                return objects.manifest(made_of.source, made_of.source_version).topic
    return name
