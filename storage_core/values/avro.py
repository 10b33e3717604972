"""Avro values as columns: each value without a frame, all of them written with one schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from storage_core.errors import ValueDecodeError
from storage_core.values.avro_columns import TooManyItemsError, decode_window
from storage_core.values.avro_plain import Leaf, Step, Struct, ValueMalformedError, read_value
from storage_core.values.avro_plan import Plan, compile_plan
from storage_core.values.avro_schema import parse_avro_schema
from storage_core.values.decoding import Decoded, Paths, Payloads, RowError, SchemaSource, placed

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
# What decode_avro makes one array of.
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
        """Decode values. What does not decode is an error of its row alone."""
        arrays = [pa.nulls(0, self.arrow_type)]
        errors: list[RowError] = []
        for first, part in _parts(payloads, self._rows_at_once):
            decoded = self._decode_part(part)
            arrays.append(decoded.array)
            errors.extend(error._replace(row=error.row + first) for error in decoded.errors)
        return Decoded(arrays[1] if len(arrays) == 2 else _one_array(arrays), errors)  # noqa: PLR2004

    def _decode_part(self, part: Payloads) -> Decoded:
        size = int((part.ends - part.starts).sum())
        if len(part.starts) <= _PLAIN_ROWS and size <= _PLAIN_BYTES:
            return self._decode_plainly(part, np.arange(len(part.starts)))
        if size > _LARGEST_BYTES:
            error = RowError(
                0, "malformed", f"a value of {size:,} bytes is too large: at most {_LARGEST_BYTES:,}"
            )
            return Decoded(pa.nulls(1, self.arrow_type), [error])
        part = _together(part)
        try:
            array, suspects = decode_window(self._step, part)
        except TooManyItemsError:
            middle = len(part.starts) // 2
            first = self._decode_part(part.some(slice(middle)))
            second = self._decode_part(part.some(slice(middle, None)))
            errors = [error._replace(row=error.row + middle) for error in second.errors]
            return Decoded(pa.concat_arrays([first.array, second.array]), first.errors + errors)
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


def _parts(payloads: Payloads, rows_at_once: int) -> Iterator[tuple[int, Payloads]]:
    """Yield the values that are decoded at once, each time with the number of the first."""
    sizes = np.cumsum(payloads.ends - payloads.starts)
    first = 0
    while first < len(sizes):
        before = sizes[first - 1] if first else 0
        last = int(np.searchsorted(sizes, before + _BYTES_AT_ONCE, "right"))
        last = max(first + 1, min(last, first + rows_at_once))
        yield first, payloads.some(slice(first, last))
        first = last


def _together(part: Payloads) -> Payloads:
    """Return the values in a buffer that has little else, in ascending order without overlaps."""
    sizes = part.ends - part.starts
    total, begin, end = int(sizes.sum()), int(part.starts[0]), int(part.ends[-1])
    ascend = bool(np.all(part.starts[1:] >= part.ends[:-1]))
    if ascend and end - begin <= total * _SPARSE_SHARE + _SPARSE_BYTES:
        return Payloads(part.data[begin:end], part.starts - begin, part.ends - begin)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = part.data[np.repeat(part.starts - starts, sizes) + np.arange(total)]
    return Payloads(data, starts, ends)


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
        has_raw_bytes: Whether values of the type ``bytes`` have no length in front, as Confluent's serializer writes them.

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
    """
    decoder = avro_decoder(
        SchemaSource(schema), None if reader_schema is None else SchemaSource(reader_schema)
    )
    is_chunked = isinstance(values, pa.ChunkedArray)
    arrays = []
    errors: list[RowError] = []
    first = 0
    for chunk in values.chunks if is_chunked else [values]:
        for piece in _pieces(chunk):
            decoded = _decode_array(decoder, piece)
            arrays.append(decoded.array)
            errors.extend(error._replace(row=error.row + first) for error in decoded.errors)
            first += len(piece)
    if is_chunked or len(arrays) > 1:
        return pa.chunked_array(arrays, decoder.arrow_type), errors
    return arrays[0], errors


def _pieces(values: pa.Array) -> Iterator[pa.Array]:
    """Yield slices whose values fit one array, also when they are decoded."""
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        values = values.cast(pa.large_binary())
    if pa.types.is_binary(values.type) or not len(values):
        yield values
        return
    ends = Payloads.of_array(values).ends
    first = 0
    while first < len(values):
        last = int(np.searchsorted(ends, ends[first] + _PIECE_BYTES, "right"))
        last = max(first + 1, last)
        yield values[first:last]
        first = last


def _decode_array(decoder: AvroDecoder, values: pa.Array) -> Decoded:
    payloads = Payloads.of_array(values)
    if not values.null_count:
        return decoder.decode(payloads)
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    decoded = decoder.decode(payloads.some(rows))
    array = placed(decoded.array, rows, len(values))
    return Decoded(array, [error._replace(row=int(rows[error.row])) for error in decoded.errors])


def _one_array(arrays: list[pa.Array]) -> pa.Array:
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        rows = sum(map(len, arrays))
        raise ValueDecodeError(
            f"the values of {rows:,} rows do not fit one Arrow array ({error}): read fewer at once"
        ) from None
