"""Read tasks in threads, ahead of whoever consumes their rows, in the order of the tasks and in bounded memory.

Arrow, numpy, decompression, checksums and reads release the interpreter lock, so a thread decodes while the consumer
works, or while another thread decodes the next task.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa


_Task = TypeVar("_Task")
_BATCH_OVERHEAD_BYTES: Final = 4096
# About the rows of two tasks that are read at a time.
_READY_BYTES: Final = 96 << 20


def memory_bytes(batch: pa.RecordBatch) -> int:
    """Return the memory of a batch in bytes: that of its rows, and some beside them."""
    return int(batch.nbytes) + _BATCH_OVERHEAD_BYTES


def read_ahead(
    read: Callable[[_Task], Generator[pa.RecordBatch]],
    tasks: Sequence[_Task],
    *,
    threads: int = 1,
    room_bytes: int = _READY_BYTES,
    finished: Callable[[_Task], None] = lambda _: None,
) -> Generator[pa.RecordBatch]:
    """Yield the batches of ``read(task)`` for one task after the other, while threads read ahead.

    The error of a task is raised after the batches before it, and no task is begun after an error. When the consumer stops
    early, each thread closes the iterator that it reads, and so its files, and is joined.

    Args:
        read: Called in a thread.
        tasks: Each is read by one thread.
        threads: How many tasks are read at a time; with 0, the consumer's thread reads.
        room_bytes: A thread waits while batches of this size are ready, unless the consumer waits for its task.
        finished: Called by the consumer after the last batch of a task.
    """
    if not threads:
        for task in tasks:
            with contextlib.closing(read(task)) as batches:
                yield from batches
            finished(task)
        return
    queue = _TaskQueue(read, tasks, room_bytes)
    try:
        queue.start(min(threads, len(tasks)))
        for task in tasks:
            while not isinstance(item := queue.take(), _End):
                yield item
            if item.error is not None:
                raise item.error
            finished(task)
    finally:
        queue.close()


@dataclass(frozen=True, slots=True)
class _End:
    """What follows the last item of a task, with the error that ended it."""

    error: BaseException | None


class _TaskQueue(Generic[_Task]):
    """A bounded queue for each task between the threads that read them and one consumer, which either side can end."""

    def __init__(
        self, read: Callable[[_Task], Generator[pa.RecordBatch]], tasks: Sequence[_Task], room_bytes: int
    ) -> None:
        self._read = read
        self._left: Iterator[tuple[int, _Task]] = enumerate(tasks)
        self._room_bytes = room_bytes
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        # Those of tasks that were begun and are not consumed, with their sizes.
        self._items: defaultdict[int, deque[tuple[pa.RecordBatch | _End, int]]] = defaultdict(deque)
        self._consumed = 0
        self._ready_bytes = 0
        self._is_closed = False

    def start(self, threads: int) -> None:
        """Start the threads."""
        _OPEN.add(self)
        for _ in range(threads):
            thread = threading.Thread(target=self._run, name="segmentlog-read-ahead", daemon=True)
            thread.start()
            self._threads.append(thread)

    def take(self) -> pa.RecordBatch | _End:
        """Wait for the next item, or the end, of the first task that is not consumed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._items[self._consumed])
            if self._is_closed:
                raise ValueError("The reader is closed.")
            item, size_bytes = self._items[self._consumed].popleft()
            self._ready_bytes -= size_bytes
            if isinstance(item, _End):
                del self._items[self._consumed]
                self._consumed += 1
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Drop the items, refuse others, and wait for the threads."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            # The garbage collector found the consumer there, maybe while the others wait for the lock.
            return
        for thread in self._threads:
            thread.join()
        _OPEN.discard(self)

    def close_in_fork(self) -> None:
        """Close in a fork of the process, which has none of the threads. One of them may have held the lock."""
        self._changed = threading.Condition()
        self._threads.clear()
        self.close()

    def _run(self) -> None:
        while (begun := self._begin()) is not None:
            number, task = begun
            try:
                # Files are closed by the thread that opened them, before the consumer goes on.
                with contextlib.closing(self._read(task)) as batches:
                    for batch in batches:
                        if not self._put(number, batch, memory_bytes(batch)):
                            break
            except BaseException as error:  # noqa: BLE001  (the consumer raises it)
                self._left = iter(())
                self._put(number, _End(error), 0)
            else:
                self._put(number, _End(None), 0)

    def _begin(self) -> tuple[int, _Task] | None:
        """Return the next task and its number; None if there is none."""
        with self._changed:
            return None if self._is_closed else next(self._left, None)

    def _put(self, number: int, item: pa.RecordBatch | _End, size_bytes: int) -> bool:
        """Wait for room, if an item takes any, and add it. Return False if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not size_bytes or self._has_room(number))
            if not self._is_closed:
                self._items[number].append((item, size_bytes))
                self._ready_bytes += size_bytes
                self._changed.notify_all()
            return not self._is_closed

    def _has_room(self, number: int) -> bool:
        # The consumer waits for this task alone: items of later tasks must not keep it waiting.
        is_awaited = number == self._consumed and not self._items[number]
        return is_awaited or self._ready_bytes < self._room_bytes


# Those whose consumers have not finished.
_OPEN: Final[weakref.WeakSet[_TaskQueue[Any]]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # The interpreter ends daemon threads wherever they are; one that is in Arrow takes the process with it.
    for queue in list(_OPEN):
        queue.close()


def _close_in_fork() -> None:
    for queue in list(_OPEN):
        queue.close_in_fork()


os.register_at_fork(after_in_child=_close_in_fork)
