"""Avro values as columns: each value without a frame, all of them written with one schema."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from storage_core.errors import OptionError, ValueDecodeError
from storage_core.values.avro_columns import TooManyItemsError, decode_window
from storage_core.values.avro_plain import Leaf, Step, Struct, ValueMalformedError, read_value
from storage_core.values.avro_plan import Plan, compile_plan
from storage_core.values.avro_schema import parse_avro_schema
from storage_core.values.decoding import Decoded, Paths, Payloads, RowError, SchemaSource, scatter

if TYPE_CHECKING:
    import numpy.typing as npt

# So many values are decoded at once, if they are small: what is read is still in the processor's cache.
_ROWS_AT_ONCE: Final = 1 << 15
_BYTES_AT_ONCE: Final = 1 << 23
# With many columns, fewer.
_CELLS_AT_ONCE: Final = 1 << 22
_FEWEST_ROWS: Final = 64
# Up to so many values are quicker decoded one at a time, as measured with flat and nested records.
_PLAIN_ROWS: Final = 48
# But large values may have many items.
_PLAIN_BYTES: Final = 1 << 16
# Arrow's offsets have 32 bits. Only a single value may be larger than what is decoded at once.
_LARGEST_BYTES: Final = (1 << 31) - (1 << 16)
# Above this share of other bytes between the values, they are copied together.
_SPARSE_SHARE: Final = 4
_SPARSE_BYTES: Final = 1 << 16
# The most bytes that decode_avro decodes into one array.
_PIECE_BYTES: Final = 1 << 30


class AvroDecoder:
    """Decodes values that were written with one schema."""

    def __init__(self, plan: Plan) -> None:
        self._step = plan.root
        self._rows_at_once = min(_ROWS_AT_ONCE, max(_FEWEST_ROWS, _CELLS_AT_ONCE // plan.step_count))

    @property
    def arrow_type(self) -> pa.DataType:
        """Type of the column."""
        return self._step.arrow_type

    def decode(self, payloads: Payloads) -> Decoded:
        """Decode values. One that does not decode is an error of its row alone."""
        arrays = [pa.nulls(0, self.arrow_type)]
        errors: list[RowError] = []
        parts = [*_parts(payloads, _BYTES_AT_ONCE, self._rows_at_once)][::-1]
        while parts:
            first, last = parts.pop()
            try:
                decoded = self._decode_part(payloads.take(slice(first, last)))
            except TooManyItemsError:
                middle = (first + last) // 2
                parts += [(middle, last), (first, middle)]
                continue
            arrays.append(decoded.array)
            errors.extend(error._replace(row=error.row + first) for error in decoded.errors)
        return Decoded(arrays[1] if len(arrays) == 2 else _one_array(arrays), errors)  # noqa: PLR2004

    def _decode_part(self, part: Payloads) -> Decoded:
        size = int((part.ends - part.starts).sum())
        if len(part.starts) <= _PLAIN_ROWS and size <= _PLAIN_BYTES:
            return self._decode_plainly(part, np.arange(len(part.starts)))
        if size > _LARGEST_BYTES:
            problem = f"a value of {size:,} bytes is too large: at most {_LARGEST_BYTES:,}"
            return Decoded(pa.nulls(1, self.arrow_type), [RowError(0, "malformed", problem)])
        part = _together(part)
        array, suspects = decode_window(self._step, part)
        if not len(suspects):
            return Decoded(array, [])
        plain = self._decode_plainly(part, suspects)
        sources = np.arange(len(array))
        sources[suspects] = len(array) + np.arange(len(suspects))
        return Decoded(pa.concat_arrays([array, plain.array]).take(pa.array(sources)), plain.errors)

    def _decode_plainly(self, part: Payloads, rows: npt.NDArray[np.int64]) -> Decoded:
        values: list[Any] = []
        errors = []
        for row in rows.tolist():
            value = None
            try:
                value = read_value(self._step, part.data[part.starts[row] : part.ends[row]].tobytes())
            except ValueMalformedError as error:
                errors.append(RowError(row, error.reason, str(error)))
            values.append(value)
        return Decoded(pa.array(values, self.arrow_type), errors)


def _parts(payloads: Payloads, most_bytes: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """Cut values into parts of at most so many bytes and rows; larger values are alone."""
    sizes = np.cumsum(payloads.ends - payloads.starts)
    first = 0
    while first < len(sizes):
        before = sizes[first - 1] if first else 0
        last = int(np.searchsorted(sizes, before + most_bytes, "right"))
        last = max(first + 1, min(last, first + most_rows))
        yield first, last
        first = last


def _together(part: Payloads) -> Payloads:
    """Return the values in a buffer that has little else, in ascending order without overlaps."""
    total, begin, end = int((part.ends - part.starts).sum()), int(part.starts[0]), int(part.ends[-1])
    ascend = bool(np.all(part.starts[1:] >= part.ends[:-1]))
    if ascend and end - begin <= total * _SPARSE_SHARE + _SPARSE_BYTES:
        return Payloads(part.data[begin:end], part.starts - begin, part.ends - begin)
    return Payloads.of_array(part.to_array())


def avro_decoder(
    writer: SchemaSource,
    reader: SchemaSource | None = None,
    paths: Paths = None,
    *,
    has_raw_bytes: bool = False,
) -> AvroDecoder:
    """Return a decoder of values that were written with one schema, as a column of another.

    Args:
        writer: The schema that the values were written with.
        reader: The schema of the column; None for that of the writer.
        paths: Paths of the wanted fields; None for all.
        has_raw_bytes: True if values of the type ``bytes`` have no length in front, as Confluent's serializer writes them.

    Raises:
        SchemaResolutionError: Values of the one schema cannot be read as those of the other.
        SchemaError: A schema is malformed, or beyond what is supported.
        OptionError: A path leads to no field.
    """
    written = parse_avro_schema(writer)
    read = written if reader is None or reader == writer else parse_avro_schema(reader)
    plan = compile_plan(written, read, paths)
    if has_raw_bytes and written.root.kind == "bytes":
        plan = plan._replace(root=_whole(plan.root))
    return AvroDecoder(plan)


def _whole(step: Step) -> Step:
    """Return the step that reads the whole value as bytes."""
    match step:
        case Leaf():
            return replace(step, kind="rest")
        case Struct(children=(member,)):
            # The reader has a union.
            return replace(step, children=(member._replace(step=_whole(member.step)),))
    return step


def decode_avro(
    values: pa.BinaryArray | pa.LargeBinaryArray | pa.ChunkedArray,
    schema: str,
    reader_schema: str | None = None,
) -> tuple[pa.Array | pa.ChunkedArray, list[RowError]]:
    r"""Decode Avro values without frames.

    >>> import pyarrow as pa
    >>> from storage_core.values import decode_avro
    >>> array, errors = decode_avro(pa.array([b"\x02", b"\xff"]), '"long"')
    >>> array.to_pylist()
    [1, None]

    Args:
        values: An encoded value in each row, or null.
        schema: The schema that they were written with, as JSON text.
        reader_schema: The schema of the result, if it is another one.

    Returns:
        A value for each row, null where it does not decode; and what is wrong with those rows.

    Raises:
        SchemaResolutionError: Values of the one schema cannot be read as those of the other.
        SchemaError: A schema is malformed, or beyond what is supported.
        OptionError: The values are not bytes, or a schema is not text.
    """
    for text in (schema, "" if reader_schema is None else reader_schema):
        if not isinstance(text, str):
            raise OptionError(f"A schema must be JSON text, not {type(text).__name__}: use json.dumps.")
    decoder = avro_decoder(
        SchemaSource(schema), None if reader_schema is None else SchemaSource(reader_schema)
    )
    arrays = []
    errors: list[RowError] = []
    rows_before = 0
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        chunk_of_bytes = _as_bytes(chunk)
        payloads = Payloads.of_array(chunk_of_bytes)
        # The decoded values of a part fit one array, too. An empty chunk gives an empty array.
        for first, last in [*_parts(payloads, _PIECE_BYTES, len(chunk))] or [(0, 0)]:
            decoded = _decode_array(decoder, chunk_of_bytes[first:last])
            arrays.append(decoded.array)
            errors.extend(error._replace(row=error.row + rows_before) for error in decoded.errors)
            rows_before += last - first
    if isinstance(values, pa.ChunkedArray) or len(arrays) > 1:
        return pa.chunked_array(arrays, decoder.arrow_type), errors
    return arrays[0], errors


def _as_bytes(values: object) -> pa.BinaryArray | pa.LargeBinaryArray:
    if isinstance(values, pa.BinaryArray | pa.LargeBinaryArray):
        return values
    kind: object = type(values).__name__
    if isinstance(values, pa.Array):
        kind = values.type
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return values.cast(pa.large_binary())
    raise OptionError(f"Avro values must be an Arrow array of bytes, not {kind}.")


def _decode_array(decoder: AvroDecoder, values: pa.Array) -> Decoded:
    payloads = Payloads.of_array(values)
    if not values.null_count:
        return decoder.decode(payloads)
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    decoded = decoder.decode(payloads.take(rows))
    array = scatter(decoded.array, rows, len(values))
    return Decoded(array, [error._replace(row=int(rows[error.row])) for error in decoded.errors])


def _one_array(arrays: list[pa.Array]) -> pa.Array:
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        rows = sum(map(len, arrays))
        raise ValueDecodeError(
            f"the values of {rows:,} rows do not fit one Arrow array ({error}): read fewer at once"
        ) from None
