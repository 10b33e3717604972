"""A `pyarrow.RecordBatchReader` over a generator that ends with it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Generator


class BatchReader(pa.RecordBatchStreamReader):  # type: ignore[misc]  # pyarrow has no types
    """Reader of a generator's batches, which closes it: by `close`, at the end of a ``with`` block, or when it is dropped.

    The reader that pyarrow makes of a generator does nothing in `close`, and the one that it makes of a C stream has lost
    the classes of errors. So this one is opened over a file in Arrow's streaming format, for C++ code that takes a
    reader by its pointer. Everything else gets the batches themselves, and no copy.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self._batches = _Batches(schema, batches)
        super().__init__(self._batches)

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; raise `StopIteration` after the last one."""
        return next(self._batches)

    def read_all(self) -> pa.Table:
        """Read what is left into a table."""
        return pa.Table.from_batches(self._batches, schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches).__arrow_c_stream__(
            requested_schema
        )

    def close(self) -> None:
        """End the read: its threads are joined, and its files are closed."""
        self._batches.close()


class _Batches:
    """Batches of a generator, and the same as a file in Arrow's streaming format. Threads may share them."""

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.closed = False
        self._has_failed = False
        self._lock = threading.RLock()
        self._batches = batches
        self._message: Any = schema.serialize()
        self._place = 0

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            if self.closed or self._has_failed:
                raise ValueError("The reader is closed, or has failed: read the rows anew.")
            # It stays so if an error leaves the generator, which then looks like one at its end.
            self._has_failed = True
            batch = next(self._batches, None)
            self._has_failed = False
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        self.closed = True
        with self._lock:
            self._batches.close()

    def readable(self) -> bool:
        return True

    def read(self, size_bytes: int) -> pa.Buffer:
        """Return the next bytes of the file, without those of the next batch; none after the last one."""
        if self._place == self._message.size:
            batch = next(self, None)
            if batch is None:
                return pa.py_buffer(b"")
            self._message, self._place = batch.serialize(), 0
        part = self._message.slice(self._place, size_bytes)
        self._place += part.size
        return part
