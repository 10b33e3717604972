"""The input of the record parsers: whole batches, read from the files in large pieces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.log_files import Window, batch_places, windows

# As much as segmentlog decodes at once. Whole batches, so that no parser must join pieces.
_WINDOW_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LogInput:
    """One .log file and its cut points, which are prepared in advance and cost the peers nothing."""

    topic: str
    partition: int
    path: Path
    windows: tuple[Window, ...]

    def read(self) -> Iterator[bytes]:
        """Yield the file in pieces."""
        with open(self.path, "rb") as log:
            for window in self.windows:
                yield os.pread(log.fileno(), window.size_bytes, window.position_bytes)


def describe_inputs(paths: Sequence[Path]) -> list[LogInput]:
    """Prepare the segments of partition directories named ``topic-partition``."""
    inputs = []
    for path in paths:
        topic, _, partition = path.parent.name.rpartition("-")
        cuts = tuple(windows(list(batch_places(path)), _WINDOW_BYTES))
        inputs.append(LogInput(topic, int(partition), path, cuts))
    return inputs
