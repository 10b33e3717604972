from __future__ import annotations

import json

import pytest
from crc32c import crc32c

from storage_core.commit.manifest import (
    Manifest,
    StagedBatches,
    StagedManifest,
    encode_staged,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    reported_manifest,
)
from storage_core.commit_files.stage_names import StageId
from storage_core.errors import CorruptCheckpointError
from storage_core.filesystem import FileSystem

JOB = "00112233445566778899aabbccddeeff"
STAGE = StageId(JOB, 0, 12)
PACK = f".segmentlog-stage-{JOB}-0-12"
IN_PACK = StagedBatches("t", 0, PACK, 7300, 486332, 120, 4000, 1772500000000, 1772500003999, 0x89ABCDEF)
KEEPING = StagedBatches("o.p_q-r", 2**31 - 1, PACK + "-0", 0, 100, 2, 5, -1, 0, 0, 700, 709)
TEXT = (
    '{"attempt":12,"job":"00112233445566778899aabbccddeeff","pieces":[{"batches":120,'
    f'"file":"{PACK}","fingerprint":"89abcdef","first_timestamp_ms":1772500000000,'
    '"max_timestamp_ms":1772500003999,"partition":0,"position":7300,"records":4000,"size":486332,"topic":"t"}],'
    '"task":0,"version":1}'
)


def whole(text):
    return b"%b\n%08x\n" % (text.encode(), crc32c(text.encode()))


def test_two_lines_of_json_and_its_crc():
    assert manifest_bytes(STAGE, [encode_staged(IN_PACK)]) == whole(TEXT)
    assert parse_manifest(whole(TEXT), "m") == Manifest(STAGE, (IN_PACK,))


def test_unknown_keys_are_ignored():
    later = json.loads(TEXT)
    later["more"] = later["pieces"][0]["more"] = {"x": [1]}
    assert parse_manifest(whole(json.dumps(later)), "m") == Manifest(STAGE, (IN_PACK,))


def test_pieces_that_keep_their_offsets():
    data = manifest_bytes(STAGE, map(encode_staged, (IN_PACK, KEEPING)))
    assert parse_manifest(data, "m") == Manifest(STAGE, (IN_PACK, KEEPING))
    assert KEEPING.offset_count == 10
    assert IN_PACK.offset_count == 4000


def test_no_pieces():
    assert parse_manifest(manifest_bytes(STAGE, []), "m") == Manifest(STAGE, ())


def test_where_a_piece_is():
    assert IN_PACK.suffix == ".pack"
    assert KEEPING.suffix == ".log"
    assert IN_PACK.topic_partition == ("t", 0)


def write(root, *pieces):
    """Write a manifest, and report it."""
    data = manifest_bytes(STAGE, map(encode_staged, pieces))
    (root / STAGE.manifest_name).write_bytes(data)
    return reported_manifest(STAGE, data)


def test_the_manifest_that_was_reported(tmp_path):
    reported = write(tmp_path, IN_PACK)
    assert reported == StagedManifest(PACK + ".manifest", crc32c(whole(TEXT)))
    assert read_manifest(FileSystem(), str(tmp_path), reported) == Manifest(STAGE, (IN_PACK,))


def test_a_manifest_that_is_not_there(tmp_path):
    with pytest.raises(CorruptCheckpointError, match="shared file system"):
        read_manifest(FileSystem(), str(tmp_path), StagedManifest(STAGE.manifest_name, 0))


def test_another_manifest_than_the_reported_one(tmp_path):
    reported = write(tmp_path, IN_PACK)
    write(tmp_path, IN_PACK, KEEPING)
    with pytest.raises(CorruptCheckpointError, match="Another attempt"):
        read_manifest(FileSystem(), str(tmp_path), reported)


@pytest.mark.parametrize("position", range(0, len(TEXT) + 10, 7))
def test_a_changed_byte_is_noticed(tmp_path, position):
    reported = write(tmp_path, IN_PACK)
    path = tmp_path / reported.name
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError):
        read_manifest(FileSystem(), str(tmp_path), reported)


@pytest.mark.parametrize("size", [0, 1, 10, 100, len(TEXT), len(TEXT) + 9])
def test_a_cut_manifest_is_noticed(size):
    with pytest.raises(CorruptCheckpointError):
        parse_manifest(whole(TEXT)[:size], "m")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("file", f".segmentlog-stage-{JOB}-0-13"),
        ("file", f".segmentlog-stage-{'0' * 32}-0-12"),
        ("file", f"../.segmentlog-stage-{JOB}-0-12"),
        ("file", f"{PACK}.pack"),
        ("file", "t-0"),
        ("topic", "../t"),
        ("topic", "t/0"),
        ("topic", ""),
        ("topic", "t" * 250),
        ("partition", -1),
        ("partition", 2**31),
        ("position", -1),
        ("size", 0),
        ("size", 2**31),
        ("size", 1.0),
        ("batches", 0),
        ("records", True),
        ("fingerprint", "89ABCDEF"),
        ("fingerprint", None),
        ("min_offset", -1),
        ("min_offset", 5),
    ],
)
def test_fields_that_no_attempt_writes(field, value):
    changed = json.loads(TEXT)
    changed["pieces"][0][field] = value
    with pytest.raises(CorruptCheckpointError, match=rf"{'max_offset' if value == 5 else field}"):
        parse_manifest(whole(json.dumps(changed)), "m")


def test_a_newer_version_is_refused():
    with pytest.raises(CorruptCheckpointError, match="newer release"):
        parse_manifest(whole(TEXT.replace('"version":1', '"version":2')), "m")
