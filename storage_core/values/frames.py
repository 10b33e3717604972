"""Frames: the bytes or headers in which a serializer names the schema of a record's key or value.

    Confluent's prefix       00, id (int32, big-endian), payload
    Confluent's header       __value_schema_id or __key_schema_id: 01, GUID (16 bytes); or 00, id. The payload is bare.
    Protobuf, in addition    the path of the message type, before the payload or at the end of the header:
                             count, indexes (zigzag varints); a single 0 stands for the path of the first message

The header goes before the prefix, and the last one of its name counts, as in Confluent's ``DualSchemaIdDeserializer``. What
other registries and Avro itself write is recognised, so that an error can name it; their schemas are not in Kafka.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.record.varint import VARINT_LIMIT_BYTES, read_varint
from storage_core.values.decoding import Payloads, RowError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


KEY_HEADER: Final = "__key_schema_id"
"""Header that names the schema of a record's key."""
VALUE_HEADER: Final = "__value_schema_id"
"""Header that names the schema of a record's value."""
NO_FRAME: Final = -1
_ID_MAGIC, _GUID_MAGIC = 0, 1
_PREFIX_BYTES: Final = 5
_GUID_FRAME_BYTES: Final = 17
_SHORT_HEAD: Final = -1
_GLUE_HEADS: Final = (b"\3\0", b"\3\5")
_SINGLE_OBJECT_HEAD: Final = b"\xc3\1"
_APICURIO_HEADERS: Final = ("globalId", "contentId", "contentHash", "artifactId")
# A file has few message types, and no message is within a hundred others.
_MOST_INDEXES: Final = 100
_MOST_ROUNDS: Final = 64
_LONGEST_PATH_BYTES: Final = VARINT_LIMIT_BYTES * (1 + _MOST_INDEXES)

_BAD_HEADER: Final = "the header that names the schema has neither 01 and a GUID nor 00 and an id"
_APICURIO: Final = "the schema is named by headers of Apicurio Registry, which keeps its schemas elsewhere"
_GLUE: Final = "the frame is that of AWS Glue, which keeps its schemas elsewhere"
_SINGLE_OBJECT: Final = "the frame is that of a single Avro object, which has a fingerprint in place of an id"
_SHORT: Final = "it is shorter than the 5 bytes of a frame"
_OTHER: Final = "its first byte is not the 00 of a frame"


class SchemaName(NamedTuple):
    """Name of a schema in a frame: an id or a GUID.

    Attributes:
        header_rest: What follows the name in a header, for Protobuf the path of the message type; None if the name is a
            prefix of the payload, which the path follows there.
    """

    schema_id: int | None
    guid: str | None = None
    header_rest: bytes | None = None

    @property
    def described(self) -> str:
        """Name in the words of a message."""
        if self.guid is not None:
            return f"GUID {self.guid}"
        # Ids of Confluent's registry begin with 1.
        hint = "" if self.schema_id else " (Apicurio Registry may write ids of 8 bytes)"
        return f"schema id {self.schema_id}{hint}"


class Frames(NamedTuple):
    """Frames of values.

    Attributes:
        names: The different names of schemas.
        name_numbers: Of each row, the number of its name in ``names``; `NO_FRAME` if it has no frame.
        starts: Of each row, where the payload begins in the data; the value itself if it has no frame.
    """

    names: tuple[SchemaName, ...]
    name_numbers: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    errors: list[RowError]


class MessageIndexes(NamedTuple):
    """Paths of Protobuf's message types: the index of a message in its file, then that of one within it, and so on.

    Attributes:
        paths: The different paths.
        path_numbers: Of each row, the number of its path in ``paths``; `NO_FRAME` if it cannot be read.
        starts: Of each row, where the message begins.
    """

    paths: list[tuple[int, ...]]
    path_numbers: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    errors: list[RowError]


def split_frames(payloads: Payloads, headers: pa.ListArray | None, header_name: str) -> Frames:
    """Find the schema that each value names, and where its payload begins.

    Args:
        payloads: The values with their frames; none of them null.
        headers: The headers of the same records; None if they have none.
        header_name: `KEY_HEADER` or `VALUE_HEADER`.
    """
    # Names of schemas, and sentences about what is wrong, each with its number.
    found: dict[SchemaName | str, int] = {}
    if headers is None:
        numbers = _numbered(_heads(payloads), _name_in_prefix, found)
    else:
        numbers = np.full(len(payloads.starts), NO_FRAME, np.int64)
        _read_headers(headers, header_name, found, numbers)
        rows = np.flatnonzero(numbers == NO_FRAME)
        numbers[rows] = _numbered(_heads(payloads.take(rows)), _name_in_prefix, found)
    names = [each if isinstance(each, SchemaName) else None for each in found]
    is_name = np.array([name is not None for name in names], np.bool_)
    is_prefix = np.array([name is not None and name.header_rest is None for name in names], np.bool_)
    name_numbers = np.where(is_name, np.cumsum(is_name) - 1, NO_FRAME)[numbers]
    problems = list(map(str, found))
    rows = np.flatnonzero(name_numbers == NO_FRAME)
    return Frames(
        tuple(name for name in names if name is not None),
        name_numbers,
        payloads.starts + _PREFIX_BYTES * is_prefix[numbers],
        [
            RowError(row, "unframed", problems[number])
            for row, number in zip(rows.tolist(), numbers[rows].tolist(), strict=True)
        ],
    )


def _numbered(
    values: pa.Array, name_in: Callable[[Any], SchemaName | str], found: dict[SchemaName | str, int]
) -> npt.NDArray[np.int64]:
    """Return the number of the name or problem in each value, and add new ones to ``found``."""
    import pyarrow.compute as pc  # noqa: PLC0415  (takes 20 ms, and plain reads need only the constants here)

    if len(values) and pc.all(pc.equal(values, values[0])).as_py():
        # Checked first, as most columns have one schema: it takes a tenth of the time.
        name = name_in(values[0].as_py())
        return np.full(len(values), found.setdefault(name, len(found)))
    encoded = values.dictionary_encode()
    different = map(name_in, encoded.dictionary.to_pylist())
    table = np.array([found.setdefault(each, len(found)) for each in different], np.int64)
    numbers: npt.NDArray[np.int64] = table[np.asarray(encoded.indices)]
    return numbers


def _heads(payloads: Payloads) -> pa.Int64Array:
    """Return the first five bytes of values as numbers, the first byte as the lowest; `_SHORT_HEAD` for shorter values."""
    data, starts, ends = payloads
    is_long = ends - starts >= _PREFIX_BYTES
    positions = starts if is_long.all() else starts[is_long]
    # Integers at all positions: to gather them takes half the time of gathering their bytes.
    integers: npt.NDArray[np.uint32] = np.ndarray((max(len(data) - 3, 0),), "<u4", data, strides=(1,))
    heads = integers[positions + 1].astype(np.int64) << 8 | data[positions]
    if len(positions) < len(starts):
        heads, some = np.full(len(starts), _SHORT_HEAD, np.int64), heads
        heads[is_long] = some
    return pa.array(heads)


def _name_in_prefix(head: int) -> SchemaName | str:
    if head == _SHORT_HEAD:
        return _SHORT
    data = head.to_bytes(_PREFIX_BYTES, "little")
    if data[0] == _ID_MAGIC:
        return SchemaName(int.from_bytes(data[1:], "big", signed=True))
    if data.startswith(_GLUE_HEADS):
        return _GLUE
    return _SINGLE_OBJECT if data.startswith(_SINGLE_OBJECT_HEAD) else _OTHER


def _name_in_header(header: bytes) -> SchemaName | str:
    if len(header) >= _GUID_FRAME_BYTES and header[0] == _GUID_MAGIC:
        guid = str(uuid.UUID(bytes=header[1:_GUID_FRAME_BYTES]))
        return SchemaName(None, guid, header[_GUID_FRAME_BYTES:])
    if len(header) >= _PREFIX_BYTES and header[0] == _ID_MAGIC:
        schema_id = int.from_bytes(header[1:_PREFIX_BYTES], "big", signed=True)
        return SchemaName(schema_id, None, header[_PREFIX_BYTES:])
    return _BAD_HEADER


def _read_headers(
    headers: pa.ListArray,
    header_name: str,
    found: dict[SchemaName | str, int],
    numbers: npt.NDArray[np.int64],
) -> None:
    """Read the names of schemas in headers. A header whose value is null names none, as in Java."""
    import pyarrow.compute as pc  # noqa: PLC0415  (see above)

    rows = pc.list_parent_indices(headers).to_numpy()
    items = pc.list_flatten(headers)
    keys, values = pc.struct_field(items, "key"), pc.struct_field(items, "value")
    column = "key" if header_name == KEY_HEADER else "value"
    foreign = _matches(pc.is_in(keys, pa.array([f"apicurio.{column}.{name}" for name in _APICURIO_HEADERS])))
    numbers[rows[foreign]] = found.setdefault(_APICURIO, len(found))
    named = _matches(pc.equal(keys, header_name))
    # The last one of a record counts.
    named = named[np.diff(rows[named], append=-1) != 0]
    named = named[np.asarray(values.is_valid())[named]]
    numbers[rows[named]] = _numbered(values.take(pa.array(named)), _name_in_header, found)


def _matches(mask: pa.BooleanArray) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.asarray(mask.fill_null(False)))


def message_types(name: SchemaName, payloads: Payloads) -> MessageIndexes:
    """Find the message type of each Protobuf value: from the header, or else from the start of each value."""
    if name.header_rest is None:
        return _read_paths(payloads)
    data = np.frombuffer(name.header_rest, np.uint8)
    of_all = _read_paths(Payloads(data, np.zeros(1, np.int64), np.array([len(data)], np.int64)))
    count = len(payloads.starts)
    errors = [error._replace(row=row) for row in range(count) for error in of_all.errors]
    return MessageIndexes(of_all.paths, np.repeat(of_all.path_numbers, count), payloads.starts, errors)


def _read_paths(payloads: Payloads) -> MessageIndexes:
    """Read the path that each payload begins with.

    One path is read at a time, and assigned to all payloads that begin with the same bytes: a varint shows where it ends.
    """
    data, starts, ends = payloads
    paths: dict[tuple[int, ...], int] = {}
    numbers, new_starts = np.full(len(starts), NO_FRAME, np.int64), starts.copy()
    errors = []
    remaining = np.arange(len(starts))
    while len(remaining):
        row, others = int(remaining[0]), remaining[1:]
        start = int(starts[row])
        head = data[start : min(int(ends[row]), start + _LONGEST_PATH_BYTES)]
        try:
            path, size = _read_path(head.tobytes())
        except ValueError:
            errors.append(RowError(row, "malformed", "the indexes of the message type cannot be read"))
            remaining = others
            continue
        # With many different paths, the work stays in proportion.
        if len(paths) < _MOST_ROUNDS:
            is_same = _begin_with(head[:size], Payloads(data, starts[remaining], ends[remaining]))
            same, remaining = remaining[is_same], remaining[~is_same]
        else:
            same, remaining = remaining[:1], others
        numbers[same] = paths.setdefault(path, len(paths))
        new_starts[same] += size
    return MessageIndexes(list(paths), numbers, new_starts, errors)


def _begin_with(expected: npt.NDArray[np.uint8], payloads: Payloads) -> npt.NDArray[np.bool_]:
    data, starts, ends = payloads
    is_same = ends - starts >= len(expected)
    is_same[is_same] = (data[starts[is_same, None] + np.arange(len(expected))] == expected).all(axis=1)
    return is_same


def _read_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """Read the number of indexes, and the indexes; return them, and how many bytes they take.

    Raises:
        ValueError: The bytes end early, an index is negative or too long, or they are too many.
    """
    count, position = read_varint(data, 0, VARINT_LIMIT_BYTES)
    path = []
    for _ in range(min(count, _MOST_INDEXES)):
        index, position = read_varint(data, position, VARINT_LIMIT_BYTES)
        path.append(index)
    if not 0 <= count <= _MOST_INDEXES or min(path, default=0) < 0:
        raise ValueError
    return tuple(path) or (0,), position
