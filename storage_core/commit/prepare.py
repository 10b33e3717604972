"""The journal of a job: what becomes of each partition. Nothing that is done here is visible.

Staged segments are patched, and a pack of the driver's own may be staged. A crash leaves staged
files, which are swept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES,
    PARTITION_METADATA,
    write_partition_metadata,
)
from storage_core.checkpoint.commit_journal import CommitJournal
from storage_core.commit.fill import FillStage
from storage_core.commit.partition_plan import plan_partition
from storage_core.commit.partition_state import PartitionState, new_partition_state, read_partition_state
from storage_core.commit.patch import patch_segment
from storage_core.commit.portions import pieces_by_partition
from storage_core.commit.targets import require_space, require_targets
from storage_core.errors import CorruptError, LogDirectoryError, OptionError
from storage_core.log.topic_ids import check_topic_partition, choose_topic_id
from storage_core.publishing.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.commit.manifest import StagedManifest, StagedPiece
    from storage_core.commit.settings import JobSettings
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem

__all__ = ["prepare"]

_MAX_MARKER_BYTES: Final = 4096


def prepare(
    filesystem: FileSystem,
    root: str,
    settings: JobSettings,
    manifests: Sequence[StagedManifest],
    directories: Sequence[PartitionDirectory],
    *,
    generation: int,
    time_ms: int,
) -> CommitJournal:
    """Find out what a job does to each partition, and do what of it nobody sees. The root is clean, and locked.

    Args:
        filesystem: Where to read and write.
        root: The log directory.
        settings: The job.
        manifests: What its tasks have reported.
        directories: The partitions that are there.
        generation: That of this commit.
        time_ms: The time.

    Raises:
        OptionError: The rows, or the settings, do not fit what is there.
        LogDirectoryError: A partition cannot be written to.
        CorruptError: A staged file, or a partition, is damaged.
        StorageError: The file system refused, or has no room for what is to be written.
    """
    pieces = pieces_by_partition(filesystem, root, settings, manifests)
    states = _states(filesystem, root, settings, pieces, directories)
    topic_ids = _topic_ids(filesystem, root, settings, states, directories)
    fill = FillStage(filesystem, root, settings.job_id)
    placed = [
        plan_partition(filesystem, root, settings, state, pieces.get(key, ()), topic_ids[state.topic], fill)
        for key, state in sorted(states.items())
    ]
    fill.write(flush=settings.flush)
    partitions = tuple(each.partition for each in placed)
    require_targets(filesystem, root, partitions)
    require_space(filesystem, root, partitions)
    segments = [segment for each in placed for segment in each.segments]
    in_parallel(
        lambda segment: patch_segment(filesystem, root, segment, flush=settings.flush),
        segments,
        settings.threads,
    )
    _complete(filesystem, root, states, topic_ids)
    marker = filesystem.read_file(os.path.join(root, CLEAN_SHUTDOWN_FILE), _MAX_MARKER_BYTES)
    if marker is None and not settings.flush:
        # Nobody puts it back.
        marker = b""
    if marker is None:
        raise CorruptError(
            f"Expected {CLEAN_SHUTDOWN_FILE} to stay, it was deleted. Stop who does so, and write again.",
            path=root,
        )
    return CommitJournal(
        job_id=settings.job_id,
        generation=generation,
        time_ms=time_ms,
        txn_app_id=settings.txn_app_id,
        txn_version=settings.txn_version,
        clean_shutdown=marker,
        manifests=tuple(manifest.name for manifest in manifests),
        partitions=partitions,
        is_flushed=settings.flush,
    )


def _states(
    filesystem: FileSystem,
    root: str,
    settings: JobSettings,
    pieces: dict[tuple[str, int], list[StagedPiece]],
    directories: Sequence[PartitionDirectory],
) -> dict[tuple[str, int], PartitionState]:
    """Every partition that changes, as it is now."""
    known = {directory.topic_partition: directory for directory in directories}
    restored = set(settings.restored_offsets)
    targeted = {topic for topic, _ in pieces} | set(settings.targeted_topics)
    changed = set(pieces) | restored
    for topic, count in settings.new_partitions.items():
        _require_count(root, settings, topic, count, sum(name == topic for name, _ in known))
        changed |= {(topic, number) for number in range(count) if (topic, number) not in known}
    if settings.mode == "overwrite":
        changed |= {key for key in known if key[0] in targeted}
    states = {}
    for key in changed:
        check_topic_partition(*key)
        directory = known.get(key)
        if directory is not None:
            start = directory.root.log_start_offsets.get(key, 0)
            states[key] = read_partition_state(filesystem, directory, start)
            continue
        if key[1] >= settings.new_partitions.get(key[0], 0) and key not in restored:
            raise OptionError(
                f"Expected rows for partitions that exist, or for new ones of a topic whose number of partitions is "
                f"given, found some for {key[0]}-{key[1]}. Say with 'partitions' how many the topic has."
            )
        if filesystem.status(os.path.join(root, f"{key[0]}-{key[1]}")) is not None:
            raise LogDirectoryError(
                "Expected nothing where a partition's directory is to be made, found something. Move it away.",
                path=os.path.join(root, f"{key[0]}-{key[1]}"),
            )
        states[key] = new_partition_state(*key)
    return states


def _require_count(root: str, settings: JobSettings, topic: str, count: int, found: int) -> None:
    """Rows were routed by how many partitions there are: nobody may have made others meanwhile."""
    if found not in (0, count) and not settings.restored_offsets:
        raise OptionError(
            f"Expected topic {topic} to be new, or to have {count} partitions, found {found}: another job has made "
            "it meanwhile. Write again.",
            path=root,
        )


def _topic_ids(
    filesystem: FileSystem,
    root: str,
    settings: JobSettings,
    states: dict[tuple[str, int], PartitionState],
    directories: Sequence[PartitionDirectory],
) -> dict[str, str | None]:
    """The id of each topic of which a partition is made, or which has to have the id that is asked for."""
    found: dict[str, str | None] = {}
    is_brokers = filesystem.status(os.path.join(root, META_PROPERTIES)) is not None
    for topic in sorted({topic for topic, _ in states}):
        wanted = settings.topic_ids.get(topic)
        of_topic = [state for state in states.values() if state.topic == topic]
        has_new = any(state.is_new for state in of_topic)
        # What a broker made is left as it is.
        is_complete = is_brokers or all(state.has_metadata for state in of_topic)
        if not has_new and wanted is None and is_complete:
            found[topic] = None
            continue
        paths = [directory.path for directory in directories if directory.topic == topic]
        if is_brokers and has_new and not paths and wanted is None:
            raise OptionError(
                f"Expected the id that the cluster gave to topic {topic}, found none: a broker puts a directory "
                "with another id aside, and makes an empty log in its place. Create the topic first, and give its "
                "id with topicIds.",
                path=root,
            )
        found[topic] = choose_topic_id(filesystem, topic, paths, wanted)
    return found


def _complete(
    filesystem: FileSystem,
    root: str,
    states: dict[tuple[str, int], PartitionState],
    topic_ids: dict[str, str | None],
) -> None:
    """Give an id to partitions without one, as `LogDirectory.open` does: a broker would put them aside."""
    without = [state for state in states.values() if not state.has_metadata]
    if without and filesystem.status(os.path.join(root, META_PROPERTIES)) is None:
        for state in without:
            topic_id = topic_ids[state.topic]
            if topic_id is not None:
                path = os.path.join(root, f"{state.topic}-{state.partition}", PARTITION_METADATA)
                write_partition_metadata(filesystem, path, topic_id)
