"""From the pieces that tasks have staged to portions that can be placed, each of them checked.

Of what is appended the headers are checked: behind the journal it is too late to find that it is not what was
staged. Those of a large piece are checked when they are patched.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from storage_core.commit.manifest import read_manifest
from storage_core.commit.placement import Placement, Portion
from storage_core.errors import CorruptRecordError, OptionError
from storage_core.publishing.batch_heads import BatchHeads, batch_heads, fingerprint
from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.commit.manifest import StagedManifest, StagedPiece
    from storage_core.commit.settings import JobSettings
    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.log_config import LogConfig

__all__ = ["pieces_by_partition", "portions_of"]

# How much is read at once of a staged segment that is too small to become one.
_PORTION_BYTES: Final = 4 * 1024 * 1024


def pieces_by_partition(
    filesystem: FileSystem, root: str, settings: JobSettings, manifests: Sequence[StagedManifest]
) -> dict[tuple[str, int], list[StagedPiece]]:
    """What was staged for each partition: in the order of tasks, and in a task as written.

    Raises:
        CorruptCheckpointError: A manifest is not the one that was reported.
        OptionError: It belongs to another job, or two belong to one task.
    """
    read = [read_manifest(filesystem, root, reported) for reported in manifests]
    tasks = {manifest.stage.task for manifest in read}
    strangers = [each.stage.manifest_name for each in read if each.stage.job_id != settings.job_id]
    if strangers or len(tasks) != len(read):
        raise OptionError(
            f"Expected one manifest of job {settings.job_id} for each task, found "
            f"{strangers[0] if strangers else f'{len(read)} of {len(tasks)} tasks'}. Commit each task once."
        )
    found: dict[tuple[str, int], list[StagedPiece]] = defaultdict(list)
    for manifest in sorted(read, key=lambda each: each.stage.task):
        for piece in manifest.pieces:
            found[piece.topic_partition].append(piece)
    if settings.preserve_offsets:
        for pieces in found.values():
            _require_offsets(pieces)
    return found


def portions_of(
    filesystem: FileSystem,
    root: str,
    pieces: Sequence[StagedPiece],
    config: LogConfig,
    *,
    keep_offsets: bool,
) -> list[Portion]:
    """Check the pieces of one partition, and say what of them stays together.

    Raises:
        CorruptError: A staged file is not what its manifest says.
    """
    portions: list[Portion] = []
    for (file, suffix), group in groupby(pieces, key=attrgetter("file", "suffix")):
        if suffix == LOG_SUFFIX:
            portions += _of_segments(filesystem, root, group, config, keep_offsets=keep_offsets)
            continue
        with filesystem.open(os.path.join(root, file + suffix)) as pack:
            portions += [_appended(pack, piece, keep_offsets=keep_offsets) for piece in group]
    return portions


def _of_segments(
    filesystem: FileSystem,
    root: str,
    pieces: Iterable[StagedPiece],
    config: LogConfig,
    *,
    keep_offsets: bool,
) -> list[Portion]:
    portions: list[Portion] = []
    for piece in pieces:
        if Placement.is_linked(piece.size_bytes, config):
            portions.append(_linked(filesystem, root, piece, keep_offsets=keep_offsets))
        else:
            portions += _parts(filesystem, root, piece, keep_offsets=keep_offsets)
    return portions


def _require_offsets(pieces: list[StagedPiece]) -> None:
    """Put pieces into the order of their offsets, of which no two may have the same."""
    next_offset = 0
    for piece in sorted(pieces, key=lambda each: each.min_offset or 0):
        if piece.min_offset is None or piece.max_offset is None:
            raise OptionError(
                f"Expected staged rows with offsets for {piece.topic}-{piece.partition}, found some without. Stage "
                "them with preserveOffsets, too."
            )
        if piece.min_offset < next_offset:
            raise OptionError(
                f"Expected the rows for {piece.topic}-{piece.partition} that one task writes to have offsets behind or "
                f"in front of those of another task, found offset {piece.min_offset} below {next_offset}. Repartition "
                "by topic and partition and sort by offset before the write, and see that no offset is there twice.",
                offset=piece.min_offset,
            )
        next_offset = piece.max_offset + 1
    pieces.sort(key=lambda each: each.min_offset or 0)


def _appended(pack: OpenFile, piece: StagedPiece, *, keep_offsets: bool) -> Portion:
    end_bytes = piece.position_bytes + piece.size_bytes
    found = taken = 0
    is_whole = end_bytes <= pack.status.size_bytes
    for heads in batch_heads(pack, piece.position_bytes, end_bytes) if is_whole else ():
        found = fingerprint([heads], found)
        if keep_offsets:
            taken = int(heads.last_offsets[-1]) + 1 - (piece.min_offset or 0)
        else:
            taken += heads.offset_count
    if found != piece.fingerprint or taken != piece.offset_count:
        raise not_as_staged(pack.path, piece)
    return _portion(piece)


def _linked(filesystem: FileSystem, root: str, piece: StagedPiece, *, keep_offsets: bool) -> Portion:
    stem = os.path.join(root, piece.file)
    log, index, time_index = (
        filesystem.status(stem + suffix) for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    )
    if (
        log is None
        or index is None
        or time_index is None
        or log.size_bytes != piece.size_bytes
        or piece.position_bytes != 0
    ):
        raise not_as_staged(stem + LOG_SUFFIX, piece)
    return Portion(
        piece.file,
        0,
        piece.size_bytes,
        piece.offset_count,
        piece.first_timestamp_ms,
        piece.max_timestamp_ms,
        piece.min_offset if keep_offsets else None,
        piece.fingerprint,
        index.size_bytes,
        time_index.size_bytes,
    )


def _parts(filesystem: FileSystem, root: str, piece: StagedPiece, *, keep_offsets: bool) -> Iterator[Portion]:
    """A staged segment that is appended, in parts of bounded size."""
    path = os.path.join(root, piece.file + piece.suffix)
    with filesystem.open(path) as file:
        if file.status.size_bytes != piece.size_bytes:
            raise not_as_staged(path, piece)
        blocks = list(batch_heads(file, 0, piece.size_bytes))
    if fingerprint(blocks) != piece.fingerprint:
        raise not_as_staged(path, piece)
    offset_count = 0
    for heads in _cut(blocks):
        count = heads.offset_count
        first_offset = int(heads.headers["base_offset"][0])
        if keep_offsets:
            count = int(heads.last_offsets[-1]) + 1 - first_offset
        yield Portion(
            piece.file,
            heads.start_bytes,
            heads.size_bytes,
            count,
            int(heads.headers["max_timestamp_ms"][0]),
            int(heads.headers["max_timestamp_ms"].max()),
            first_offset if keep_offsets else None,
        )
        offset_count += count
    if not keep_offsets and offset_count != piece.offset_count:
        raise not_as_staged(path, piece)


def _cut(blocks: Sequence[BatchHeads]) -> Iterator[BatchHeads]:
    """The same batches in parts of bounded size, each with one batch at least."""
    for heads in blocks:
        ends_bytes = heads.positions_bytes + heads.sizes_bytes
        first = 0
        while first < len(ends_bytes):
            goal_bytes = int(heads.positions_bytes[first]) + _PORTION_BYTES
            stop = max(first + 1, int(ends_bytes.searchsorted(goal_bytes, "right")))
            yield BatchHeads(heads.positions_bytes[first:stop], heads.headers[first:stop])
            first = stop


def _portion(piece: StagedPiece) -> Portion:
    return Portion(
        piece.file,
        piece.position_bytes,
        piece.size_bytes,
        piece.offset_count,
        piece.first_timestamp_ms,
        piece.max_timestamp_ms,
        piece.min_offset,
    )


def not_as_staged(path: str, piece: StagedPiece) -> CorruptRecordError:
    """The error for a staged file that is not what its manifest says."""
    return CorruptRecordError(
        f"Expected {piece.size_bytes} bytes of batches for {piece.topic}-{piece.partition}, with the fingerprint "
        f"{piece.fingerprint:08x} as their task has reported, found something else. Abort the job, and write it again.",
        path=path,
        position_bytes=piece.position_bytes,
    )
