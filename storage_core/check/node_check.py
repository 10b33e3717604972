"""Comparing the log directories of one node with each other, and with what its cluster knows."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from storage_core.check.cluster_topics import read_cluster_topics
from storage_core.check.root_check import is_directory_id
from storage_core.checkpoint import META_PROPERTIES
from storage_core.directory.log_directory_files import CLUSTER_METADATA_TOPIC
from storage_core.errors import LogDirectoryError
from storage_core.views.finding import Finding
from storage_core.views.roots import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from storage_core.check.cluster_topics import ClusterTopics
    from storage_core.check.root_check import RootCheck
    from storage_core.filesystem import FileSystem
    from storage_core.views.roots import LogRoot, PartitionPlace


_MOST_STATE_BYTES: Final = 64 << 10


def compare_roots(filesystem: FileSystem, roots: Sequence[LogRoot], checks: Mapping[str, RootCheck]) -> None:
    """Compare the log directories that belong together, and find out what their clusters know."""
    by_node: dict[tuple[int, str | None], list[LogRoot]] = defaultdict(list)
    for root in roots:
        check = checks.get(root.path)
        if check is not None and check.meta is not None and check.meta.node_id is not None:
            by_node[check.meta.node_id, check.meta.cluster_id].append(root)
    clusters: dict[int, str | None] = {}
    _find_topics(filesystem, by_node, checks)
    for (node_id, cluster_id), members in by_node.items():
        if clusters.setdefault(node_id, cluster_id) != cluster_id:
            reason = (
                f"Expected the cluster.id of the other log directory of broker {node_id}, found {cluster_id}: these are two "
                "brokers, or a broker does not start with both."
            )
            _suspect(checks[members[0].path], META_PROPERTIES, "metadata", reason)
        _compare_directory_ids(members, checks)
        _find_absent(members, checks)
        _compare_places([place for root in members for place in root.places], checks)


def _suspect(check: RootCheck, name: str, kind: str, reason: str) -> None:
    check.add(Finding("suspect", kind, os.path.join(check.path, name), reason))


def _find_topics(
    filesystem: FileSystem,
    by_node: Mapping[tuple[int, str | None], Sequence[LogRoot]],
    checks: Mapping[str, RootCheck],
) -> None:
    """Read the metadata of each cluster: a node's own, else that of another node."""
    known: dict[str | None, ClusterTopics] = {}
    for (node_id, cluster_id), roots in by_node.items():
        for root in roots:
            directory = os.path.join(root.path, f"{CLUSTER_METADATA_TOPIC}-0")
            if filesystem.status(directory) is None:
                continue
            topics = read_cluster_topics(filesystem, directory)
            voters = _voters(filesystem, directory, checks[root.path])
            if topics is not None:
                known[cluster_id] = topics
                for check in (checks[member.path] for member in roots):
                    check.topics, check.is_sole_voter = topics, voters == [node_id]
    for (_, cluster_id), roots in by_node.items():
        for check in (checks[member.path] for member in roots):
            check.topics = check.topics or known.get(cluster_id)


def _voters(filesystem: FileSystem, directory: str, check: RootCheck) -> list[int]:
    """Read the controllers that ``quorum-state`` names.

    Returns:
        Their node ids; none if a newer Kafka wrote the file, or if it cannot be read.
    """
    path = os.path.join(directory, "quorum-state")
    try:
        data = filesystem.read_file(path, _MOST_STATE_BYTES)
        state = {} if data is None else json.loads(data)
        return [each["voterId"] for each in state.get("currentVoters", ())]
    except (LogDirectoryError, ValueError, LookupError, TypeError, AttributeError):
        check.refuse(path, "Expected the state of the quorum as JSON, found something else. Remove it.")
        return []


def _compare_directory_ids(roots: Sequence[LogRoot], checks: Mapping[str, RootCheck]) -> None:
    paths: dict[str, str] = {}
    for root in roots:
        meta = checks[root.path].meta
        directory_id = None if meta is None else meta.directory_id
        if directory_id is not None and paths.setdefault(directory_id, root.path) != root.path:
            reason = (
                f"Expected a directory.id of its own, found that of {paths[directory_id]}: one is a copy of the other, and a "
                "broker does not start with both."
            )
            _suspect(checks[root.path], META_PROPERTIES, "metadata", reason)


def _find_absent(roots: Sequence[LogRoot], checks: Mapping[str, RootCheck]) -> None:
    """Find partitions that the cluster has in a log directory and that are not there, and an id that it does not know."""
    present = {place.topic_partition for root in roots for place in root.places if place.state == LIVE}
    known = {meta.directory_id for meta in (checks[root.path].meta for root in roots) if meta is not None}
    for root in roots:
        check = checks[root.path]
        meta, topics = check.meta, check.topics
        if not root.is_whole or topics is None or meta is None:
            continue
        owners = topics.owners_of(meta.directory_id or "")
        if owners and meta.node_id not in owners:
            reason = f"Expected node.id {max(owners)}, by which the cluster knows the log directory, found {meta.node_id}."
            check.refuse(os.path.join(root.path, META_PROPERTIES), reason)
        assigned = topics.directories_of(meta.node_id)
        here = {key for key, directory_id in assigned.items() if directory_id == meta.directory_id}
        for topic, partition in sorted(here - present):
            reason = "Expected the directory of a partition that the cluster has here, found none: a broker begins an empty one."
            _suspect(check, f"{topic}-{partition}", "file", reason)
        elsewhere = {
            assigned[place.topic_partition] for place in root.places if place.topic_partition in assigned
        }
        if elsewhere and not here and is_directory_id(max(elsewhere)) and not elsewhere & known:
            reason = (
                f"Expected directory.id {max(elsewhere)}, by which the cluster knows these partitions, found "
                f"{meta.directory_id or 'none'}: a broker may serve none of them."
            )
            _suspect(check, META_PROPERTIES, "metadata", reason)


def _compare_places(places: Iterable[PartitionPlace], checks: Mapping[str, RootCheck]) -> None:
    """Find partitions that a node has twice: it does not start."""
    live: dict[tuple[str, int], PartitionPlace] = {}
    future: dict[tuple[str, int], PartitionPlace] = {}
    for place in places:
        known = {LIVE: live, "future": future}.get(place.state)
        if known is None or place.topic == CLUSTER_METADATA_TOPIC:
            continue
        other = known.setdefault(place.topic_partition, place)
        if other is not place:
            _refuse_pair(place, other, checks)
    for key, place in future.items():
        if key in live and live[key].root == place.root:
            reason = (
                f"Expected the partition's move from another log directory, found {live[key].path} beside it. Move one of "
                "them away."
            )
            checks[place.root].refuse(place.path, reason, "file")


def _refuse_pair(place: PartitionPlace, other: PartitionPlace, checks: Mapping[str, RootCheck]) -> None:
    ids = [
        None if meta is None else meta.directory_id
        for meta in (checks[each.root].meta for each in (place, other))
    ]
    # Two copies of one log directory are no two disks.
    is_certain = None not in ids and ids[0] != ids[1]
    for each, twin in ((place, other), (other, place)):
        reason = (
            f"Expected the partition in one log directory of the broker, found it in {twin.root}, too. Move the one with the "
            "lower log end away."
        )
        if is_certain:
            checks[each.root].refuse(each.path, reason, "file")
        else:
            _suspect(checks[each.root], os.path.basename(each.path), "file", reason)
