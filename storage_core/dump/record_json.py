"""Records as JSON objects with everything that is known of them: of single files, damaged ones too, and of reads.

An object has the record's fields and, as ``batch``, those of its batch. Of a file these are all of the header's; of a read,
those of the column ``_metadata``.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from storage_core.dump.log_text import Batches, increment_sequence, java_long
from storage_core.dump.plain_values import is_typed, plain_values
from storage_core.dump.record_iteration import IteratedRecord, header_of, iterate_records
from storage_core.record.batch_header import (
    CODEC_NAMES,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    BatchHeader,
)
from storage_core.record.control_records import CONTROL_KEY, ControlType
from storage_core.views.texts import json_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from storage_core.internal_records.internal_records import Decoder


BytesFormat: TypeAlias = Literal["utf8", "base64", "hex"]
"""How keys and values become JSON: as text, or as ``{"base64": …}`` where they are no UTF-8; or all in one encoding."""

_TIMESTAMP_TYPES: Final = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
_CONVERTED_BYTES: Final = 1 << 20
_VALID: Final = "isvalid: true\n"


def _bytes_value(value: Any, bytes_format: BytesFormat) -> object:
    """Convert a key or value to what JSON holds. One that is decoded is that already."""
    if not isinstance(value, bytes):
        return value
    if bytes_format == "hex":
        return value.hex()
    if bytes_format == "base64":
        return base64.b64encode(value).decode("ascii")
    return json_value(value)


class RecordObjects:
    """Prints the records of a log file as JSON lines; see `log_text.RecordsText`.

    The partition is that which the file's directory names, if it names one.
    """

    def __init__(
        self,
        path: str,
        partition: tuple[str, int] | None,
        bytes_format: BytesFormat,
        decoder: Decoder | None,
        *,
        is_ascii: bool,
    ) -> None:
        self._path = path
        self._segment = path.rpartition("/")[2]
        self._partition = {} if partition is None else {"topic": partition[0], "partition": partition[1]}
        self._bytes_format: BytesFormat = bytes_format
        self._decoder = decoder
        self._is_ascii = is_ascii

    def text_of(self, batches: Batches) -> Iterator[bytes]:
        """Yield the lines of the records of some batches.

        Raises:
            CorruptError: A batch cannot be read.
        """
        for number, line in enumerate(batches.lines):
            start = batches.starts[number]
            batch = memoryview(batches.buffer)[start : batches.ends[number]]
            header = header_of(batch, batches.position_bytes + start, self._path)
            fields = self._batch_fields(header, is_valid=line.endswith(_VALID))
            for record in iterate_records(batch, header, path=self._path):
                yield json_line(self._object(record, header, fields), is_ascii=self._is_ascii)

    def _object(
        self, record: IteratedRecord, header: BatchHeader, batch_fields: dict[str, object]
    ) -> dict[str, object]:
        found: dict[str, object] = {
            **self._partition,
            "offset": record.offset,
            "timestampMs": record.timestamp_ms,
            "timestampType": _timestamp_type(header),
            **_content(
                record.key,
                record.value,
                record.offset,
                self._bytes_format,
                None if header.is_control else self._decoder,
            ),
            "headers": [
                {"key": key.decode(errors="replace"), "value": _bytes_value(value, self._bytes_format)}
                for key, value in record.headers
            ],
        }
        if header.magic >= MAGIC_V2:
            found["sequence"] = record.sequence
        else:
            found |= {"crc": record.crc, "isValid": record.is_valid}
        if header.magic >= MAGIC_V2 and header.is_control:
            found["controlType"] = _control_type(record.key)
        return {**found, "batch": batch_fields}

    def _batch_fields(self, header: BatchHeader, *, is_valid: bool) -> dict[str, object]:
        fields: dict[str, object] = {"segment": self._segment, "position": header.position_bytes}
        if header.magic >= MAGIC_V2:
            fields |= _v2_fields(header)
        return fields | {
            "maxTimestampMs": header.max_timestamp_ms,
            "sizeBytes": header.size_bytes,
            "magic": header.magic,
            "compression": CODEC_NAMES[header.codec],
            "crc": header.crc,
            "isValid": is_valid,
        }


def _v2_fields(header: BatchHeader) -> dict[str, object]:
    base_sequence = header.base_sequence
    return {
        "baseOffset": header.base_offset,
        "lastOffset": java_long(header.last_offset),
        "recordCount": header.record_count,
        "leaderEpoch": header.leader_epoch,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "baseSequence": base_sequence,
        "lastSequence": -1
        if base_sequence < 0
        else increment_sequence(base_sequence, header.last_offset_delta),
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp_ms if header.attributes & DELETE_HORIZON_FLAG else None,
    }


READ_COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "timestampType",
    "key",
    "value",
    "headers",
    "_metadata",
)
"""The columns of a read that `read_objects` takes. The timestamp is that of ``_metadata``, which holds any."""


def read_objects(
    batch: pa.RecordBatch, bytes_format: BytesFormat, decoder: Decoder | None
) -> Iterator[dict[str, object]]:
    """Convert the rows of a read to objects."""
    # Python objects take many times the memory of the columns.
    row_count = max(1, batch.num_rows * _CONVERTED_BYTES // max(batch.nbytes, 1))
    rows = (
        row
        for start in range(0, batch.num_rows, row_count)
        for row in _rows_of(batch.slice(start, row_count))
    )
    for row in rows:
        metadata: dict[str, Any] = row["_metadata"]
        headers: list[dict[str, Any]] = row["headers"] or []
        # In place, as a record may have very many headers.
        for header in headers:
            header["value"] = _bytes_value(header["value"], bytes_format)
        yield {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "timestampMs": metadata["timestampMs"],
            "timestampType": _TIMESTAMP_TYPES.get(row["timestampType"]),
            **_content(row["key"], row["value"], row["offset"], bytes_format, decoder),
            "headers": headers,
            "sequence": metadata["sequence"],
            "batch": {
                "segment": metadata["segment"],
                "position": metadata["position"],
                "baseOffset": metadata["batchOffset"],
                **{
                    name: metadata[name]
                    for name in (
                        "leaderEpoch",
                        "producerId",
                        "producerEpoch",
                        "isTransactional",
                        "magic",
                        "compression",
                    )
                },
            },
        }


def _rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as Python values; decoded keys and values as JSON can hold them."""
    typed = [name for name in ("key", "value") if is_typed(batch[name].type)]
    rows: list[dict[str, Any]] = batch.drop_columns(typed).to_pylist()
    for name in typed:
        for row, value in zip(rows, plain_values(batch[name]), strict=True):
            row[name] = value
    return rows


def json_line(value: object, *, is_ascii: bool) -> bytes:
    """Encode an object as one line."""
    return f"{json.dumps(value, ensure_ascii=is_ascii)}\n".encode(errors="replace")


def _content(
    key: Any, value: Any, offset: int, bytes_format: BytesFormat, decoder: Decoder | None
) -> dict[str, object]:
    if decoder is None:
        return {"key": _bytes_value(key, bytes_format), "value": _bytes_value(value, bytes_format)}
    key_text, value_text = decoder(key, value, offset)
    return {"key": _decoded(key_text), "value": _decoded(value_text)}


def _timestamp_type(header: BatchHeader) -> str:
    if header.magic == 0:
        return _TIMESTAMP_TYPES[-1]
    return _TIMESTAMP_TYPES[int(bool(header.attributes & LOG_APPEND_TIME_FLAG))]


def _control_type(key: bytes | None) -> str:
    number = CONTROL_KEY.unpack_from(key)[1] if key is not None and len(key) >= CONTROL_KEY.size else -1
    return ControlType(number).name if number in tuple(ControlType) else ControlType.UNKNOWN.name


def _decoded(text: str | None) -> object:
    """Parse a decoder's text, which is JSON unless it says what is wrong."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
