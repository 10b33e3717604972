"""Select the partitions to read: ``subscribe``, ``subscribePattern``, ``assign``.

As in Spark's Kafka source, a topic that is named must exist, a partition that is named need not, and a pattern may match
no topic; whoever types a command is told (`matches_required`). Internal topics are read only if they are named.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from storage_core.errors import OptionError
from storage_core.options.bounds import format_topic_partitions
from storage_core.options.java_pattern import compile_java_pattern
from storage_core.options.option import nearest_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from storage_core.directory import PartitionDirectory
    from storage_core.options import ReadOptions


_log = logging.getLogger(__name__)
_are_matches_required: ContextVar[bool] = ContextVar("are_matches_required", default=False)


@contextmanager
def matches_required() -> Iterator[None]:
    """Make it an error, for as long as this is open, that a pattern or a partition that is named matches nothing."""
    token = _are_matches_required.set(True)
    try:
        yield
    finally:
        _are_matches_required.reset(token)


def report_no_match(message: str) -> None:
    """Log that an option matches nothing, or fail on it if matches are required."""
    if _are_matches_required.get():
        raise OptionError(message)
    _log.warning("%s", message)


def select_partitions(
    directories: Sequence[PartitionDirectory], options: ReadOptions, *, may_be_absent: bool = False
) -> list[PartitionDirectory]:
    """Select the partitions that the options ask for, in the order given.

    Args:
        directories: Those that there are.
        options: What to read.
        may_be_absent: Whether topics and partitions that are named may come later.

    Raises:
        OptionError: A topic that is named does not exist; or a match is required, and there is none.
    """
    if options.subscribe is not None:
        if not may_be_absent:
            _check_topics("subscribe", options.subscribe, directories)
        return [directory for directory in directories if directory.topic in options.subscribe]
    if options.assign is not None:
        return _select_assigned(directories, options.assign, may_be_absent=may_be_absent)
    if options.subscribe_pattern is not None:
        pattern = compile_java_pattern("subscribePattern", options.subscribe_pattern)
        matching = {topic for topic in _public_topics(directories) if pattern.search(topic)}
        if not matching and not may_be_absent:
            report_no_match(f"subscribePattern {options.subscribe_pattern!r} matches no topic.")
        return [directory for directory in directories if directory.topic in matching]
    return [directory for directory in directories if not directory.is_internal]


def _select_assigned(
    directories: Sequence[PartitionDirectory], assign: Mapping[str, tuple[int, ...]], *, may_be_absent: bool
) -> list[PartitionDirectory]:
    if not may_be_absent:
        _check_topics("assign", assign, directories)
    assigned = {(topic, partition) for topic, partitions in assign.items() for partition in partitions}
    selected = [directory for directory in directories if directory.topic_partition in assigned]
    missing = assigned - {directory.topic_partition for directory in selected}
    if missing and not may_be_absent:
        report_no_match(f"assign names partitions that do not exist: {format_topic_partitions(missing)}.")
    return selected


def _check_topics(option: str, wanted: Iterable[str], directories: Sequence[PartitionDirectory]) -> None:
    topics = {directory.topic for directory in directories}
    for topic in wanted:
        if topic not in topics:
            hint = nearest_hint(topic, _public_topics(directories) or topics)
            raise OptionError(
                f"UnknownTopicOrPartition: {option} names the topic '{topic}', which does not exist.{hint}"
            )


def _public_topics(directories: Iterable[PartitionDirectory]) -> list[str]:
    return sorted({directory.topic for directory in directories if not directory.is_internal})
