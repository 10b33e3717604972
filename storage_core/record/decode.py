"""Decode batches: the decoder by column first, the plain one for what it does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from storage_core.errors import BatchTooLargeError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.batch_header import HEADER_SIZE_BYTES, MAGIC_V2
from storage_core.record.boundaries import UnevenRecordsError
from storage_core.record.compression import CODEC_NAMES, Decompressor, OutputFullError, UndecodableError
from storage_core.record.fields import decode_by_column
from storage_core.record.header_rows import header_rows
from storage_core.record.message_set import decode_message_sets
from storage_core.record.plain_decode import decode_one_by_one
from storage_core.record.section import PADDING_BYTES, RecordColumns, RecordSection, WantedFields
from storage_core.record.varint import MalformedVarintError
from storage_core.record.wrapper import wrapper_payload

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.record.batch_header import BatchHeader

__all__ = ["batch_section", "batch_timestamps", "decode_records", "fail_too_large", "fail_undecodable"]

# The first guess at how far a batch inflates; a wrong guess costs another attempt.
_FIRST_GUESS_FACTOR = 8
_FIRST_GUESS_MINIMUM_BYTES = 1 << 16


def decode_records(section: RecordSection, wanted: WantedFields) -> RecordColumns:
    """Decode the wanted fields of all records of a section, whose batches are all of v2 or all older.

    Raises:
        CorruptRecordError: A batch's records are not what its header and their lengths say.
    """
    if len(section.headers) and section.headers["magic"][0] < MAGIC_V2:
        return decode_message_sets(section, wanted)
    try:
        return decode_by_column(section, wanted)
    except (UnevenRecordsError, MalformedVarintError, IndexError):
        return decode_one_by_one(section, wanted)


def _decompress(payload: memoryview, header: BatchHeader, *, path: str, limit_bytes: int) -> np.ndarray:
    """Decompress the records of one batch into a padded buffer of their own.

    Raises:
        BatchTooLargeError: They inflate to more than ``limit_bytes``.
        CorruptRecordError: The codec refuses them.
    """
    guess_bytes = min(max(len(payload) * _FIRST_GUESS_FACTOR, _FIRST_GUESS_MINIMUM_BYTES), limit_bytes)
    while True:
        buffer = np.empty(guess_bytes + 1 + PADDING_BYTES, np.uint8)
        output = buffer.data[: guess_bytes + 1]
        try:
            size_bytes = Decompressor().decompress_into(header.codec, payload, output)
        except OutputFullError:
            if guess_bytes == limit_bytes:
                fail_too_large(path, header, limit_bytes)
            guess_bytes = min(guess_bytes * 4, limit_bytes)
        except UndecodableError as error:
            fail_undecodable(path, header, error)
        else:
            return buffer[: size_bytes + PADDING_BYTES]


def fail_too_large(path: str, header: BatchHeader, limit_bytes: int) -> NoReturn:
    """Raise the error for a batch that inflates beyond the limit."""
    raise BatchTooLargeError(
        f"Expected a batch to inflate to at most {limit_bytes} bytes, found more. If this batch is genuine, "
        "raise maxDecompressedBatchBytes.",
        path=path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )


def fail_undecodable(path: str, header: BatchHeader, error: UndecodableError) -> NoReturn:
    """Raise the error for a batch that its codec refuses."""
    is_unknown = header.codec >= len(CODEC_NAMES)
    codec = f"codec number {header.codec}" if is_unknown else CODEC_NAMES[header.codec]
    # Later versions may add codecs to format v2 only.
    kind = UnsupportedFormatError if is_unknown and not header.is_wrapper else CorruptRecordError
    raise kind(
        f"Expected records compressed with {codec}, but {error}. The batch's CRC is right: "
        "its writer made it so.",
        path=path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    ) from error


def batch_timestamps(
    batch: bytes | memoryview, header: BatchHeader, *, path: str, limit_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The offset and the timestamp (ms) of every record of one batch, control records included.

    Args:
        batch: The whole batch, its CRC already checked.
        header: The batch's parsed header.
        path: The file, for messages.
        limit_bytes: The most that the records may inflate to.

    Raises:
        BatchTooLargeError: They inflate to more than ``limit_bytes``.
        CorruptRecordError: They are not what the header and their lengths say.
    """
    if header.record_count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    section = batch_section(batch, header, path=path, limit_bytes=limit_bytes)
    columns = decode_records(section, WantedFields(key=False, value=False))
    assert columns.timestamps_ms is not None  # noqa: S101  (it was asked for)
    return columns.offsets, columns.timestamps_ms


def batch_section(
    batch: bytes | memoryview, header: BatchHeader, *, path: str, limit_bytes: int
) -> RecordSection:
    """Decompress one whole batch, if need be, into a section of its own; for arguments and errors see above."""
    payload = _payload(memoryview(batch), header, path)
    if header.codec:
        buffer = _decompress(payload, header, path=path, limit_bytes=limit_bytes)
    else:
        buffer = np.zeros(len(payload) + PADDING_BYTES, np.uint8)
        buffer[: len(payload)] = payload
    return RecordSection(
        buffer,
        np.zeros(1, np.int64),
        np.array([len(buffer) - PADDING_BYTES], np.int64),
        header_rows(np.frombuffer(batch, np.uint8), np.zeros(1, np.int64), header.base_offset),
        np.array([header.position_bytes], np.int64),
        path,
    )


def _payload(batch: memoryview, header: BatchHeader, path: str) -> memoryview:
    """What a batch's codec has compressed, or its records if there is no codec."""
    if header.magic == MAGIC_V2:
        return batch[HEADER_SIZE_BYTES:]
    if not header.is_wrapper:
        return batch
    try:
        return wrapper_payload(batch, header.magic, header.codec)
    except UndecodableError as error:
        fail_undecodable(path, header, error)
