"""Kafka's record format: batch headers, compression, decoding and encoding by column."""

from typing import TYPE_CHECKING

from storage_core.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from storage_core.record.arrow_columns import HEADERS_TYPE, binary_array, headers_array
    from storage_core.record.batch_header import BatchHeader, batch_crc_matches, parse_batch_header
    from storage_core.record.control_records import ControlType, control_type
    from storage_core.record.decode import batch_timestamps, decode_records
    from storage_core.record.record_batches import ProducerSequence, RecordBatches
    from storage_core.record.section import RecordColumns, RecordSection, WantedFields

__all__ = [
    "HEADERS_TYPE",
    "BatchHeader",
    "ControlType",
    "ProducerSequence",
    "RecordBatches",
    "RecordColumns",
    "RecordSection",
    "WantedFields",
    "batch_crc_matches",
    "batch_timestamps",
    "binary_array",
    "control_type",
    "decode_records",
    "headers_array",
    "parse_batch_header",
]

__getattr__, __dir__ = lazy_imports(
    __name__,
    "storage_core.record.arrow_columns",
    "storage_core.record.batch_header",
    "storage_core.record.control_records",
    "storage_core.record.decode",
    "storage_core.record.record_batches",
    "storage_core.record.section",
)
