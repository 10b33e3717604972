"""Records as text: in the format of kcat's ``-f``, or as JSON lines in the shape of kcat's ``-J``.

Whole columns are formatted at once: each token becomes a column of bytes, and these are joined row by row. Python looks
at single rows only where bytes are no UTF-8, or contain control characters that JSON or a terminal must not see.

Source of tokens, escapes and names: kcat 1.7 (``format.c``, ``json.c``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.dump.plain_values import is_typed, json_texts
from storage_core.errors import OptionError, visible
from storage_core.views.texts import json_value

_BYTES: Final = pa.large_binary()
_NULL: Final = b"NULL"
_US_PER_MS: Final = 1000
# As kcat's KC_FMT_MAX_SIZE. All parts are joined in one call, and each takes memory.
_MAX_PARTS: Final = 128
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|(0[0-7]{0,3}|[1-9][0-9]{0,2})|(.))", re.DOTALL)
_NAMED_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "e": b"\x1b"}
# Characters that JSON escapes and texts often contain, backslash first. Others are escaped row by row.
_COMMON_ESCAPES: Final = ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\t", b"\\t"), (b"\r", b"\\r"))
_DELETE: Final = 0x7F
_TIMESTAMP_TYPE_NAMES: Final = pa.array(["unknown", "create", "logappend"], pa.large_string()).cast(_BYTES)


class RecordText(Protocol):
    """A way to write records as text."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a read that it needs."""

    def render(self, batch: pa.RecordBatch) -> memoryview:
        """Write all rows of a batch that has these columns."""


@dataclass(frozen=True, slots=True)
class DelimitedText:
    r"""Text by a format, such as ``%t %p %o %k %s\n``.

    Attributes:
        parts: Bytes that stand for themselves, and the letters of tokens.
        null: What stands for a key or value that is null.
        is_for_terminal: Whether control characters out of records are escaped.
    """

    parts: tuple[bytes | str, ...]
    null: bytes = b""
    is_for_terminal: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a read that it needs."""
        needed = {_TOKENS[part][0] for part in self.parts if isinstance(part, str)}
        # A batch without columns would not know how many rows it has.
        return tuple(sorted(needed)) or ("offset",)

    def render(self, batch: pa.RecordBatch) -> memoryview:
        """Write all rows of a batch that has these columns."""
        batch = _with_json(batch)
        return _joined([self._column(part, batch) for part in self.parts], batch.num_rows)

    def _column(self, part: bytes | str, batch: pa.RecordBatch) -> pa.Array | pa.Scalar:
        if isinstance(part, bytes):
            return pa.scalar(part, _BYTES)
        name, make = _TOKENS[part]
        column = make(batch[name])
        if self.is_for_terminal and part in _RECORD_BYTES:
            column = _for_terminal(column)
        return column.fill_null(self.null) if column.null_count else column


def delimited_text(text: str, *, null: bytes = b"", is_for_terminal: bool = False) -> DelimitedText:
    r"""Parse a format of kcat.

    Tokens: ``%s`` value, ``%S`` its length (-1 for null), ``%R`` its length as 32 bits, big-endian, ``%k`` key, ``%K``
    its length, ``%T`` timestamp in milliseconds, ``%h`` headers as ``name=value,...``, ``%t`` topic, ``%p`` partition,
    ``%o`` offset, ``%%`` a percent sign. Escapes: ``\n``, ``\r``, ``\t``, ``\e``, ``\xNN``, ``\0NN`` octal, ``\NN``
    decimal; any other character after a backslash stands for itself.

    Raises:
        OptionError: A token is unknown, the format ends with ``%``, or it has too many tokens.
    """
    parts: list[bytes | str] = []
    for literal, percent, token in re.findall(r"([^%]*)(%?)(.?)", text, re.DOTALL):
        if literal:
            parts.append(_without_escapes(literal))
        if not percent:
            continue
        if token == "%":  # noqa: S105  (no password)
            parts.append(b"%")
        elif token in _TOKENS:
            parts.append(token)
        else:
            found = f"%{token}" if token else "a % at its end"
            raise OptionError(
                f"Format {text!r} has {found}, which is no token. Use "
                f"{', '.join(f'%{known}' for known in _TOKENS)} or %%."
            )
    if len(parts) > _MAX_PARTS:
        raise OptionError(
            f"A format has at most {_MAX_PARTS} tokens and texts between them, found {len(parts)}."
        )
    return DelimitedText(tuple(parts), null, is_for_terminal)


def literal_text(text: str) -> str:
    """Return the format of a text that has escapes but no tokens."""
    return text.replace("%", "%%")


def _without_escapes(text: str) -> bytes:
    pieces: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        pieces.append(text[position : match.start()].encode("utf-8", "surrogateescape"))
        pieces.append(_escaped_bytes(match))
        position = match.end()
    pieces.append(text[position:].encode("utf-8", "surrogateescape"))
    return b"".join(pieces)


def _escaped_bytes(match: re.Match[str]) -> bytes:
    hexadecimal, number, letter = match.groups()
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if number is not None:
        return bytes([int(number, 8 if number.startswith("0") else 10) & 0xFF])
    return _NAMED_ESCAPES.get(letter) or letter.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A JSON object per line, with the names of kcat's ``-J``.

    ``topic``, ``partition``, ``offset``, ``tstype`` (``create``, ``logappend`` or ``unknown``), ``ts`` in milliseconds
    (both left out if the record has no timestamp), ``headers`` as a list of names and values in turn (left out if there
    are none), ``key`` and ``payload``: a text, or null, or ``{"base64": "..."}`` for bytes that are no UTF-8.

    Attributes:
        is_for_terminal: Whether characters that a terminal would interpret are escaped.
    """

    is_for_terminal: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a read that it needs."""
        return ("headers", "key", "offset", "partition", "timestamp", "timestampType", "topic", "value")

    def render(self, batch: pa.RecordBatch) -> memoryview:
        """Write all rows of a batch that has these columns."""
        parts: list[pa.Array | pa.Scalar] = [
            _literal('{"topic":"'),
            _bytes(batch["topic"]),
            _literal('","partition":'),
            _number(batch["partition"]),
            _literal(',"offset":'),
            _number(batch["offset"]),
            _timestamp_fields(batch),
            self._headers_field(batch["headers"]),
            _literal(',"key":'),
            self._content(batch["key"]),
            _literal(',"payload":'),
            self._content(batch["value"]),
            _literal("}\n"),
        ]
        return _joined(parts, batch.num_rows)

    def _headers_field(self, headers: pa.ListArray) -> pa.Array | pa.Scalar:
        if headers.null_count == len(headers):
            return _literal("")
        pairs = headers.flatten()
        names = self._json(_bytes(pairs.field("key")))
        values = self._json(_bytes(pairs.field("value")))
        joined = _joined_per_row(headers, [names, _literal(","), values])
        field = pc.binary_join_element_wise(_literal(',"headers":['), joined, _literal("]"), _literal(""))
        return pc.if_else(headers.is_valid(), field, _literal(""))

    def _content(self, column: pa.Array) -> pa.Array:
        if not is_typed(column.type):
            return self._json(_bytes(column))
        texts = [
            _json_value_text(text or "null", self.is_for_terminal).encode() for text in json_texts(column)
        ]
        return pa.array(texts, _BYTES)

    def _json(self, column: pa.Array) -> pa.Array:
        return _json_column(column, is_for_terminal=self.is_for_terminal)


def _with_json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in which decoded keys and values are JSON, if they are neither bytes nor text."""
    for name in ("key", "value"):
        if name in batch.schema.names and is_typed(batch[name].type):
            index = batch.schema.get_field_index(name)
            batch = batch.set_column(
                index, name, pa.array(json_texts(batch[name]), pa.string()).cast(pa.binary())
            )
    return batch


def _timestamp_fields(batch: pa.RecordBatch) -> pa.Array:
    timestamps_ms, types = _timestamps_ms(batch["timestamp"]), batch["timestampType"].fill_null(-1)
    names = _TIMESTAMP_TYPE_NAMES.take(pc.add(types, 1))
    fields = pc.binary_join_element_wise(
        _literal(',"tstype":"'), names, _literal('","ts":'), _number(timestamps_ms), _literal("")
    )
    return pc.if_else(pc.equal(types, -1), _literal(""), fields)


def _json_column(column: pa.Array, *, is_for_terminal: bool) -> pa.Array:
    """Convert a column of bytes to JSON: strings, ``null``, or objects for bytes that are not UTF-8."""
    encode = _json_for_terminal if is_for_terminal else _json_of
    try:
        column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return _each(column, encode).fill_null(b"null")
    offsets, data = _content(column)
    bytes_ = np.frombuffer(data, np.uint8)
    if is_for_terminal and len(data) and bytes_.max() >= _DELETE:
        return _each(column, encode).fill_null(b"null")
    uncommon = np.flatnonzero(_is_uncommon(data, bytes_))
    quoted = pc.binary_join_element_wise(
        _literal('"'), _with_common_escapes(column, offsets, data), _literal('"'), _literal("")
    )
    if len(uncommon):
        rows = np.zeros(len(column), np.bool_)
        rows[np.searchsorted(offsets, uncommon, side="right") - 1] = True
        mask = pc.and_(pa.array(rows), column.is_valid())
        quoted = pc.replace_with_mask(quoted, mask, _each(column.filter(mask), encode))
    return quoted.fill_null(b"null")


def _with_common_escapes(column: pa.Array, offsets: npt.NDArray[np.int64], data: bytes) -> pa.Array:
    for letter, escape in _COMMON_ESCAPES:
        if letter in data:
            # All rows at once: Arrow's own function goes row by row and takes several times as long.
            positions = np.flatnonzero(np.frombuffer(data, np.uint8) == letter[0])
            offsets = offsets + np.searchsorted(positions, offsets)
            data = data.replace(letter, escape)
    buffers = [_validity(column), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BYTES, len(column), buffers)


def _is_uncommon(data: bytes, bytes_: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Mark where a control character begins that `_COMMON_ESCAPES` lacks."""
    if not data:
        return np.zeros(0, np.bool_)
    found: npt.NDArray[np.bool_] = np.zeros(len(data), np.bool_)
    if bytes_.min() < ord(" "):
        found = (bytes_ < ord(" ")) & ~np.isin(bytes_, list(b"\n\t\r"))
    if b"\x7f" in data:
        found |= bytes_ == _DELETE
    if b"\xc2" in data:
        # U+0080 to U+009F.
        found[:-1] |= (bytes_[:-1] == 0xC2) & (bytes_[1:] <= 0x9F)  # noqa: PLR2004
    return found


def _content(column: pa.Array) -> tuple[npt.NDArray[np.int64], bytes]:
    """Return the borders of the rows in the bytes of all rows, and these bytes."""
    _, offsets, data = column.buffers()
    if not len(column):
        return np.zeros(1, np.int64), b""
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return ends - ends[0], bytes(memoryview(data)[int(ends[0]) : int(ends[-1])]) if data is not None else b""


def _validity(column: pa.Array) -> pa.Buffer | None:
    if not column.null_count:
        return None
    # A copy, so that its bits begin at 0.
    return pa.concat_arrays([pa.array([], pa.bool_()), column.is_valid()]).buffers()[1]


def _json_of(data: bytes) -> str:
    return _json_value_text(json.dumps(json_value(data), ensure_ascii=False, separators=(",", ":")))


def _json_for_terminal(data: bytes) -> str:
    return _escape_where(_json_of(data), lambda letter: not letter.isprintable())


def _json_value_text(text: str, is_for_terminal: bool = False) -> str:
    """Escape the control characters that JSON may contain; for a terminal all that it would interpret."""
    if is_for_terminal:
        return _escape_where(text, lambda letter: not letter.isprintable())
    return _escape_where(text, lambda letter: "\x7f" <= letter <= "\x9f")


def _escape_where(text: str, is_escaped: Callable[[str], bool]) -> str:
    if text.isprintable():
        return text
    return "".join(json.dumps(letter)[1:-1] if is_escaped(letter) else letter for letter in text)


def _headers_text(headers: pa.ListArray) -> pa.Array:
    """Write the headers of each row as ``name=value,name=value``."""
    pairs = headers.flatten()
    values = _bytes(pairs.field("value")).fill_null(_NULL)
    return _joined_per_row(headers, [_bytes(pairs.field("key")), _literal("="), values])


def _joined_per_row(lists: pa.ListArray, parts: list[pa.Array | pa.Scalar]) -> pa.Array:
    """Join each item's parts, then each row's items with commas."""
    items = pc.binary_join_element_wise(*parts, _literal(""))
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), items), _literal(","))


def _joined(parts: list[pa.Array | pa.Scalar], count: int) -> memoryview:
    """Join the parts of all rows into one text."""
    if not any(isinstance(part, pa.Array) for part in parts):
        return memoryview(b"".join(part.as_py() for part in parts) * count)
    rows = pc.binary_join_element_wise(*parts, _literal(""))
    _, offsets, data = rows.buffers()
    # The rows are neighbours in one buffer.
    ends = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])] if len(rows) else memoryview(b"")


def _for_terminal(column: pa.Array) -> pa.Array:
    """Escape the control characters of a column of bytes, and what is not UTF-8."""
    if not pc.any(pc.match_substring_regex(column, r"[^\x20-\x7e]")).as_py():
        return column
    return _each(column, lambda data: visible(data.decode("utf-8", "backslashreplace")))


def _each(column: pa.Array, convert: Callable[[bytes], str]) -> pa.Array:
    """Convert row by row; null stays null."""
    converted = [None if data is None else convert(data).encode() for data in column.to_pylist()]
    return pa.array(converted, _BYTES)


def _literal(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), _BYTES)


def _bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    return column.cast(_BYTES)


def _number(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string()).cast(_BYTES)


def _lengths(column: pa.Array) -> pa.Array:
    return pc.binary_length(column).fill_null(-1)


def _binary_lengths(column: pa.Array) -> pa.Array:
    big_endian = _lengths(column).to_numpy(zero_copy_only=False).astype(">i4")
    data = pa.py_buffer(big_endian.tobytes())
    return pa.Array.from_buffers(pa.binary(4), len(column), [None, data]).cast(pa.binary()).cast(_BYTES)


def _timestamps_ms(column: pa.Array) -> pa.Array:
    """Convert timestamps to milliseconds; null becomes -1, as in Kafka."""
    return pc.divide(column.cast(pa.int64()), _US_PER_MS).fill_null(-1)


# For each token the column that it needs, and how it is written.
_TOKENS: Final[dict[str, tuple[str, Callable[[Any], pa.Array]]]] = {
    "s": ("value", _bytes),
    "S": ("value", lambda column: _number(_lengths(column))),
    "R": ("value", _binary_lengths),
    "k": ("key", _bytes),
    "K": ("key", lambda column: _number(_lengths(column))),
    "T": ("timestamp", lambda column: _number(_timestamps_ms(column))),
    "h": ("headers", _headers_text),
    "t": ("topic", _bytes),
    "p": ("partition", _number),
    "o": ("offset", _number),
}
# These come from producers and may hold anything. %R is binary on purpose.
_RECORD_BYTES: Final = frozenset("skh")
