"""A writer that works on a log with transactions, and notes its operations in a ledger.

It runs on a file system in memory, whose states a test examines, or on the real one next to readers in other processes
(`tests.faults.transacting`). A new step is a new method that notes its consequences for readers in the ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_core import LogConfig, LogDirectory
from tests.faults.session import TOPIC, StillClock
from tests.faults.transaction_ledger import Event, Ledger, values_of

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem
    from storage_core.log.transaction import Transaction

LIFE_CONFIG = LogConfig(internal_segment_bytes=1_500, segment_index_bytes=240, index_interval_bytes=200)

_CHECKPOINT_INTERVAL_MS = 60_000


class TransactionalLife:
    """One writer that may open its log directory several times.

    Args:
        filesystem: Where it runs.
        root: The log directory.
        ledger: Its operations.
        note: Called with each event, too.

    Attributes:
        reading: The lock that a reading thread of this process holds.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        ledger: Ledger,
        *,
        note: Callable[[Event], object] = lambda event: None,
        config: LogConfig = LIFE_CONFIG,
        first_unit: int = 0,
    ) -> None:
        self.filesystem = filesystem
        self.root = root
        self.ledger = ledger
        self.clock = StillClock()
        self.is_open = False
        self.reading = threading.Lock()
        self._note_elsewhere = note
        self._config = config
        self._next_unit = first_unit
        self.transactions: dict[int, Transaction] = {}

    def open(self, recovery: str = "tail") -> None:
        """Open the log directory."""
        self.logs = LogDirectory.open(
            self.root, filesystem=self.filesystem, config=self._config, clock=self.clock, recovery=recovery
        )
        self.log = self.logs.get_or_create(TOPIC)
        self.is_open = True

    def close(self) -> None:
        """Close the log directory."""
        self.logs.close()
        self.is_open = False

    def plain(self, *sizes_bytes: int, flush: bool = False) -> None:
        """Append rows outside any transaction."""
        unit = self._new_unit()
        values = self._before_append(unit, sizes_bytes)
        self.log.append(_table(values), acks="all" if flush else 1)
        self.note(Event("appended", unit))

    def begin(self, producer_id: int) -> int:
        """Begin a transaction; return its unit."""
        unit = self._new_unit()
        self.transactions[unit] = self.log.transaction(producer_id)
        return unit

    def append(self, unit: int, *sizes_bytes: int) -> None:
        """Append rows to a transaction."""
        transaction = self.transactions[unit]
        values = self._before_append(unit, sizes_bytes, transaction.producer_id)
        transaction.append(_table(values))
        self.note(Event("appended", unit))

    def commit(self, unit: int, *, flush: bool = False) -> None:
        """Commit a transaction."""
        self.note(Event("commit", unit, self.log.log_end_offset))
        self.transactions.pop(unit).commit(flush=flush)
        self.note(Event("committed", unit))

    def abort(self, unit: int, *, flush: bool = False) -> None:
        """Abort a transaction."""
        self.note(Event("abort", unit, self.log.log_end_offset))
        self.transactions.pop(unit).abort(flush=flush)
        self.note(Event("aborted", unit))

    def truncate_to(self, offset: int, *, is_commit: Callable[[], bool] = lambda: False) -> None:
        """Remove everything from an offset on, and settle the transactions that are open then."""
        self.note(Event("truncate", -1, self.ledger.first_removed(offset)))
        self.log.truncate_to(offset)
        self.settle(is_commit)

    def settle(self, is_commit: Callable[[], bool] = lambda: False) -> None:
        """End transactions left open by an earlier process or a truncation; note the outcome of unfinished endings."""
        if self.ledger.is_truncating:
            self.note(Event("truncated", -1, self.ledger.first_removed(self.log.log_end_offset)))
        unsettled = {
            each.producer_id: (name, each)
            for name, each in self.ledger.now().items()
            if each.producer_id >= 0 and not each.is_settled
        }
        for transaction in self.log.open_transactions():
            name, _ = unsettled.pop(transaction.producer_id)
            if is_commit():
                self.note(Event("commit", name, self.log.log_end_offset))
                self.log.end_transaction(transaction.producer_id, transaction.producer_epoch, is_abort=False)
                self.note(Event("committed", name))
            else:
                self.note(Event("abort", name, self.log.log_end_offset))
                self.log.abort_transaction(transaction.producer_id)
                self.note(Event("aborted", name))
        for name, unit in unsettled.values():
            # Its marker exists, or it lost even its first rows.
            self.note(Event("committed" if unit.state == "committing" else "aborted", name))
        self.transactions.clear()

    def roll(self) -> None:
        """Begin a new segment."""
        self.log.roll()

    def checkpoint(self) -> None:
        """Write the log directory's checkpoints, as happens once a minute while the log rolls."""
        self.clock.time_ms += _CHECKPOINT_INTERVAL_MS
        self.log.roll()

    def note(self, event: Event) -> None:
        """Note an operation that is about to start, or is complete."""
        self.ledger.note(event)
        self._note_elsewhere(event)

    def _new_unit(self) -> int:
        self._next_unit += 1
        return self._next_unit

    def _before_append(self, unit: int, sizes_bytes: tuple[int, ...], producer_id: int = -1) -> list[bytes]:
        known = self.ledger.now().get(unit)
        start = 0 if known is None else len(known.offsets)
        values = [values_of(unit, start + number, 1, size)[0] for number, size in enumerate(sizes_bytes)]
        self.note(Event("append", unit, self.log.log_end_offset, len(values), producer_id))
        return values


def _table(values: list[bytes]) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})
