"""The format of a column: by which schemas its values were written, and with which one they are read.

A format is planned once and travels to tasks as plain data. A `ColumnDecoder` applies it: it finds the schema of each value,
decodes the values of one schema at a time, and puts them back in order.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from storage_core.errors import SchemaError
from storage_core.values.decoding import Decoded, Paths, Payloads, Reason, RowError, SchemaSource, placed
from storage_core.values.frames import (
    KEY_HEADER,
    NO_FRAME,
    VALUE_HEADER,
    MessageIndexes,
    SchemaName,
    message_indexes,
    message_path,
    split_frames,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.values.decoding import Decoder

    _Rows: TypeAlias = npt.NDArray[np.int64]


Message: TypeAlias = str | tuple[int, ...] | None
HEADER_NAMES: Final = {"key": KEY_HEADER, "value": VALUE_HEADER}
"""By column, the header that may name the schema of its values."""
# A reader schema may have long defaults, which each row repeats.
_MOST_DEFAULT_BYTES: Final = 256 << 20
_MOST_ROWS: Final = 1 << 17


class WriterSchema(NamedTuple):
    """A schema that values may have been written with; its source is None if those values cannot be read, for the reason."""

    schema_id: int | None
    source: SchemaSource | None
    reason: Reason = "unresolvable"
    message: str = ""


class ReaderSchema(NamedTuple):
    """The schema that a column is read with.

    Attributes:
        kind: ``AVRO``, ``PROTOBUF`` or ``JSON``, as a registry calls them.
        message: Protobuf's message type.
        schema_id: Its id in the registry; None if it is given as text, as are subject and version.
    """

    kind: str
    source: SchemaSource
    message: Message = None
    schema_id: int | None = None
    subject: str | None = None
    version: int | None = None

    @property
    def described(self) -> str:
        """The schema in the words of a message."""
        if self.schema_id is None:
            return "the schema that is given"
        message = "" if self.message is None else f", message {self.message}"
        # A folder of schema files has ids alone.
        place = f"{self.subject} version {self.version} (id {self.schema_id}{message})"
        return place if self.subject else f"schema id {self.schema_id}{message}"


WritersByName: TypeAlias = Mapping[int | str, WriterSchema]
"""Schemas by id and by GUID."""


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """How the values of a column are read.

    Attributes:
        column: ``key`` or ``value``.
        reader: The schema that it is read with; None for text.
        is_json: Whether text is checked to be JSON.
        is_framed: Whether each value names its schema.
        fields: Paths of the wanted fields; None for all.
        packed_writers: If values name their schemas, these as bytes, as there may be many; see `pack_writers`.
        notices: What a user should know of the choice of schemas, a line each.
        ignored: Which schemas of the registry values are not read by, and why, a line each.
    """

    column: str
    arrow_type: pa.DataType
    reader: ReaderSchema | None = None
    is_json: bool = False
    is_framed: bool = False
    fields: Paths = None
    packed_writers: bytes = b""
    notices: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def writers(self) -> WritersByName:
        """The schemas that values may have been written with."""
        return _unpacked(self.packed_writers) if self.packed_writers else {}


def pack_writers(writers: WritersByName) -> bytes:
    """Write schemas as bytes, which each task gets: texts of versions differ little."""
    return zlib.compress(pickle.dumps(dict(writers)))


@lru_cache(maxsize=8)
def _unpacked(pack: bytes) -> WritersByName:
    found: WritersByName = pickle.loads(zlib.decompress(pack))  # noqa: S301  (made by `pack_writers`)
    return found


@lru_cache(maxsize=1024)
def decoder_of(
    kind: str,
    writer: SchemaSource,
    message: Message = None,
    reader: SchemaSource | None = None,
    reader_message: Message = None,
    fields: Paths = None,
    *,
    is_framed: bool = False,
) -> Decoder:
    """Return a decoder of values that were written with a schema. Each process compiles it once.

    Args:
        kind: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        writer: The schema that they were written with.
        message: Protobuf's message type in the writer's schema.
        reader: The schema that they are read with; None for that of the writer.
        reader_message: Protobuf's message type in the reader's schema.
        fields: Paths of the wanted fields; None for all.
        is_framed: Whether the values were in frames, where Avro's ``"bytes"`` have no length in front.

    Raises:
        SchemaError: A schema is malformed, or not supported.
        SchemaResolutionError: Values of the writer's schema cannot be read as those of the reader's.
    """
    if kind == "PROTOBUF":
        from storage_core.values.protobuf import protobuf_decoder  # noqa: PLC0415  (an extra)

        return protobuf_decoder(writer, message, reader, reader_message, fields)
    if kind == "JSON":
        from storage_core.values.json_values import json_decoder  # noqa: PLC0415

        return json_decoder(reader or writer, fields)
    from storage_core.values.avro import avro_decoder  # noqa: PLC0415

    return avro_decoder(writer, reader, fields, has_raw_bytes=is_framed)


def reader_type(reader: ReaderSchema, fields: Paths = None) -> pa.DataType:
    """Return the type of a column that is read with a schema.

    Raises:
        SchemaError: The schema is malformed, or not supported.
        OptionError: A path names a field that the schema does not have.
    """
    return decoder_of(reader.kind, reader.source, reader.message, None, None, fields).arrow_type


class ColumnDecoder:
    """Decodes a column by its format.

    Attributes:
        most_rows: How many values are decoded at once at most, so that what their schema adds to each fits into memory.
    """

    def __init__(self, column_format: ColumnFormat) -> None:
        self._format = column_format
        reader = column_format.reader
        text_length = 0 if reader is None else len(reader.source.text)
        self.most_rows = min(_MOST_ROWS, max(_MOST_DEFAULT_BYTES // max(text_length, 1), 1))

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """Decode values. What is null stays null.

        Args:
            values: The values as bytes.
            headers: Headers of the same records, among them those that may name schemas; None if there are none.
        """
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        payloads = Payloads.of_array(values)
        parts = _Parts(len(values), self._format.arrow_type)
        if self._format.is_framed:
            if headers is not None and len(rows) < len(values):
                headers = headers.take(pa.array(rows))
            self._decode_framed(payloads.some(rows), headers, rows, parts)
        else:
            parts.add(self._plain_decoder().decode(payloads.some(rows)), rows, None)
        return parts.joined()

    def _plain_decoder(self) -> Decoder:
        reader = self._format.reader
        if reader is not None:
            return decoder_of(reader.kind, reader.source, reader.message, fields=self._format.fields)
        from storage_core.values.json_values import json_decoder, string_decoder  # noqa: PLC0415

        return json_decoder(None) if self._format.is_json else string_decoder()

    def _decode_framed(
        self, payloads: Payloads, headers: pa.ListArray | None, rows: _Rows, parts: _Parts
    ) -> None:
        frames = split_frames(payloads, headers, HEADER_NAMES[self._format.column])
        parts.add_errors(frames.errors, rows)
        payloads = payloads._replace(starts=frames.starts)
        writers = self._format.writers
        for number, group in _groups(frames.name_numbers):
            name = frames.names[number]
            writer = writers.get(name.guid or name.schema_id or 0)
            if writer is None:
                message = f"{name.described} is not in _schemas"
                writer = WriterSchema(name.schema_id, None, "unknown-id", message)
            if writer.source is None:
                parts.add_failed(rows[group], writer)
            else:
                self._decode_written(writer, name, payloads.some(group), rows[group], parts)

    def _decode_written(
        self, writer: WriterSchema, name: SchemaName, payloads: Payloads, rows: _Rows, parts: _Parts
    ) -> None:
        """Decode values that were written with one schema, which for Protobuf may have several message types."""
        assert self._format.reader is not None  # noqa: S101  (there is one where values are framed)
        if self._format.reader.kind != "PROTOBUF":
            self._decode_message(writer, None, payloads, rows, parts)
            return
        types = message_types(name, payloads)
        parts.add_errors(types.errors, rows, writer.schema_id)
        payloads = payloads._replace(starts=types.starts)
        for number, group in _groups(types.path_numbers):
            self._decode_message(writer, types.paths[number], payloads.some(group), rows[group], parts)

    def _decode_message(
        self, writer: WriterSchema, message: Message, payloads: Payloads, rows: _Rows, parts: _Parts
    ) -> None:
        reader = self._format.reader
        assert reader is not None and writer.source is not None  # noqa: S101, PT018  (the callers have checked both)
        # By JSON's schema nothing is written: its values are read by the reader's alone.
        source = reader.source if reader.kind == "JSON" else writer.source
        try:
            decoder = decoder_of(
                reader.kind,
                source,
                message,
                reader.source,
                reader.message,
                self._format.fields,
                is_framed=True,
            )
        except SchemaError as error:
            # Which message types of a file the values have, planning does not know.
            parts.add_failed(rows, writer._replace(reason="unresolvable", message=str(error)))
            return
        parts.add(decoder.decode(payloads), rows, writer.schema_id)


class _Parts:
    """Decoded values of a column in any order, which are put in that of its rows."""

    def __init__(self, count: int, arrow_type: pa.DataType) -> None:
        self._count = count
        self._type = arrow_type
        self._arrays: list[pa.Array] = []
        self._rows: list[_Rows] = []
        self._errors: list[RowError] = []

    def add(self, decoded: Decoded, rows: _Rows, schema_id: int | None) -> None:
        """Add the values of some rows."""
        self._arrays.append(decoded.array)
        self._rows.append(rows)
        self.add_errors(decoded.errors, rows, schema_id)

    def add_errors(self, errors: list[RowError], rows: _Rows, schema_id: int | None = None) -> None:
        """Add what is wrong with some of the rows."""
        self._errors += [error._replace(row=int(rows[error.row]), schema_id=schema_id) for error in errors]

    def add_failed(self, rows: _Rows, writer: WriterSchema) -> None:
        """Add rows that cannot be decoded because of their schema."""
        self._errors += [
            RowError(row, writer.reason, writer.message, writer.schema_id) for row in rows.tolist()
        ]

    def joined(self) -> Decoded:
        """Return the values and the errors of all rows."""
        self._errors.sort()
        if not self._arrays:
            return Decoded(pa.nulls(self._count, self._type), self._errors)
        rows = np.concatenate(self._rows)
        array = self._arrays[0] if len(self._arrays) == 1 else pa.concat_arrays(self._arrays)
        # The rows of a single part ascend.
        if len(self._arrays) > 1 or len(rows) < self._count:
            array = placed(array, rows, self._count)
        return Decoded(array, self._errors)


def _groups(numbers: _Rows) -> Iterator[tuple[int, _Rows]]:
    """Yield each number and its rows, which ascend; rows of `NO_FRAME` are left out."""
    if len(numbers) and (numbers == numbers[0]).all():
        order = np.arange(len(numbers))
    else:
        order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows) and numbers[rows[0]] != NO_FRAME:
            yield int(numbers[rows[0]]), rows


def message_types(name: SchemaName, payloads: Payloads) -> MessageIndexes:
    """Find out which message type of its file each Protobuf value has: a header tells it of all, or each value of itself."""
    if name.header_rest is None:
        return message_indexes(*payloads)
    path, count = message_path(name.header_rest), len(payloads.starts)
    if path is not None:
        return MessageIndexes([path], np.zeros(count, np.int64), payloads.starts, [])
    message = "the indexes of the message type in the header cannot be read"
    errors = [RowError(row, "malformed", message) for row in range(count)]
    return MessageIndexes([], np.full(count, NO_FRAME, np.int64), payloads.starts, errors)
