"""Watches the memory, the open files and the processor time of processes, as the kernel counts them (/proc, Linux only)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_INTERVAL_S = 0.02


class ProcessWatch:
    """Samples processes in a thread while its block runs; then ``peaks`` holds each one's largest sample.

    Args:
        find_processes: Whom to watch, asked before each sample.
        measures: What to watch of a process, by name.
    """

    def __init__(
        self, find_processes: Callable[[], Iterable[int]], measures: Mapping[str, Callable[[int], int]]
    ) -> None:
        self.peaks: dict[str, dict[int, int]] = {name: {} for name in measures}
        self.samples = 0
        self._find_processes = find_processes
        self._measures = dict(measures)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def peak(self, name: str) -> int:
        """Return the largest sample of any one process.

        Raises:
            RuntimeError: No process was seen.
        """
        if not self.peaks[name]:
            raise RuntimeError("Expected processes to watch, found none.")
        return max(self.peaks[name].values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(_INTERVAL_S):
            for process_id in self._find_processes():
                for name, measure in self._measures.items():
                    peaks = self.peaks[name]
                    peaks[process_id] = max(peaks.get(process_id, 0), measure(process_id))
            self.samples += 1


def anonymous_memory_bytes(process_id: int) -> int:
    """Return the memory that a process has for itself."""
    return _status_bytes(process_id, ("RssAnon:",))


def own_memory_bytes(process_id: int) -> int:
    """Return the memory that a process has: anonymous, and shared with others; not the files that it maps."""
    return _status_bytes(process_id, ("RssAnon:", "RssShmem:"))


def open_files_below(directory: Path) -> Callable[[int], int]:
    """Return a measure for a watch: how many files in a directory, or below it, a process has open."""
    prefix = f"{directory}/"

    def count(process_id: int) -> int:
        return sum(target.startswith(prefix) for target in _open_files(process_id))

    return count


def processor_seconds(process_ids: Iterable[int]) -> float:
    """Return the processor time that processes have used, and children of theirs that have ended."""
    ticks = 0
    for process_id in process_ids:
        # From the state of the process on: its name, before that, may hold blanks.
        fields = _text(Path(f"/proc/{process_id}/stat")).rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def python_descendants(process_id: int) -> list[int]:
    """Return every Python process below ``process_id``, however deep; not the process itself."""
    found: list[int] = []
    pending = [process_id]
    while pending:
        children = _children(pending.pop())
        pending += children
        found += [child for child in children if _is_python(child)]
    return found


def _children(process_id: int) -> list[int]:
    # Each thread has its own list of the processes that it started.
    found: list[int] = []
    for task in Path(f"/proc/{process_id}/task").glob("*/children"):
        found += [int(child) for child in _text(task).split()]
    return found


def _is_python(process_id: int) -> bool:
    return "python" in _text(Path(f"/proc/{process_id}/cmdline")).partition("\0")[0]


def _status_bytes(process_id: int, fields: Iterable[str]) -> int:
    size_bytes = 0
    for line in _text(Path(f"/proc/{process_id}/status")).splitlines():
        if line.startswith(tuple(fields)):
            size_bytes += int(line.split()[1]) * 1024
    return size_bytes


def _open_files(process_id: int) -> Iterator[str]:
    try:
        with os.scandir(f"/proc/{process_id}/fd") as descriptors:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    yield os.readlink(descriptor.path)
    except OSError:
        # The process is gone.
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # The process is gone.
        return ""
