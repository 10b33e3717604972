"""From the pieces that tasks have staged to portions that can be placed, each of them checked.

What is appended is read whole and its CRCs are checked: behind the journal it is too late to find
that it is damaged. Of a large piece the headers are checked when they are patched.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.commit_journal import PackRange
from storage_core.commit.manifest import read_manifest
from storage_core.commit.placement import Placement, Portion
from storage_core.errors import CorruptRecordError, OptionError
from storage_core.publishing.append import staged_batches
from storage_core.publishing.batch_heads import batch_heads
from storage_core.record.batch_fingerprint import batch_fingerprint
from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.commit.manifest import StagedManifest, StagedPiece
    from storage_core.commit.settings import JobSettings
    from storage_core.filesystem import FileSystem
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
    for piece in pieces:
        if piece.suffix != LOG_SUFFIX:
            portions.append(_appended(filesystem, root, piece, keep_offsets=keep_offsets))
        elif Placement.is_linked(piece.size_bytes, config):
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


def _appended(filesystem: FileSystem, root: str, piece: StagedPiece, *, keep_offsets: bool) -> Portion:
    batches = staged_batches(filesystem, root, PackRange(piece.file, piece.position_bytes, piece.size_bytes))
    counts = batches.headers["last_offset_delta"].astype("i8") + 1
    taken = batches.next_offset - batches.base_offset if keep_offsets else int(counts.sum())
    if batch_fingerprint(batches.headers) != piece.fingerprint or taken != piece.offset_count:
        raise not_as_staged(os.path.join(root, piece.file + piece.suffix), piece)
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
        heads = list(batch_heads(file, piece.size_bytes))
    start = 0
    offset_count = 0
    for number, head in enumerate(heads, start=1):
        end_bytes = head.position_bytes + head.size_bytes
        if number < len(heads) and end_bytes - heads[start].position_bytes < _PORTION_BYTES:
            continue
        part = heads[start:number]
        first, last = part[0], part[-1]
        if keep_offsets:
            count = last.base_offset + last.last_offset_delta + 1 - first.base_offset
        else:
            count = sum(each.last_offset_delta + 1 for each in part)
        size_bytes = end_bytes - first.position_bytes
        # Checks the CRCs.
        staged_batches(filesystem, root, PackRange(piece.file, first.position_bytes, size_bytes))
        yield Portion(
            piece.file,
            first.position_bytes,
            size_bytes,
            count,
            first.max_timestamp_ms,
            max(each.max_timestamp_ms for each in part),
            first.base_offset if keep_offsets else None,
        )
        offset_count += count
        start = number
    if not keep_offsets and offset_count != piece.offset_count:
        raise not_as_staged(path, piece)


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
