"""Cleaning a compacted log, compared with the cleaner of a real broker on the same files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cleaning.broker_cleaner import BrokerCleaning, broker_with_logs, clean_in_broker
from benchmarks.cleaning.keyed_log import (
    RECORD_BYTES,
    SEGMENT_BYTES,
    TOPIC,
    Survivors,
    copy_partition,
    make_log,
    survivors_of,
)
from benchmarks.cleaning.our_cleaner import OurCleaning, clean_here
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_least, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import Series, ratio, spread
from benchmarks.writing.directories import settle

if TYPE_CHECKING:
    from tests.interop.broker import KafkaBroker

_SIZE_BYTES = 1 << 30
_CODECS = ("uncompressed", "zstd")
_DEDUPE_BUFFER_BYTES = 128 << 20
_LIMIT_MEGABYTES = _DEDUPE_BUFFER_BYTES // 1_000_000 + 200
_MOST_ROUNDS = 2
# Before it, the broker cleans a log that much smaller, which warms its Java machine up.
_WARM_UP_DIVISOR = 8
_WARM_UP = "warm-up"

_METHOD = f"""\
A compacted log of 1 GiB of keys and values, {RECORD_BYTES} B a record, in segments of {SEGMENT_BYTES >> 20} MiB; keys are
drawn at random, a tenth as many as there are records, so that about 10 % of them stay. `Log.append` makes it once, and
both get copies. *Broker*: one cleaner thread, not throttled, which has cleaned a log of an eighth of the size before;
its own log gives the time of each pass. *segmentlog*: `Log.clean`, a new process for each pass. Both use an offset map
of {_DEDUPE_BUFFER_BYTES >> 20} MiB and as many cores as they like, read from the page cache and force to disk what they
have written. What is left is the same in both after every pass: number of records, and a digest of all offsets, keys
and values. *Memory*: anonymous and shared, sampled every 20 ms from start to end of our process. At most {_MOST_ROUNDS}
rounds."""


def run(settings: Settings) -> SectionResult:
    """Clean with and without compression."""
    size_bytes = settings.scaled(_SIZE_BYTES)
    rounds = min(settings.repetitions, _MOST_ROUNDS)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "clean")
    sources: dict[str, Path] = {}
    records: dict[str, int] = {}
    for codec in _CODECS:
        tell(f"log to clean, {codec}")
        make_log(scratch / f"{codec}-{_WARM_UP}", size_bytes // _WARM_UP_DIVISOR, codec)
        records[codec] = make_log(scratch / codec, size_bytes, codec)
        sources[_topic(codec, _WARM_UP)] = scratch / f"{codec}-{_WARM_UP}" / f"{TOPIC}-0"
        sources |= {_topic(codec, number): scratch / codec / f"{TOPIC}-0" for number in range(rounds)}
    settle()
    with broker_with_logs(settings, scratch / "broker", sources, _DEDUPE_BUFFER_BYTES) as broker:
        for codec in _CODECS:
            tell(f"cleaning, {codec}")
            clean_in_broker(broker, _topic(codec, _WARM_UP))
            passes = [_clean_both(broker, scratch, codec, number) for number in range(rounds)]
            subject = f"{records[codec]:,} records, {codec}"
            findings += _findings(subject, records[codec], passes)
            raw[subject] = [
                {
                    "broker, s": theirs.seconds,
                    "segmentlog, s": ours.seconds,
                    "memory, B": ours.memory_bytes,
                }
                for theirs, ours, _ in passes
            ]
    return SectionResult("clean", "Cleaning a compacted log", _METHOD, tuple(findings), raw)


def _topic(codec: str, number: int | str) -> str:
    return f"{codec}-{number}"


def _clean_both(
    broker: KafkaBroker, scratch: Path, codec: str, number: int
) -> tuple[BrokerCleaning, OurCleaning, Survivors]:
    """Measure one round: the broker's pass, ours, and what both have left."""
    root = new_directory(scratch, "ours")
    for name in (path.name for path in (scratch / codec).iterdir() if path.is_file()):
        shutil.copy2(scratch / codec / name, root / name)
    copy_partition(scratch / codec / f"{TOPIC}-0", root / f"{TOPIC}-0")
    settle()
    theirs = clean_in_broker(broker, _topic(codec, number))
    settle()
    ours = clean_here(root, codec, _DEDUPE_BUFFER_BYTES)
    their_survivors = survivors_of(broker.log_directory, _topic(codec, number))
    our_survivors = survivors_of(root, TOPIC)
    if our_survivors != their_survivors or ours.end_offset != theirs.end_offset:
        raise RuntimeError(
            f"Expected {their_survivors}, cleaned up to {theirs.end_offset}, as in the broker; "
            f"found {our_survivors}, cleaned up to {ours.end_offset}."
        )
    return theirs, ours, our_survivors


def _findings(
    subject: str, records: int, passes: Sequence[tuple[BrokerCleaning, OurCleaning, Survivors]]
) -> list[Finding]:
    theirs = Series(tuple(each.seconds for each, _, _ in passes), records)
    ours = Series(tuple(each.seconds for _, each, _ in passes), records)
    left = passes[0][2].records
    seconds = f"{ours.median_s:.1f} : {theirs.median_s:.1f} s, {left / records:.1%} of the records stay"
    memory = [each.memory_bytes / 1e6 for _, each, _ in passes]
    processor = [each.processor_seconds for _, each, _ in passes]
    return [
        Finding("segmentlog : broker", subject, ratio(theirs, ours), "×", at_least(1), seconds),
        Finding("processor time of segmentlog", subject, spread(processor), "s"),
        Finding("memory of segmentlog", subject, spread(memory), "MB", at_most(_LIMIT_MEGABYTES)),
    ]
