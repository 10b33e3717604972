"""Our cleaner against a broker's, pass after pass; between passes a broker continues on the logs that we cleaned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core import LogDirectory
from storage_core.log import CleanerConfig
from tests.interop.aged import CLEANER_SETTINGS, UNCLEANABLE, WRITING, Aged, consume_all, copy_root
from tests.interop.broker import KafkaBroker
from tests.interop.broker_start import BrokerStart
from tests.interop.cleaned_state import horizons_in
from tests.interop.cleaner_log import CleanerRound
from tests.interop.cleaning_topics import IDEMPOTENT
from tests.interop.partition_state import ProducerEntry, snapshot_entries_in_order
from tests.interop.placing import write_offsets
from tests.interop.raw_produce import ProducerAnswers, go_on

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.cleaning_workload import CleaningWorkload
    from tests.interop.clients import Consumed

# The longest time between the start of a pass and the broker's log line for it.
_TOLERANCE_MS = 2_000


def clean_by_us(aged: Aged, target: Path) -> Path:
    """Apply the broker's passes to a copy, in its order and at its times; then clean what the broker could not."""
    copy_root(aged.before, target)
    cleaner = CleanerConfig.from_dict(CLEANER_SETTINGS)
    with LogDirectory.open(target, broker_directory=True, config=aged.configs) as logs:
        for event in aged.events:
            if event.log[0] not in aged.configs:
                continue
            log = logs.get(*event.log)
            if isinstance(event, CleanerRound):
                assert log.clean(cleaner, now_ms=_began_ms(aged, event)) is not None, event
            else:
                log.apply_retention(event.began_ms)
        logs.get(UNCLEANABLE, 0).clean(cleaner)
    return target


def clean_at_once(aged: Aged, target: Path) -> Path:
    """Clean a copy in a different order than the broker did."""
    copy_root(aged.before, target)
    cleaner = CleanerConfig.from_dict(CLEANER_SETTINGS)
    with LogDirectory.open(target, broker_directory=True, config=aged.configs) as logs:
        now_ms = aged.events[-1].began_ms
        assert logs.clean(cleaner, now_ms=now_ms)
        assert not logs.clean(cleaner, now_ms=now_ms)
    return target


def _began_ms(aged: Aged, event: CleanerRound) -> int:
    """The time from which the broker computed delete horizons; the new horizons show it exactly."""
    topic, partition = event.log
    before, after = (
        horizons_in({path.name: path.read_bytes() for path in (root / f"{topic}-{partition}").glob("*.log")})
        for root in (aged.before, aged.by_broker)
    )
    new = {horizon - aged.configs[topic].delete_retention_ms for horizon in after - before}
    # A log that was cleaned twice has two new horizons.
    began_ms = min(new, key=lambda each: abs(each - event.began_ms), default=event.began_ms)
    assert abs(began_ms - event.began_ms) < _TOLERANCE_MS
    return began_ms


@dataclass(frozen=True, slots=True)
class Continued:
    """A broker on a root that we cleaned.

    Attributes:
        root: The closed root, after more was written to it.
        start: What the broker logged during its start.
        consumed: What consumers read before further writes, by isolation level and topic.
        answers: The broker's answers to producers that continued.
    """

    root: Path
    start: BrokerStart
    consumed: dict[str, dict[str, Consumed]]
    answers: list[ProducerAnswers]


def continue_with_broker(
    cleaned: Path,
    producers: list[ProducerEntry],
    workload: CleaningWorkload,
    scratch: Path,
    occasion: str,
    *,
    is_forgotten: bool = False,
) -> Continued:
    """Start a broker on a copy of a cleaned root, read everything, and write to every topic.

    Args:
        cleaned: The root.
        producers: Idempotent producers that continue.
        workload: Writes the topics.
        scratch: Holds the copy.
        occasion: Which part of the workload is written.
        is_forgotten: Whether the broker gets only the log files, so that it reads every batch.
    """
    root = scratch / f"{occasion}-written"
    copy_root(cleaned, root)
    if is_forgotten:
        _forget_producers(root)
    with KafkaBroker(scratch / f"{occasion}-writing", WRITING, log_directory=root) as broker:
        start = BrokerStart(broker.log_path.read_text(errors="replace"))
        consumed = consume_all(broker)
        answers = [go_on(broker, IDEMPOTENT, entry) for entry in producers]
        workload.write(broker, occasion)
    workload.write_ours(root, occasion)
    return Continued(root, start, consumed, answers)


def _forget_producers(root: Path) -> None:
    (root / ".kafka_cleanshutdown").unlink()
    write_offsets(root, "recovery-point-offset-checkpoint", {})
    for snapshot in (root / f"{IDEMPOTENT}-0").glob("*.snapshot"):
        snapshot.unlink()


def producers_of(root: Path) -> list[ProducerEntry]:
    """The idempotent producers in a broker's last snapshots."""
    newest = max((root / f"{IDEMPOTENT}-0").glob("*.snapshot"))
    return sorted(snapshot_entries_in_order(newest.read_bytes()))
