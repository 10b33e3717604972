"""Formats of columns: the schemas that values may have been written with, and the one that they are read with.

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
from storage_core.values.decoding import (
    Decoded,
    Message,
    Paths,
    Payloads,
    Reason,
    RowError,
    SchemaSource,
    scatter,
)
from storage_core.values.frames import KEY_HEADER, NO_FRAME, VALUE_HEADER, message_types, split_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.values.decoding import Decoder

    _Rows: TypeAlias = npt.NDArray[np.int64]


HEADER_NAMES: Final = {"key": KEY_HEADER, "value": VALUE_HEADER}
"""By column, the header that may name the schema of its values."""
# A reader schema may have long defaults, which each row repeats.
_MOST_DEFAULT_BYTES: Final = 256 << 20
# As many as Avro's decoder takes at once: larger columns would be joined from several.
_MOST_ROWS: Final = 1 << 15


class WriterSchema(NamedTuple):
    """Schema that values may have been written with.

    Attributes:
        source: None if those values cannot be read, for the reason.
        subject: If they cannot be read, the subject that it is a version of; None if several may have it.
    """

    schema_id: int | None
    source: SchemaSource | None
    reason: Reason = "unresolvable"
    message: str = ""
    subject: str | None = None


WritersByName: TypeAlias = Mapping[int | str, WriterSchema]
"""Schemas by id and by GUID."""


class ReaderSchema(NamedTuple):
    """Schema that a column is read with.

    Attributes:
        kind: ``AVRO``, ``PROTOBUF`` or ``JSON``, as a registry calls them; ``STRING`` for text.
        source: None for text, and for JSON that is only checked.
        message: Protobuf's message type.
        schema_id: Its id in the registry; None if it is given as text, as are subject and version.
    """

    kind: str
    source: SchemaSource | None
    message: Message = None
    schema_id: int | None = None
    subject: str | None = None
    version: int | None = None

    @property
    def described(self) -> str:
        """Words for the schema in a message."""
        if self.schema_id is None:
            return "the schema that is given"
        return schema_words(self.subject, self.version, self.schema_id, self.message)


def schema_words(subject: str | None, version: int | None, schema_id: int, message: Message) -> str:
    """Describe a schema of a registry in a message. A schema from a folder of files has only an id."""
    its_message = "" if message is None else f", message {message}"
    if not subject:
        return f"schema id {schema_id}{its_message}"
    return f"{subject} version {version} (id {schema_id}{its_message})"


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """Plan of how the values of a column are read.

    Attributes:
        column: ``key`` or ``value``.
        fields: Paths of the wanted fields; None for all.
        packed_writers: The schemas that values may name, as bytes, as there may be many; see `pack_writers`. None if values
            do not name their schemas.
        notice: What a user should know of the choice of the schema; empty for nothing.
    """

    column: str
    arrow_type: pa.DataType
    reader: ReaderSchema
    fields: Paths = None
    packed_writers: bytes | None = None
    notice: str = ""

    @property
    def is_framed(self) -> bool:
        """True if each value names its schema."""
        return self.packed_writers is not None

    @property
    def writers(self) -> WritersByName:
        """Schemas that values may have been written with, if they name them."""
        return {} if self.packed_writers is None else _unpacked(self.packed_writers)

    def ignored(self) -> Iterator[str]:
        """Yield why versions of the reader's subject are not read, and how many schemas of other subjects are not."""
        refused = [writer for writer in dict.fromkeys(self.writers.values()) if writer.source is None]
        own = [writer for writer in refused if writer.subject in (self.reader.subject, None)]
        yield from (f"{writer.message} ({writer.reason})" for writer in own)
        if len(own) < len(refused):
            others = len(refused) - len(own)
            yield f"{others} schemas of other subjects: values of them cannot be read with this one"


def pack_writers(writers: WritersByName) -> bytes:
    """Compress schemas for the tasks: the texts of versions differ little."""
    return zlib.compress(pickle.dumps(dict(writers)))


@lru_cache(maxsize=8)
def _unpacked(pack: bytes) -> WritersByName:
    found: WritersByName = pickle.loads(zlib.decompress(pack))  # noqa: S301  (made by `pack_writers`)
    return found


@lru_cache(maxsize=1024)
def decoder_of(
    reader: ReaderSchema,
    writer: SchemaSource | None = None,
    message: Message = None,
    fields: Paths = None,
    *,
    is_framed: bool = False,
) -> Decoder:
    """Return a decoder of the values of a column. Each process compiles it once.

    Args:
        reader: The schema that they are read with.
        writer: The schema that they were written with; None for that of the reader.
        message: Protobuf's message type in the writer's schema.
        fields: Paths of the wanted fields; None for all.
        is_framed: Whether the values were in frames, in which Avro's type ``"bytes"`` has no length in front.

    Raises:
        SchemaError: A schema is malformed, or not supported.
        SchemaResolutionError: Values of the writer's schema cannot be read as those of the reader's.
        OptionError: A path names a field that the reader's schema does not have.
    """
    if reader.kind == "STRING":
        from storage_core.values.json_values import string_decoder  # noqa: PLC0415

        return string_decoder()
    if reader.kind == "JSON" or reader.source is None:
        from storage_core.values.json_values import json_decoder  # noqa: PLC0415

        # JSON does not depend on the schema that it was written with.
        return json_decoder(reader.source, fields)
    if reader.kind == "PROTOBUF":
        from storage_core.values.protobuf import protobuf_decoder  # noqa: PLC0415  (an extra)

        if writer is None:
            return protobuf_decoder(reader.source, reader.message, paths=fields)
        return protobuf_decoder(writer, message, reader.source, reader.message, fields)
    from storage_core.values.avro import avro_decoder  # noqa: PLC0415

    return avro_decoder(writer or reader.source, reader.source, fields, has_raw_bytes=is_framed)


class ColumnDecoder:
    """Decodes a column by its format.

    Attributes:
        most_rows: The most values that are decoded at once, so that the defaults of their schema fit into memory.
    """

    def __init__(self, column_format: ColumnFormat) -> None:
        self._format = column_format
        source = column_format.reader.source
        text_length = 0 if source is None else len(source.text)
        self.most_rows = min(_MOST_ROWS, max(_MOST_DEFAULT_BYTES // max(text_length, 1), 1))

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """Decode values. Nulls stay null.

        Args:
            values: The values as bytes.
            headers: Headers of the same records, among them those that may name schemas; None if there are none.
        """
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        payloads = Payloads.of_array(values).take(rows)
        if not self._format.is_framed:
            decoder = decoder_of(self._format.reader, fields=self._format.fields)
            parts = [_Part(rows, *decoder.decode(payloads))]
        else:
            if headers is not None and len(rows) < len(values):
                headers = headers.take(pa.array(rows))
            parts = list(self._decode_framed(payloads, headers, rows))
        return _joined(parts, len(values), self._format.arrow_type)

    def _decode_framed(
        self, payloads: Payloads, headers: pa.ListArray | None, rows: _Rows
    ) -> Iterator[_Part]:
        """Decode values that name their schemas, those of one schema and, for Protobuf, one message type at a time."""
        writers = self._format.writers
        frames = split_frames(payloads, headers, HEADER_NAMES[self._format.column])
        yield _Part(rows, None, frames.errors)
        payloads = payloads._replace(starts=frames.starts)
        for number, group in _groups(frames.name_numbers):
            name, written, its_rows = frames.names[number], payloads.take(group), rows[group]
            writer = writers.get(name.guid or name.schema_id or 0)
            if writer is None:
                message = f"{name.described} is not in the schema registry"
                writer = WriterSchema(name.schema_id, None, "unknown-id", message)
            if writer.source is None or self._format.reader.kind != "PROTOBUF":
                yield self._decoded(writer, None, written, its_rows)
                continue
            types = message_types(name, written)
            yield _Part(its_rows, None, types.errors, writer.schema_id)
            written = written._replace(starts=types.starts)
            for path_number, same in _groups(types.path_numbers):
                yield self._decoded(writer, types.paths[path_number], written.take(same), its_rows[same])

    def _decoded(self, writer: WriterSchema, message: Message, payloads: Payloads, rows: _Rows) -> _Part:
        """Decode values that were written with one schema and message type, or say why they cannot be."""
        if writer.source is None:
            return _failed(writer, rows)
        try:
            decoder = decoder_of(
                self._format.reader, writer.source, message, self._format.fields, is_framed=True
            )
        except SchemaError as error:
            # Planning does not know which message types of a file the values have.
            return _failed(writer._replace(reason="unresolvable", message=str(error)), rows)
        return _Part(rows, *decoder.decode(payloads), writer.schema_id)


class _Part(NamedTuple):
    """Decoded values of some rows of a column.

    Attributes:
        array: The values; None if the errors are all that is known of the rows.
        errors: What is wrong, by number among the rows.
    """

    rows: _Rows
    array: pa.Array | None
    errors: list[RowError]
    schema_id: int | None = None


def _failed(writer: WriterSchema, rows: _Rows) -> _Part:
    """Return rows that cannot be decoded because of their schema."""
    errors = [RowError(row, writer.reason, writer.message) for row in range(len(rows))]
    return _Part(rows, None, errors, writer.schema_id)


def _joined(parts: list[_Part], count: int, arrow_type: pa.DataType) -> Decoded:
    """Put the values of parts at their rows in a column, and list the errors of all in order."""
    errors = sorted(
        error._replace(row=int(part.rows[error.row]), schema_id=part.schema_id)
        for part in parts
        for error in part.errors
    )
    decoded = [(part.rows, part.array) for part in parts if part.array is not None]
    if not decoded:
        return Decoded(pa.nulls(count, arrow_type), errors)
    if len(decoded) == 1 and len(decoded[0][0]) == count:
        return Decoded(decoded[0][1], errors)
    rows, arrays = zip(*decoded, strict=True)
    array = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    return Decoded(scatter(array, np.concatenate(rows), count), errors)


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
