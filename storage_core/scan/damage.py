"""What becomes of damage in a read: an error, a line in the log, a row that describes it."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.scan.spans import LogSpan, ReadSettings
    from storage_core.segment import DamagedRange

__all__ = ["DamageReporter", "damage_json"]

_log = logging.getLogger(__name__)


def damage_json(damage: DamagedRange, span: LogSpan) -> str:
    """What the column for damage says. Ends are exclusive, offsets bounds of what may be lost."""
    return json.dumps(
        {
            "file": damage.path,
            "topic": span.topic,
            "partition": span.partition,
            "startByte": damage.start_bytes,
            "endByte": damage.end_bytes,
            "startOffset": damage.start_offset,
            "endOffset": damage.end_offset,
            "error": damage.kind.__name__,
            "reason": damage.reason,
        }
    )


class DamageReporter:
    """Does what the mode of a read asks for where there is damage.

    Args:
        schema: The columns of the read. Damage gets a row only if one of them is for it.
        settings: The mode, and the name of that column.
    """

    def __init__(self, schema: pa.Schema, settings: ReadSettings) -> None:
        self._schema = schema
        self._settings = settings
        self._has_rows = settings.mode == "PERMISSIVE" and settings.corrupt_record_column in schema.names

    @property
    def is_fatal(self) -> bool:
        """Whether damage ends the read."""
        return self._settings.mode == "FAILFAST"

    def report(self, damage: DamagedRange, span: LogSpan) -> Iterator[pa.RecordBatch]:
        """Report damage that was met in a span, unless it is another span's to do so.

        Yields:
            A row that describes it, if the read has such rows.

        Raises:
            SegmentLogError: The read is to fail.
        """
        if self.is_fatal:
            raise damage.error()
        if damage.start_offset < span.start_offset and not span.is_first:
            return
        _log.warning("Left out damaged bytes of %s-%d: %s", span.topic, span.partition, damage.error())
        if self._has_rows:
            yield self._row(damage, span)

    def _row(self, damage: DamagedRange, span: LogSpan) -> pa.RecordBatch:
        known = {
            "topic": span.topic,
            "partition": span.partition,
            self._settings.corrupt_record_column: damage_json(damage, span),
        }
        arrays = [pa.array([known.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
