"""Which of many files are open: at most so many at a time, whoever they belong to."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from storage_core.filesystem._pooled_file import PooledFile

__all__ = ["FilePool"]

# How many files that were not used lately are looked at in search of one without unflushed bytes.
_LOOKED_AT: Final = 8


class FilePool:
    """Files with an open descriptor. To make room for another, one is closed that was not used lately.

    A file notes by itself that it was used, without any lock. When there is no room, those that were are asked once
    more later, in turn, and the note is taken back.

    Args:
        most_open: How many may be open. Files at work at this very moment are not closed, however many they are.
    """

    def __init__(self, most_open: int) -> None:
        self.most_open = most_open
        self._lock = threading.Lock()
        # The one that is asked first stands first.
        self._open: OrderedDict[PooledFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, file: PooledFile) -> None:
        """Make room for a file that is about to be opened, and count it."""
        # Closed outside of the lock, and before the new one is opened. One that fails keeps no other from being closed.
        with contextlib.ExitStack() as taken, self._lock:
            while len(self._open) >= self.most_open and (unused := self._take_one()) is not None:
                taken.callback(unused.close_taken)
            self._open[file] = None

    def leave(self, file: PooledFile) -> None:
        """A file was closed, or not opened after all."""
        with self._lock:
            self._open.pop(file, None)

    def _take_one(self) -> PooledFile | None:
        """Take out a file that is to be closed: nobody uses it before it is. None if all are in use."""
        self._pass_over_used()
        unflushed = []
        for file in islice(self._open, _LOOKED_AT):
            if file.was_used:
                continue
            if file.is_unflushed:
                unflushed.append(file)
            elif self._take(file):
                return file
        for file in unflushed:
            if self._take(file):
                return file
        # So many threads are at work that those looked at are in use.
        return next((file for file in list(self._open) if self._take(file)), None)

    def _take(self, file: PooledFile) -> bool:
        is_taken = file.take()
        if is_taken:
            del self._open[file]
        return is_taken

    def _pass_over_used(self) -> None:
        """Put used files at the end, until one stands first that was not used since it was asked last."""
        for _ in range(len(self._open)):
            file = next(iter(self._open))
            if not file.was_used:
                return
            file.was_used = False
            self._open.move_to_end(file)
