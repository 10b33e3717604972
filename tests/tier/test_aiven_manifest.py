"""Manifests of Aiven's plugin: their vectors, and what is wrong in them."""

from __future__ import annotations

import base64
import copy
import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptCheckpointError
from storage_core.record.compression import UndecodableError
from storage_core.tier.aiven_manifest import decode_chunk_sizes, parse_manifest
from storage_core.tier.chunks import unzstd
from tests.examples import examples
from tests.tier.uploads import TOPIC_ID, chunk_sizes

# As a plugin of release 1.0.0 wrote it, but for ids and the wrapped key.
MANIFEST = {
    "version": "1",
    "chunkIndex": {
        "type": "variable",
        "originalChunkSize": 262144,
        "originalFileSize": 1041946,
        "transformedChunks": "KLUv/SAQgQAAAAAABAAAwIcBLAAHAAC7vA==",
    },
    "segmentIndexes": {
        "offset": {"position": 0, "size": 564},
        "timestamp": {"position": 564, "size": 112},
        "producerSnapshot": {"position": 676, "size": 84},
        "leaderEpoch": {"position": 760, "size": 36},
        "transaction": {"position": 796, "size": 96},
    },
    "compression": True,
    "encryption": {"dataKey": "key1:AAAA", "aad": "mktF4iVD26f8VoDxe6+A5cCbu3iithj17OekjIY/Qd0="},
    "remoteLogSegmentMetadata": {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": TOPIC_ID,
                "topicPartition": {"topic": "txn", "partition": 0},
            },
            "id": "c7WyEf0NReKtfNQIgMhLrg",
        },
        "startOffset": 150,
        "endOffset": 1184,
        "maxTimestampMs": 1795324155750,
        "brokerId": 1,
        "eventTimestampMs": 1795324156173,
        "segmentLeaderEpochs": {"0": 150},
        "txnIdxEmpty": False,
    },
}


def changed(path, value):
    """Return the manifest with one field replaced, or without it."""
    manifest = copy.deepcopy(MANIFEST)
    *parents, name = path.split(".")
    fields = manifest
    for parent in parents:
        fields = fields[parent]
    if value is None:
        del fields[name]
    else:
        fields[name] = value
    return json.dumps(manifest).encode()


def test_a_manifest_says_what_the_segment_holds_and_where():
    manifest = parse_manifest(json.dumps(MANIFEST).encode(), "m")
    assert (manifest.topic, manifest.partition, manifest.topic_id) == ("txn", 0, TOPIC_ID)
    assert (manifest.base_offset, manifest.end_offset) == (150, 1185)
    assert [(entry.epoch, entry.start_offset) for entry in manifest.epochs] == [(0, 150)]
    assert list(manifest.log.borders) == [0, 49331, 98618, 147912, 195972]
    assert [manifest.log.original_bytes(number) for number in range(4)] == [262144, 262144, 262144, 255514]
    assert list(manifest.parts["transaction"].borders) == [796, 892]
    assert manifest.parts["transaction"].file_bytes == 68
    assert manifest.encryption.key_id == "key1"
    assert len(manifest.encryption.aad) == 32


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ("00000000", []),
        ("0000000100000007", [7]),
        ("000000020000000a010000000014", [10, 20]),
        ("00000004000100f1012a002d000042bb", [65819, 65777, 65822, 17083]),
    ],
)
def test_the_lengths_of_chunks_decode_as_the_plugin_encodes_them(data, sizes):
    assert list(decode_chunk_sizes(bytes.fromhex(data))) == sizes


def test_a_chunk_index_is_a_zstd_frame_in_base64():
    frame = base64.b64decode("KLUv/SAQgQAAAAAABAAAwC0BSwALAAC7Qg==")
    assert list(decode_chunk_sizes(unzstd(memoryview(frame), 4, 100))) == [49272, 49197, 49208, 47938]


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40))
def test_lengths_of_any_width_decode(sizes):
    assert list(decode_chunk_sizes(chunk_sizes(sizes))) == sizes


@examples(400)
@given(st.binary(max_size=40))
def test_other_bytes_are_lengths_or_an_error(data):
    try:
        sizes = decode_chunk_sizes(data)
    except UndecodableError:
        return
    assert len(sizes) <= len(data)


@pytest.mark.cases(60, 60)
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", None),
        ("version", "2"),
        ("version", 1),
        ("chunkIndex", None),
        ("chunkIndex", []),
        ("chunkIndex.type", "other"),
        ("chunkIndex.originalChunkSize", 0),
        ("chunkIndex.originalChunkSize", -1),
        ("chunkIndex.originalChunkSize", 1),
        ("chunkIndex.originalChunkSize", 262144.0),
        ("chunkIndex.originalChunkSize", True),
        ("chunkIndex.originalChunkSize", 10**400),
        ("chunkIndex.originalChunkSize", 2**31 - 1),
        ("chunkIndex.originalFileSize", 2**31),
        ("chunkIndex.originalFileSize", "1041946"),
        ("chunkIndex.originalFileSize", 2**31 - 1),
        ("chunkIndex.transformedChunks", "????"),
        ("chunkIndex.transformedChunks", "AAAAA"),
        ("chunkIndex.transformedChunks", ""),
        ("chunkIndex.transformedChunks", base64.b64encode(zstandard.compress(bytes(1 << 30))).decode()),
        (
            "chunkIndex.transformedChunks",
            base64.b64encode(zstandard.compress(chunk_sizes([0, 1, 2, 3]))).decode(),
        ),
        ("segmentIndexes", None),
        ("segmentIndexes.offset", 7),
        ("segmentIndexes.offset.position", -1),
        ("segmentIndexes.offset.size", 2**31),
        ("segmentIndexes.offset.size", 28),
        ("segmentIndexes.offset.size", 1),
        ("compression", None),
        ("compression", "true"),
        ("compression", False),
        ("encryption", "key1:AAAA"),
        ("encryption.dataKey", "AAAA"),
        ("encryption.dataKey", "key1:"),
        ("encryption.dataKey", "key1:A"),
        ("encryption.aad", None),
        ("encryption.aad", "A" * 4000),
        ("remoteLogSegmentMetadata", None),
        ("remoteLogSegmentMetadata.startOffset", 1185),
        ("remoteLogSegmentMetadata.startOffset", -1),
        ("remoteLogSegmentMetadata.startOffset", 151),
        ("remoteLogSegmentMetadata.endOffset", 2**63),
        ("remoteLogSegmentMetadata.endOffset", 149),
        ("remoteLogSegmentMetadata.maxTimestampMs", "never"),
        ("remoteLogSegmentMetadata.eventTimestampMs", -1),
        ("remoteLogSegmentMetadata.segmentLeaderEpochs", {}),
        ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"x": 150}),
        ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"-1": 150}),
        ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"4294967296": 150}),
        ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"0": 150, "1": 150}),
        ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"1": 150, "0": 160}),
        ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"0": 150, "1": 1185}),
        ("remoteLogSegmentMetadata.remoteLogSegmentId.id", "../../../etc/passwd..."),
        ("remoteLogSegmentMetadata.remoteLogSegmentId.topicIdPartition.topicId", "../../secrets/aaaaaaaa"),
        ("remoteLogSegmentMetadata.remoteLogSegmentId.topicIdPartition.topicPartition.topic", "../x"),
        ("remoteLogSegmentMetadata.remoteLogSegmentId.topicIdPartition.topicPartition.partition", 2**31),
    ],
)
def test_a_field_that_cannot_be_is_an_error(path, value):
    with pytest.raises(CorruptCheckpointError) as caught:
        parse_manifest(changed(path, value), "some/manifest")
    assert "some/manifest" in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"version":' * 50_000, b"1" * 10_000]
)
def test_what_is_no_manifest_is_an_error(data):
    with pytest.raises(CorruptCheckpointError):
        parse_manifest(data, "some/manifest")


def test_a_wrapped_key_is_in_no_representation():
    assert "AAAA" not in repr(parse_manifest(json.dumps(MANIFEST).encode(), "m")).replace(TOPIC_ID, "")
