"""The manifest of one segment in Aiven's tiered storage: what the segment holds, and where its parts lie.

Aiven's plugin uploads three objects per segment, the manifest last, so that it marks a complete upload:

    <base offset>-<segment id>.log            the log file, in chunks that were compressed and encrypted one by one
    <base offset>-<segment id>.indexes        its indexes, one after the other, encrypted but never compressed
    <base offset>-<segment id>.rsm-manifest   JSON

The chunk index says how long each transformed chunk is. Of type ``fixed``, all but the last have the same length. Of
type ``variable``, ``transformedChunks`` is base64 of a zstd frame with big-endian integers:

    count int32; if it is 2 or more: least int32, width uint8, and count - 1 lengths minus the least one, each of that
    width; if it is 1 or more: the length of the last chunk, int32

Source: ``SegmentManifestV1``, ``FixedSizeChunkIndex`` and ``VariableSizeChunkIndex`` of
Aiven-Open/tiered-storage-for-apache-kafka, 1.0.0.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.checkpoint import EpochEntry, is_topic_id
from storage_core.commit_files.json_fields import JsonFields, parse_json_object
from storage_core.config import INT_MAX, LONG_MAX
from storage_core.record.compression import UndecodableError
from storage_core.tier.chunks import ENCRYPTION_BYTES, Chunks, unzstd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_MANIFEST_BYTES: Final = 8 << 20
# A segment of 2 GiB in chunks of 2 KiB has as many. Aiven's documents propose chunks of 4 MiB.
_MAX_CHUNKS: Final = 1 << 20
# A transformed chunk is decoded as a whole.
_MAX_CHUNK_BYTES: Final = 256 << 20
_MAX_AAD_BYTES: Final = 1024
_HEAD_BYTES: Final = 9
_INT32_BYTES: Final = 4
_VERSION: Final = re.compile("1")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_DATA_KEY: Final = re.compile(r"([^:]{1,256}):([A-Za-z0-9+/]+={0,2})")
_EPOCH: Final = re.compile(r"[0-9]{1,10}")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_CHUNK_INDEX_TYPE: Final = re.compile("fixed|variable")
_PARTS: Final = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")


class Encryption(NamedTuple):
    """How a segment's data key is wrapped, and the data that authenticates its chunks."""

    key_id: str
    wrapped_key: bytes
    aad: bytes


@dataclass(frozen=True, slots=True, eq=False)
class SegmentManifest:
    """The content of a manifest.

    Attributes:
        end_offset: The offset after the last one.
        max_timestamp_ms: That of transaction markers counts; -1 without timestamps.
        epochs: The leader epochs inside, ascending. The first one may have begun before the segment.
        log: The chunks of the log file.
        parts: The indexes by the manifest's names, each a chunk of the object ``.indexes``.
    """

    topic: str
    partition: int
    topic_id: str
    segment_id: str
    base_offset: int
    end_offset: int
    max_timestamp_ms: int
    uploaded_ms: int
    epochs: tuple[EpochEntry, ...]
    log: Chunks
    parts: Mapping[str, Chunks]
    encryption: Encryption | None = field(repr=False)


def parse_manifest(data: bytes, path: str) -> SegmentManifest:
    """Parse a manifest, and check every field of it.

    Raises:
        CorruptCheckpointError: It is not a manifest of version 1, or its fields contradict each other.
    """
    fields = parse_json_object(data, path)
    fields.text("version", _VERSION, "'1', the only known version,")
    encryption = None if fields.is_null("encryption") else _encryption(_object(fields, "encryption"))
    segment = _object(fields, "remoteLogSegmentMetadata")
    identity = _object(segment, "remoteLogSegmentId")
    id_partition = _object(identity, "topicIdPartition")
    topic, partition = _object(id_partition, "topicPartition").topic_partition()
    if not is_topic_id(id_partition.values.get("topicId")):
        raise id_partition.error("topicId", "a topic id")
    base_offset = segment.integer("startOffset", maximum=LONG_MAX - 1)
    end_offset = 1 + segment.integer("endOffset", minimum=base_offset, maximum=LONG_MAX - 1)
    added_bytes = 0 if encryption is None else ENCRYPTION_BYTES
    return SegmentManifest(
        topic=topic,
        partition=partition,
        topic_id=id_partition.values["topicId"],
        segment_id=identity.text("id", _ID, "a segment id"),
        base_offset=base_offset,
        end_offset=end_offset,
        max_timestamp_ms=segment.integer("maxTimestampMs", minimum=-1),
        uploaded_ms=segment.integer("eventTimestampMs"),
        epochs=_epochs(segment, base_offset, end_offset),
        log=_log_chunks(_object(fields, "chunkIndex"), added_bytes, is_compressed=fields.flag("compression")),
        parts=_parts(_object(fields, "segmentIndexes"), added_bytes),
        encryption=encryption,
    )


def _object(fields: JsonFields, name: str) -> JsonFields:
    value = fields.values.get(name)
    if not isinstance(value, dict):
        raise fields.error(name, "an object")
    return JsonFields(value, fields.path)


def _encryption(fields: JsonFields) -> Encryption:
    match = _DATA_KEY.fullmatch(fields.text("dataKey", _DATA_KEY, "<key id>:<base64>"))
    aad = _base64(fields, "aad", fields.text("aad", _BASE64, "base64"))
    if match is None or len(aad) > _MAX_AAD_BYTES:
        raise fields.error("aad", f"at most {_MAX_AAD_BYTES} bytes")
    return Encryption(match[1], _base64(fields, "dataKey", match[2]), aad)


def _base64(fields: JsonFields, name: str, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text)
    except binascii.Error as error:
        raise fields.error(name, "base64") from error


def _epochs(segment: JsonFields, base_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
    name = "segmentLeaderEpochs"
    found = _object(segment, name)
    if not all(_EPOCH.fullmatch(epoch) and int(epoch) <= INT_MAX for epoch in found.values):
        raise segment.error(name, "leader epochs and the offsets at which they begin")
    epochs = [
        EpochEntry(int(epoch), found.integer(epoch, minimum=base_offset, maximum=end_offset - 1))
        for epoch in sorted(found.values, key=int)
    ]
    starts = [entry.start_offset for entry in epochs]
    if not starts or starts != sorted(set(starts)):
        raise segment.error(name, f"epochs with ascending offsets from {base_offset} on")
    # A log start within the segment has shortened the first one.
    return EpochEntry(epochs[0].epoch, base_offset), *epochs[1:]


def _parts(fields: JsonFields, added_bytes: int) -> Mapping[str, Chunks]:
    """Return the indexes that a segment has. An empty one is stored as nothing, even if encrypted."""
    parts = {}
    for name in _PARTS:
        if not fields.is_null(name):
            place = _object(fields, name)
            start_bytes = place.integer("position", maximum=INT_MAX)
            size_bytes = place.integer("size", maximum=INT_MAX)
            file_bytes = max(size_bytes - added_bytes, 0)
            if not file_bytes and size_bytes:
                raise place.error("size", f"0, or more than {added_bytes}")
            parts[name] = Chunks.of_sizes(file_bytes, file_bytes, [size_bytes], start_bytes=start_bytes)
    return parts


def _log_chunks(fields: JsonFields, added_bytes: int, *, is_compressed: bool) -> Chunks:
    kind = fields.text("type", _CHUNK_INDEX_TYPE, "'fixed' or 'variable'")
    chunk_bytes = fields.integer("originalChunkSize", minimum=1, maximum=INT_MAX)
    file_bytes = fields.integer("originalFileSize", maximum=INT_MAX)
    count = -(-file_bytes // chunk_bytes)
    is_decoded = is_compressed or added_bytes > 0
    if count > _MAX_CHUNKS or (is_decoded and min(chunk_bytes, file_bytes) > _MAX_CHUNK_BYTES):
        raise fields.error("originalChunkSize", f"at most {_MAX_CHUNKS} chunks of {_MAX_CHUNK_BYTES} bytes")
    if kind == "variable":
        sizes: Sequence[int] = _variable_sizes(fields, count)
    else:
        size_bytes = fields.integer("transformedChunkSize", maximum=INT_MAX)
        sizes = ([size_bytes] * count)[1:]
        sizes += [fields.integer("finalTransformedChunkSize", maximum=INT_MAX)] if count else []
    chunks = Chunks.of_sizes(chunk_bytes, file_bytes, sizes, is_compressed=is_compressed)
    for number, size_bytes in enumerate(sizes):
        original_bytes = size_bytes - added_bytes
        is_possible = 0 < original_bytes <= 2 * _MAX_CHUNK_BYTES
        if not (is_possible if is_compressed else original_bytes == chunks.original_bytes(number)):
            raise fields.error("originalChunkSize", f"chunks that can have become {size_bytes} bytes")
    return chunks


def _variable_sizes(fields: JsonFields, count: int) -> Sequence[int]:
    name = "transformedChunks"
    frame = _base64(fields, name, fields.text(name, _BASE64, "base64"))
    most_bytes = _HEAD_BYTES + _INT32_BYTES * (count + 1)
    try:
        sizes = decode_chunk_sizes(unzstd(memoryview(frame), _INT32_BYTES, most_bytes))
    except UndecodableError as error:
        raise fields.error(name, f"the lengths of chunks ({error})") from error
    if len(sizes) != count:
        raise fields.error(name, f"the lengths of {count} chunks")
    return sizes


def decode_chunk_sizes(data: bytes | memoryview) -> Sequence[int]:
    """Decode the lengths of transformed chunks from the layout of a variable chunk index.

    Raises:
        UndecodableError: The bytes do not have this layout.
    """
    count = int.from_bytes(data[:_INT32_BYTES], "big")
    start, least, width = _INT32_BYTES, 0, 1
    if count > 1 and len(data) > _HEAD_BYTES:
        start, least, width = _HEAD_BYTES, int.from_bytes(data[4:8], "big"), data[8]
    end = start + width * (count - 1)
    if not 1 <= width <= _INT32_BYTES or len(data) != (end + _INT32_BYTES if count else _INT32_BYTES):
        raise UndecodableError(f"found {len(data)} bytes for {count} lengths of width {width}")
    sizes = [least + int.from_bytes(data[at : at + width], "big") for at in range(start, end, width)]
    return [*sizes, int.from_bytes(data[end:], "big")] if count else []
