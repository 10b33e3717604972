"""Watches the anonymous memory of processes, as the kernel counts it (RssAnon in /proc, Linux only)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["AnonymousMemoryWatch", "python_descendants"]

_INTERVAL_S = 0.02


class AnonymousMemoryWatch:
    """Samples processes in a thread while its block runs; then ``peaks_bytes`` holds each one's largest sample."""

    def __init__(self, find_processes: Callable[[], Iterable[int]]) -> None:
        self.peaks_bytes: dict[int, int] = {}
        self.samples = 0
        self._find_processes = find_processes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @property
    def peak_bytes(self) -> int:
        """The largest sample of any one process.

        Raises:
            RuntimeError: No process was seen.
        """
        if not self.peaks_bytes:
            raise RuntimeError("Expected processes to watch, found none.")
        return max(self.peaks_bytes.values())

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
                size_bytes = _anonymous_bytes(process_id)
                self.peaks_bytes[process_id] = max(self.peaks_bytes.get(process_id, 0), size_bytes)
            self.samples += 1


def python_descendants(process_id: int) -> list[int]:
    """Every Python process below ``process_id``, however deep; not the process itself."""
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


def _anonymous_bytes(process_id: int) -> int:
    for line in _text(Path(f"/proc/{process_id}/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # The process is gone.
        return ""
