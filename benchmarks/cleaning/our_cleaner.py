"""One pass of segmentlog's cleaner over a copy of the log, in a process of its own that is watched."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cleaning.keyed_log import TOPIC, config_of
from benchmarks.memory_sampling import own_memory_bytes
from benchmarks.own_process import run_watched


@dataclass(frozen=True, slots=True)
class OurCleaning:
    """What was seen of one pass.

    Attributes:
        seconds: What `Log.clean` took.
        processor_seconds: How long the process's threads ran meanwhile.
        end_offset: Where the cleaned part ends.
        memory_bytes: The largest sample of what the process had for itself.
    """

    seconds: float
    processor_seconds: float
    end_offset: int
    memory_bytes: int


def clean_here(root: Path, compression: str, dedupe_buffer_bytes: int) -> OurCleaning:
    """Open a log directory in a new process and clean its log."""
    measures = {"memory": own_memory_bytes}
    (seconds, processor_seconds, end_offset), watch = run_watched(
        measures, _clean, root, compression, dedupe_buffer_bytes
    )
    return OurCleaning(seconds, processor_seconds, end_offset, watch.peak("memory"))


def _clean(root: Path, compression: str, dedupe_buffer_bytes: int) -> tuple[float, float, int]:
    """Runs in a process of its own."""
    from storage_core import CleanerConfig, LogDirectory

    with LogDirectory.open(root, config=config_of(compression)) as logs:
        log = logs.get(TOPIC)
        started, processor_started = time.perf_counter(), time.process_time()
        statistics = log.clean(CleanerConfig(dedupe_buffer_size=dedupe_buffer_bytes))
        seconds, processor_seconds = time.perf_counter() - started, time.process_time() - processor_started
    if statistics is None:
        raise RuntimeError(f"Expected something to clean in {root}, found nothing.")
    return seconds, processor_seconds, statistics.end_offset
