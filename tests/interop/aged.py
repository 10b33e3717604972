"""A broker's directory, cleaned twice: by the broker's cleaner and retention, and by ours on a copy.

The broker runs either to write, with a cleaner that never finds a log dirty enough, or to clean. Both cleaners start
from the closed directory in between.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.conformance.archives import unpack_case
from tests.interop.broker import KafkaBroker
from tests.interop.cleaner_log import CleanerRound, Retained, events_in
from tests.interop.cleaning_workload import CLEANED, MANY_KEYS, ONCE_DELETED
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    Consumed,
    Row,
    consume_partitions,
    create_topics,
    wait_until,
)
from tests.interop.placing import add_offsets, place
from tests.interop.produced import BROKER_SETTINGS
from tests.interop.retained import LOSING, place_without_timestamps, settings_of_retained, write_retained
from tests.interop.writing import config_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from storage_core import LogConfig
    from tests.interop.cleaning_workload import CleaningWorkload

# For both cleaners: an offset map too small for one topic, and buffers too small for some batches.
CLEANER_SETTINGS: dict[str, object] = {
    "log.cleaner.dedupe.buffer.size": (1 << 20) + 24,
    "log.cleaner.io.buffer.size": 65_536,
}
_SETTINGS: dict[str, object] = {
    **BROKER_SETTINGS,
    **CLEANER_SETTINGS,
    "log.flush.start.offset.checkpoint.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
}
WRITING = {
    **_SETTINGS,
    "log.cleaner.min.cleanable.ratio": 1.0,
    # Both run once at the start, before any data exists; the cleaner also applies retention to compacted logs.
    "log.cleaner.backoff.ms": 86_400_000,
    "log.retention.check.interval.ms": 86_400_000,
}
CLEANING = {
    **_SETTINGS,
    "log.cleaner.min.cleanable.ratio": 0.0,
    "log.cleaner.backoff.ms": 200,
    "log.retention.check.interval.ms": 300,
    # Files that retention has marked for deletion are compared, however long the cleaning takes.
    "log.segment.delete.delay.ms": 3_600_000,
}

_OLD_FORMAT: dict[str, object] = {"cleanup_policy": "compact", "segment_index_bytes": 65_536}
_DROPPED: dict[str, object] = {**_OLD_FORMAT, "internal_segment_bytes": 2_500, "delete_retention_ms": 1}
_KEPT: dict[str, object] = {**_DROPPED, "delete_retention_ms": 10_000_000_000}

# Cleaning removes everything from the last dirty batch. A broker keeps such a batch as an empty one, which formats v0
# and v1 cannot represent: its cleaner fails and marks the log uncleanable.
UNCLEANABLE = "cleaned-v0-uncleanable"

# Topic: case, topic in that case, settings, and the offset up to which it counts as cleaned.
LEGACY: dict[str, tuple[str, str, dict[str, object], int | None]] = {
    "cleaned-v0-kept": ("legacy-compact", "lc0-keep", _KEPT, None),
    "cleaned-v0-dropped": ("legacy-compact", "lc0-drop", _DROPPED, None),
    "cleaned-v0-dropped-further": ("legacy-compact", "lc0-drop", _DROPPED, 380),
    "cleaned-v1-kept-further": ("legacy-compact", "lc1-keep", _KEPT, 321),
    "cleaned-v1-dropped": ("legacy-compact", "lc1-drop", _DROPPED, None),
    "cleaned-v1-dropped-further": ("legacy-compact", "lc1-drop", _DROPPED, 332),
    "cleaned-v0-gzip": ("magic0", "m0-gzip", _OLD_FORMAT, None),
    UNCLEANABLE: ("magic0", "m0-lz4", _OLD_FORMAT, None),
    "cleaned-v1-snappy": ("magic1", "m1-snappy", _OLD_FORMAT, None),
    "cleaned-v1-append-time": ("magic1", "m1-append", _OLD_FORMAT, None),
    "cleaned-mixed": ("mixed-magic", "mixed", _OLD_FORMAT, None),
    "cleaned-upgraded": ("upgrade", "up0-plain", _OLD_FORMAT, None),
}
COMPACTED = tuple(topic for topic in (*CLEANED, *LEGACY) if topic != UNCLEANABLE)
_ALTERED = {ONCE_DELETED: {**CLEANED[ONCE_DELETED], "cleanup_policy": "compact"}}


@dataclass(slots=True)
class Aged:
    """A root before and after a broker cleaned it.

    Attributes:
        before: The root, closed with a clean-shutdown marker.
        by_broker: A copy that the broker cleaned and closed.
        events: What the broker did, in order.
        configs: The configuration of each topic.
    """

    before: Path
    by_broker: Path
    events: list[CleanerRound | Retained]
    configs: Mapping[str, LogConfig]


def age(scratch: Path, workload: CleaningWorkload) -> tuple[Aged, dict[str, list[Row]]]:
    """Write all topics, then let a broker clean them and apply retention.

    Returns:
        The aged root, and the records that read_committed consumers got from each workload topic before cleaning.
    """
    before = scratch / "written"
    with KafkaBroker(scratch / "writing", WRITING, log_directory=before) as broker:
        legacy = {topic: settings for topic, (_, _, settings, _) in LEGACY.items()}
        create_topics(broker, {**CLEANED, **legacy, **settings_of_retained()})
        workload.write(broker, "first")
        write_retained(broker)
        places = [(topic, 0) for topic in CLEANED]
        consumed = consume_partitions(broker, places, READ_COMMITTED)
    workload.write_ours(before, "first")
    _place_legacy(before, scratch)
    place_without_timestamps(before, scratch / "without-timestamps")
    rows = {topic: each.rows for (topic, _), each in consumed.items()}
    return clean_by_broker(before, scratch, "first", _configs(before), COMPACTED, LOSING), rows


def clean_by_broker(
    before: Path,
    scratch: Path,
    occasion: str,
    configs: Mapping[str, LogConfig],
    topics: Collection[str],
    retained: Collection[str] = (),
) -> Aged:
    """Let a broker clean a copy of a closed root until it has cleaned these topics, and shortened those by retention."""
    by_broker = scratch / f"{occasion}-by-broker"
    copy_root(before, by_broker)
    with KafkaBroker(scratch / f"{occasion}-cleaning", CLEANING, log_directory=by_broker) as broker:
        wait_until(lambda: _is_clean(broker, topics), f"The broker did not clean all of {topics}.")
        wait_until(lambda: _is_retained(broker, retained), f"The broker did not delete of all of {retained}.")
    events = list(_events(broker))
    return Aged(before, by_broker, events, configs)


def _configs(written: Path) -> dict[str, LogConfig]:
    """Return the configuration of each topic, as the broker has it.

    Args:
        written: The root after the first writes.
    """
    legacy = {topic: settings for topic, (_, _, settings, _) in LEGACY.items()}
    return {
        topic: config_of({"cleanup_policy": "delete", "min_cleanable_dirty_ratio": 0.0, **settings})
        for topic, settings in {**CLEANED, **legacy, **settings_of_retained(written), **_ALTERED}.items()
    }


def copy_root(source: Path, target: Path) -> None:
    """Copy a closed root, without the files that await deletion."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.deleted"))


def consume_all(broker: KafkaBroker) -> dict[str, dict[str, Consumed]]:
    """Return what consumers get from every compacted topic, by isolation level and topic."""
    return {
        level: {
            topic: each
            for (topic, _), each in consume_partitions(
                broker, [(topic, 0) for topic in (*COMPACTED, UNCLEANABLE)], level
            ).items()
        }
        for level in ISOLATION_LEVELS
    }


def _place_legacy(root: Path, scratch: Path) -> None:
    sources = {
        case: unpack_case(case, scratch / f"case-{case}")[0]
        for case in {case for case, *_ in LEGACY.values()}
    }
    for topic, (case, source_topic, _, cleaned_up_to) in LEGACY.items():
        place(sources[case], root, topic, source_topic=source_topic)
        if cleaned_up_to is not None:
            add_offsets(root, "cleaner-offset-checkpoint", {topic: cleaned_up_to})


def _events(broker: KafkaBroker) -> Iterator[CleanerRound | Retained]:
    return events_in(broker.log_path.read_text(errors="replace"))


def _is_clean(broker: KafkaBroker, topics: Collection[str]) -> bool:
    """Return True if each topic is cleaned, and the topic that overflows the offset map is cleaned to its end."""
    ends = {event.log[0]: event.end_offset for event in _events(broker) if isinstance(event, CleanerRound)}
    last = max(int(path.stem) for path in (broker.log_directory / f"{MANY_KEYS}-0").glob("*.log"))
    return set(topics) <= ends.keys() and ends[MANY_KEYS] == last


def _is_retained(broker: KafkaBroker, topics: Collection[str]) -> bool:
    """Return True if retention has deleted something from each topic."""
    return set(topics) <= {event.log[0] for event in _events(broker) if isinstance(event, Retained)}
