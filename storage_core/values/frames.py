"""Frames: the bytes or headers with which a serializer says by which schema a record's key or value is to be read.

    Confluent's prefix       00, id (int32, big-endian), payload
    Confluent's header       __value_schema_id or __key_schema_id: 01, GUID (16 bytes); or 00, id. The payload is bare.
    Protobuf, in addition    the path of the message type, before the payload or at the end of the header:
                             count, indexes (zigzag varints); a single 0 stands for the path of the first message

The header goes before the prefix, and the last one of its name counts, as in Confluent's ``DualSchemaIdDeserializer``. What
other registries and Avro itself write is recognised, so that an error can name it; their schemas are not in Kafka.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.values.decoding import Payloads, RowError

if TYPE_CHECKING:
    import numpy.typing as npt


KEY_HEADER: Final = "__key_schema_id"
"""The header that names the schema of a record's key."""
VALUE_HEADER: Final = "__value_schema_id"
"""The header that names the schema of a record's value."""
NO_FRAME: Final = -1
_ID_MAGIC, _GUID_MAGIC = 0, 1
_PREFIX_BYTES: Final = 5
_GUID_FRAME_BYTES: Final = 17
_APICURIO_HEADERS: Final = ("globalId", "contentId", "contentHash", "artifactId")
_GLUE_FRAME_BYTES: Final = 18
_GLUE_COMPRESSIONS: Final = (0, 5)
_LONGEST_VARINT_BYTES: Final = 5
_MOST_INDEXES: Final = 100
_MOST_ROUNDS: Final = 64
# What is wrong with a value that has no frame, the more special first.
_UNDECIDED, _FRAMED = -2, -1
_BAD_HEADER, _APICURIO, _GLUE, _SINGLE_OBJECT, _SHORT, _OTHER = range(6)
_UNFRAMED: Final = (
    "the header that names the schema has neither 01 and a GUID nor 00 and an id",
    "the schema is named by headers of Apicurio Registry, which keeps its schemas elsewhere",
    "the frame is that of AWS Glue, which keeps its schemas elsewhere",
    "the frame is that of a single Avro object, which has a fingerprint in place of an id",
    "it is shorter than the 5 bytes of a frame",
    "its first byte is not the 00 of a frame",
)


class SchemaName(NamedTuple):
    """How a frame names its schema: by an id or by a GUID.

    Attributes:
        header_rest: What follows the name in a header, for Protobuf the path of the message type; None if the name is
            before the payload, where the path is then, too.
    """

    schema_id: int | None
    guid: str | None = None
    header_rest: bytes | None = None

    @property
    def described(self) -> str:
        """The name in the words of a message."""
        if self.guid is not None:
            return f"GUID {self.guid}"
        hint = (
            " (registries begin with 1; Apicurio Registry may write ids of 8 bytes)"
            if self.schema_id == 0
            else ""
        )
        return f"schema id {self.schema_id}{hint}"


class Frames(NamedTuple):
    """Frames of values.

    Attributes:
        names: The different names of schemas.
        name_numbers: Of each row, the number of its name in ``names``; `NO_FRAME` if it has no frame.
        starts: Of each row, where the payload begins in the data; the value itself if it has no frame.
        errors: The rows without a frame, in ascending order.
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
        errors: The rows whose path cannot be read, in ascending order.
    """

    paths: list[tuple[int, ...]]
    path_numbers: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    errors: list[RowError]


class _Found(NamedTuple):
    """What is known of values while they are looked at.

    Attributes:
        numbers: As in `Frames`.
        problems: What is wrong, as a position in `_UNFRAMED`; or `_FRAMED` or `_UNDECIDED`.
    """

    numbers: npt.NDArray[np.int64]
    problems: npt.NDArray[np.int8]


def split_frames(payloads: Payloads, headers: pa.ListArray | None, header_name: str) -> Frames:
    """Find out by which schema each value is to be read, and where its payload begins.

    Args:
        payloads: The values with their frames; none of them null.
        headers: The headers of the same records; None if they have none.
        header_name: `KEY_HEADER` or `VALUE_HEADER`.
    """
    names: dict[SchemaName, int] = {}
    found = _Found(
        np.full(len(payloads.starts), NO_FRAME, np.int64), np.full(len(payloads.starts), _UNDECIDED, np.int8)
    )
    if headers is not None:
        _read_headers(headers, header_name, names, found)
    starts = payloads.starts.copy()
    framed = _read_prefixes(payloads, names, found)
    starts[framed] += _PREFIX_BYTES
    rows = np.flatnonzero(found.problems >= 0)
    errors = [
        RowError(row, "unframed", _UNFRAMED[problem])
        for row, problem in zip(rows.tolist(), found.problems[rows].tolist(), strict=True)
    ]
    return Frames(tuple(names), found.numbers, starts, errors)


def _read_prefixes(payloads: Payloads, names: dict[SchemaName, int], found: _Found) -> npt.NDArray[np.int64]:
    """Read the prefixes of values that no header decides about, and return the rows that have one."""
    data, starts, ends = payloads
    rows: npt.NDArray[np.int64] = np.flatnonzero(found.problems == _UNDECIDED)
    found.problems[rows] = _SHORT
    rows = rows[ends[rows] - starts[rows] >= _PREFIX_BYTES]
    is_framed = data[starts[rows]] == _ID_MAGIC
    framed: npt.NDArray[np.int64] = rows[is_framed]
    others = rows[~is_framed]
    found.problems[others] = _kinds_of_other_frames(data, starts[others], ends[others])
    found.problems[framed] = _FRAMED
    id_bytes = data[starts[framed, None] + np.arange(1, _PREFIX_BYTES)]
    ids, inverse = np.unique(id_bytes.view(">i4").ravel().astype(np.int32), return_inverse=True)
    # Names of headers may be there already.
    found.numbers[framed] = len(names) + inverse
    names.update(
        {SchemaName(schema_id): len(names) + number for number, schema_id in enumerate(ids.tolist())}
    )
    return framed


def _kinds_of_other_frames(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int8]:
    first, second = data[starts], data[starts + 1]
    is_glue = (first == 3) & np.isin(second, _GLUE_COMPRESSIONS) & (ends - starts >= _GLUE_FRAME_BYTES)  # noqa: PLR2004
    is_single_object = (first == 0xC3) & (second == 1)  # noqa: PLR2004
    kinds = np.full(len(starts), _OTHER, np.int8)
    kinds[is_single_object] = _SINGLE_OBJECT
    kinds[is_glue] = _GLUE
    return kinds


def _read_headers(
    headers: pa.ListArray, header_name: str, names: dict[SchemaName, int], found: _Found
) -> None:
    """Read the headers that decide about records. One whose value is null does not, as in Java."""
    rows = pc.list_parent_indices(headers).to_numpy()
    items = pc.list_flatten(headers)
    keys = pc.struct_field(items, "key")
    found.problems[rows[_matches(pc.is_in(keys, pa.array(_apicurio_names(header_name))))]] = _APICURIO
    named = _matches(pc.equal(keys, header_name))
    # The last one of a record.
    named = named[np.diff(rows[named], append=-1) != 0]
    values = pc.struct_field(items, "value").take(pa.array(named)).dictionary_encode()
    table = np.array([_number_of(value, names) for value in values.dictionary.to_pylist()], np.int64)
    decided = rows[named][np.asarray(values.is_valid())]
    numbers = table[np.asarray(values.indices.drop_null())]
    found.numbers[decided] = numbers
    found.problems[decided] = np.where(numbers == NO_FRAME, _BAD_HEADER, _FRAMED)


def _matches(mask: pa.BooleanArray) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.asarray(mask.fill_null(False)))


def _apicurio_names(header_name: str) -> list[str]:
    column = "key" if header_name == KEY_HEADER else "value"
    return [f"apicurio.{column}.{what}" for what in _APICURIO_HEADERS]


def _number_of(header: bytes, names: dict[SchemaName, int]) -> int:
    """Return the number of the name in a header.

    Returns:
        The number, of a new name if need be; `NO_FRAME` if the header does not name a schema.
    """
    if len(header) >= _GUID_FRAME_BYTES and header[0] == _GUID_MAGIC:
        guid = str(uuid.UUID(bytes=header[1:_GUID_FRAME_BYTES]))
        name = SchemaName(None, guid, header[_GUID_FRAME_BYTES:])
    elif len(header) >= _PREFIX_BYTES and header[0] == _ID_MAGIC:
        schema_id = int.from_bytes(header[1:_PREFIX_BYTES], "big", signed=True)
        name = SchemaName(schema_id, None, header[_PREFIX_BYTES:])
    else:
        return NO_FRAME
    return names.setdefault(name, len(names))


def message_path(data: bytes) -> tuple[int, ...] | None:
    """Read the path of a message type from the end of a header.

    Returns:
        The path; None if it cannot be read.
    """
    read = _read_path(np.frombuffer(data, np.uint8), 0, len(data))
    return None if read is None else read[0]


def message_indexes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> MessageIndexes:
    """Read the path of the message type that each Protobuf payload begins with.

    Args:
        data: The bytes that the positions are in.
        starts: Where each payload begins, behind the id.
        ends: Where it ends.
    """
    paths: dict[tuple[int, ...], int] = {}
    numbers = np.full(len(starts), NO_FRAME, np.int64)
    new_starts = starts.copy()
    errors = []
    remaining, rounds = np.arange(len(starts)), 0
    while len(remaining):
        row = int(remaining[0])
        start = int(starts[row])
        read = _read_path(data, start, int(ends[row]))
        if read is None:
            errors.append(RowError(row, "malformed", "the indexes of the message type cannot be read"))
            remaining = remaining[1:]
            continue
        path, position = read
        rounds += 1
        if rounds > _MOST_ROUNDS:
            # A file has few message types. With many, the work stays in proportion.
            same, remaining = remaining[:1], remaining[1:]
        else:
            is_same = _begin_with(data[start:position], Payloads(data, starts[remaining], ends[remaining]))
            same, remaining = remaining[is_same], remaining[~is_same]
        numbers[same] = paths.setdefault(path, len(paths))
        new_starts[same] += position - start
    return MessageIndexes(list(paths), numbers, new_starts, errors)


def _begin_with(expected: npt.NDArray[np.uint8], payloads: Payloads) -> npt.NDArray[np.bool_]:
    """Tell which payloads begin with the bytes of a path. Varints end themselves, so their path is the same."""
    data, starts, ends = payloads
    rows = np.flatnonzero(ends - starts >= len(expected))
    found = data[starts[rows, None] + np.arange(len(expected))]
    is_same = np.zeros(len(starts), np.bool_)
    is_same[rows] = (found == expected).all(axis=1)
    return is_same


def _read_path(data: npt.NDArray[np.uint8], position: int, end: int) -> tuple[tuple[int, ...], int] | None:
    """Read a path: the number of its indexes, then the indexes, as zigzag varints.

    Returns:
        The path, and the position behind it; None if it ends early, is longer than any file's, or has a negative index.
    """
    count = _read_index(data, position, end)
    if count is None or count[0] > _MOST_INDEXES:
        return None
    remaining, position = count
    if remaining == 0:
        return (0,), position
    path = []
    for _ in range(remaining):
        index = _read_index(data, position, end)
        if index is None:
            return None
        path.append(index[0])
        position = index[1]
    return tuple(path), position


def _read_index(data: npt.NDArray[np.uint8], position: int, end: int) -> tuple[int, int] | None:
    """Read a zigzag varint of 32 bits.

    Returns:
        The number, and the position behind it; None if it is negative or too long, or ends early.
    """
    number = 0
    for shift in range(min(end - position, _LONGEST_VARINT_BYTES)):
        byte = int(data[position + shift])
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004
            is_index = number % 2 == 0 and number < 1 << 32
            return (number >> 1, position + shift + 1) if is_index else None
    return None
