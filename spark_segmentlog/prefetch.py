"""Decoding the next batch while Spark is busy with the last one.

Spark takes a task's batches through a socket, row by row on its side, and that costs more
than decoding. A thread that stays a batch or two ahead hides the decoder behind it. Arrow,
numpy, checksums and reads release the interpreter lock, as the socket does.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["prefetch"]

_Item = TypeVar("_Item")

# Two batches of some megabytes: one being handed over, one ready behind it.
_DEPTH: Final = 2


def prefetch(produce: Callable[[], Iterator[_Item]], depth: int = _DEPTH) -> Generator[_Item]:
    """Run ``produce()`` on a thread of its own, at most ``depth`` items ahead.

    What it raises is raised here, after the items before it. When the consumer stops early,
    the thread is told so, closes the iterator (and so its files) and is waited for.
    """
    hand_over = _HandOver[_Item](depth)
    thread = threading.Thread(target=_run, args=(produce, hand_over), name="segmentlog-prefetch", daemon=True)
    thread.start()
    try:
        while (item := hand_over.take()) is not None:
            yield item[0]
    finally:
        hand_over.close()
        thread.join()


class _HandOver(Generic[_Item]):
    """A bounded queue between two threads that either side can end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_finished = False
        self._error: BaseException | None = None

    def put(self, item: _Item) -> bool:
        """Wait for room and add an item; False if nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._items) < self._depth)
            if not self._is_closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._is_closed

    def finish(self, error: BaseException | None) -> None:
        """Say that no item will follow, and why."""
        with self._changed:
            self._is_finished = True
            self._error = error
            self._changed.notify_all()

    def take(self) -> tuple[_Item] | None:
        """Wait for an item; None after the last one. Raises what ended the producer."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_finished)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return (item,)
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Say that no item is wanted any more."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()


def _run(produce: Callable[[], Iterator[_Item]], hand_over: _HandOver[_Item]) -> None:
    error: BaseException | None = None
    try:
        items = produce()
        try:
            for item in items:
                if not hand_over.put(item):
                    break
        finally:
            # Files are closed by the thread that opened them, before the consumer goes on.
            close = getattr(items, "close", None)
            if close is not None:
                close()
    except BaseException as raised:  # noqa: BLE001  (handed over, to be raised by the consumer)
        error = raised
    hand_over.finish(error)
