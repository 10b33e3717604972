"""Read tasks in threads, ahead of whoever consumes their rows, in the order of the tasks and in bounded memory.

Arrow, numpy, decompression, checksums and reads release the interpreter lock, so a thread decodes while the consumer
works, or while another thread decodes the next task.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


_Task = TypeVar("_Task")
_Item = TypeVar("_Item")
# Two batches of some megabytes: one being handed over, the next one ready.
_ROOM: Final = 2


def read_ahead(
    read: Callable[[_Task], Iterator[_Item]],
    tasks: Sequence[_Task],
    *,
    threads: int = 1,
    room: int = _ROOM,
    size_of: Callable[[_Item], int] = lambda _: 1,
    finished: Callable[[_Task], None] = lambda _: None,
) -> Generator[_Item]:
    """Yield the items of ``read(task)`` for one task after the other, while threads read ahead.

    The error of a task is raised after the items before it, and no task is begun after an error. When the consumer stops
    early, each thread closes the iterator that it reads, and so its files, and is joined.

    Args:
        read: Called in a thread.
        tasks: Each is read by one thread.
        threads: How many tasks are read at a time.
        room: A thread waits while items of this size are ready, unless the consumer waits for its task.
        size_of: The size of an item. Without it, ``room`` is a number of items.
        finished: Called by the consumer after the last item of a task.
    """
    queue = _TaskQueue(read, tasks, threads, room, size_of)
    try:
        queue.start()
        for number, task in enumerate(tasks):
            while (item := queue.take(number)) is not None:
                yield item[0]
            finished(task)
    finally:
        queue.close()


@dataclass(slots=True)
class _Ahead(Generic[_Item]):
    """What is ready of one task.

    Attributes:
        error: What ended it after these items.
    """

    items: deque[tuple[_Item, int]] = field(default_factory=deque)
    is_finished: bool = False
    error: BaseException | None = None


class _TaskQueue(Generic[_Task, _Item]):
    """A bounded queue for each task between the threads that read them and one consumer, which either side can end."""

    def __init__(
        self,
        read: Callable[[_Task], Iterator[_Item]],
        tasks: Sequence[_Task],
        threads: int,
        room: int,
        size_of: Callable[[_Item], int],
    ) -> None:
        self._read = read
        self._tasks = tasks
        self._room = room
        self._size_of = size_of
        self._threads = [
            threading.Thread(target=self._run, name="segmentlog-read-ahead", daemon=True)
            for _ in range(min(threads, len(tasks)))
        ]
        self._changed = threading.Condition()
        # Tasks that were begun and are not consumed.
        self._ahead: dict[int, _Ahead[_Item]] = {}
        self._begun = 0
        self._consumed = 0
        self._ready = 0
        self._is_closed = False

    def start(self) -> None:
        """Start the threads."""
        _OPEN.add(self)
        for thread in self._threads:
            thread.start()

    def take(self, number: int) -> tuple[_Item] | None:
        """Wait for an item of a task, or raise the error that ended it.

        Returns:
            The item in a tuple; None after the last one.
        """
        with self._changed:
            if number != self._consumed:
                self._consumed = number
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or self._is_ready(number))
            if self._is_closed:
                raise ValueError("The reader is closed.")
            task = self._ahead[number]
            if task.items:
                item, size = task.items.popleft()
                self._ready -= size
                self._changed.notify_all()
                return (item,)
            if task.error is not None:
                raise task.error
            del self._ahead[number]
            return None

    def _is_ready(self, number: int) -> bool:
        task = self._ahead.get(number)
        return task is not None and bool(task.items or task.is_finished)

    def close(self) -> None:
        """Drop the items, refuse others, and wait for the threads."""
        with self._changed:
            self._is_closed = True
            self._ahead.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        _OPEN.discard(self)

    def _run(self) -> None:
        while (number := self._begin()) is not None:
            error: BaseException | None = None
            try:
                self._read_task(number)
            except BaseException as raised:  # noqa: BLE001  (the consumer raises it)
                error = raised
            self._finish(number, error)

    def _read_task(self, number: int) -> None:
        items = self._read(self._tasks[number])
        try:
            for item in items:
                if not self._put(number, item):
                    break
        finally:
            # Files are closed by the thread that opened them, before the consumer goes on.
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _begin(self) -> int | None:
        """Return the number of the next task; None if there is none."""
        with self._changed:
            if self._is_closed or self._begun >= len(self._tasks):
                return None
            number, self._begun = self._begun, self._begun + 1
            self._ahead[number] = _Ahead()
            return number

    def _put(self, number: int, item: _Item) -> bool:
        """Wait for room and add an item. Return False if the queue is closed."""
        size = self._size_of(item)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(number))
            if not self._is_closed:
                self._ahead[number].items.append((item, size))
                self._ready += size
                self._changed.notify_all()
            return not self._is_closed

    def _has_room(self, number: int) -> bool:
        # The consumer waits for this task alone: items of later tasks must not keep it waiting.
        is_awaited = number == self._consumed and not self._ahead[number].items
        return is_awaited or self._ready < self._room

    def _finish(self, number: int, error: BaseException | None) -> None:
        with self._changed:
            if error is not None:
                self._begun = len(self._tasks)
            if not self._is_closed:
                self._ahead[number].is_finished = True
                self._ahead[number].error = error
            self._changed.notify_all()


# The consumers of these have not finished.
_OPEN: Final[weakref.WeakSet[_TaskQueue[Any, Any]]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # The interpreter ends daemon threads wherever they are; one that is in Arrow takes the process with it.
    for queue in list(_OPEN):
        queue.close()
