"""Which of the partitions found on disk a read takes: ``subscribe``, ``subscribePattern``, ``assign``.

As in Spark's Kafka source, a topic that is named must exist, a partition that is named need
not, and a pattern may match nothing. Internal topics are read only if they are named.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from storage_core.errors import OptionError
from storage_core.scan.java_pattern import compile_java_pattern
from storage_core.scan.offset_json import format_topic_partitions
from storage_core.scan.option_table import nearest_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from storage_core.directory import PartitionDirectory
    from storage_core.scan.options import ReadOptions

__all__ = ["select_partitions"]

_log = logging.getLogger(__name__)


def select_partitions(
    directories: Sequence[PartitionDirectory], options: ReadOptions
) -> list[PartitionDirectory]:
    """Take the partitions that the options ask for, in the order given.

    Raises:
        OptionError: A topic is named that is not there.
    """
    if options.subscribe is not None:
        _check_topics("subscribe", options.subscribe, directories)
        return [directory for directory in directories if directory.topic in options.subscribe]
    if options.assign is not None:
        return _select_assigned(directories, options.assign)
    if options.subscribe_pattern is not None:
        pattern = compile_java_pattern("subscribePattern", options.subscribe_pattern)
        matching = {topic for topic in _public_topics(directories) if pattern.search(topic)}
        if not matching:
            _log.warning("subscribePattern %r matches no topic.", options.subscribe_pattern)
        return [directory for directory in directories if directory.topic in matching]
    return [directory for directory in directories if not directory.is_internal]


def _select_assigned(
    directories: Sequence[PartitionDirectory], assign: Mapping[str, tuple[int, ...]]
) -> list[PartitionDirectory]:
    _check_topics("assign", assign, directories)
    assigned = {(topic, partition) for topic, partitions in assign.items() for partition in partitions}
    selected = [directory for directory in directories if directory.topic_partition in assigned]
    missing = assigned - {directory.topic_partition for directory in selected}
    if missing:
        _log.warning("assign names partitions that do not exist: %s.", format_topic_partitions(missing))
    return selected


def _check_topics(option: str, wanted: Iterable[str], directories: Sequence[PartitionDirectory]) -> None:
    topics = {directory.topic for directory in directories}
    for topic in wanted:
        if topic not in topics:
            hint = nearest_hint(topic, _public_topics(directories) or topics)
            raise OptionError(
                f"UnknownTopicOrPartition: {option} names the topic '{topic}', which is not there.{hint}"
            )


def _public_topics(directories: Iterable[PartitionDirectory]) -> list[str]:
    return sorted({directory.topic for directory in directories if not directory.is_internal})
