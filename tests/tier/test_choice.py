"""Which uploads make up a log: incomplete, repeated and overlapping ones, and those of another history."""

from __future__ import annotations

import logging

import pytest

from storage_core.errors import CorruptCheckpointError, CorruptRecordError, warn_once
from storage_core.filesystem import FileSystem
from storage_core.tier import TierFileSystem
from tests.tier.conftest import values_of
from tests.tier.uploads import put_aiven, put_local, upload

PUT = {"aiven": put_aiven, "local": put_local}


@pytest.fixture(params=sorted(PUT))
def put(request, tmp_path):
    warn_once.cache_clear()
    return lambda each: PUT[request.param](tmp_path, each)


def rows(*pieces):
    """Return the rows of ranges of offsets, and the leaders that wrote them."""
    return [
        (offset, b"%s%d" % (value, offset)) for start, end, value in pieces for offset in range(start, end)
    ]


def test_segments_of_another_leader_overlap_and_no_offset_is_read_twice(put, tmp_path):
    put(upload(0, 50))
    put(upload(50, 100))
    put(upload(80, 160, epochs=((0, 0), (1, 120)), epoch=1))
    put(upload(160, 200, epochs=((0, 0), (1, 120)), epoch=1))
    assert values_of(tmp_path) == rows((0, 200, b"v"))


def test_a_repeated_upload_is_read_once(put, tmp_path):
    put(upload(0, 50))
    put(upload(0, 50, segment_id="A" * 22))
    put(upload(50, 100))
    assert values_of(tmp_path) == rows((0, 100, b"v"))


def test_a_longer_upload_replaces_one_that_it_covers(put, tmp_path):
    put(upload(0, 50))
    put(upload(0, 100, epochs=((0, 0), (1, 60)), epoch=1))
    put(upload(20, 40))
    assert values_of(tmp_path) == rows((0, 100, b"v"))


def test_records_of_a_history_that_was_given_up_are_not_read(put, tmp_path):
    put(upload(0, 60))
    # Written by leader 0 after it was cut off; leader 1 went on from 90.
    put(upload(60, 110, value=b"old"))
    put(upload(110, 150, value=b"lost"))
    put(upload(60, 160, epochs=((0, 0), (1, 90)), epoch=1, value=b"new"))
    put(upload(160, 180, epochs=((0, 0), (1, 90)), epoch=1, value=b"new"))
    assert values_of(tmp_path) == rows((0, 60, b"v"), (60, 180, b"new"))


def test_a_history_that_was_given_up_ends_where_the_next_leader_began(put, tmp_path):
    put(upload(0, 60))
    put(upload(60, 110, epochs=((0, 0), (1, 60)), epoch=1, value=b"old"))
    put(upload(110, 150, epochs=((0, 0), (1, 60)), epoch=1, value=b"old"))
    put(upload(80, 140, epochs=((0, 0), (2, 80)), epoch=2, value=b"new"))
    assert values_of(tmp_path)[:60] == rows((0, 60, b"v"))
    assert [row for row in values_of(tmp_path) if row[0] >= 80] == rows((80, 140, b"new"))


def test_leader_epochs_are_those_of_the_newest_history(put, tmp_path):
    put(upload(0, 60))
    put(upload(60, 110, epochs=((0, 0), (1, 60)), epoch=1))
    put(upload(60, 140, epochs=((0, 0), (3, 60), (4, 100)), epoch=3))
    filesystem = TierFileSystem(FileSystem())
    filesystem.list_directory(str(tmp_path))
    assert (
        filesystem.read_file(f"{tmp_path}/orders-0/leader-epoch-checkpoint", 100)
        == b"0\n3\n0 0\n3 60\n4 100\n"
    )


@pytest.mark.parametrize("lost", ["rsm-manifest", "log", "indexes"])
def test_an_incomplete_upload_is_left_out_and_logged_once(tmp_path, caplog, lost):
    warn_once.cache_clear()
    put_aiven(tmp_path, upload(0, 50))
    path = put_aiven(tmp_path, upload(50, 100))
    path.with_suffix(f".{lost}").unlink()
    for _ in range(2):
        assert values_of(tmp_path) == rows((0, 50, b"v"))
    logged = [record for record in caplog.records if "not complete" in record.message]
    assert len(logged) == 1
    assert path.stem in logged[0].message


def test_an_object_of_another_size_is_not_complete(tmp_path, caplog):
    warn_once.cache_clear()
    put_aiven(tmp_path, upload(0, 50))
    path = put_aiven(tmp_path, upload(50, 100))
    put_aiven(tmp_path, upload(100, 150))
    path.write_bytes(path.read_bytes()[:-1])
    assert values_of(tmp_path) == rows((0, 50, b"v"), (100, 150, b"v"))
    assert any(
        "offsets 50 to 99" in record.message for record in caplog.records if record.levelno >= logging.WARNING
    )


@pytest.mark.parametrize("lost", ["index", "timeindex", "leader_epoch_checkpoint", "log"])
def test_a_segment_of_local_storage_needs_its_indexes(tmp_path, lost):
    put_local(tmp_path, upload(0, 50))
    path = put_local(tmp_path, upload(50, 100))
    path.with_suffix(f".{lost}").unlink()
    assert values_of(tmp_path) == rows((0, 50, b"v"))


def test_a_partition_of_incomplete_uploads_alone_is_empty(tmp_path):
    put_aiven(tmp_path, upload(0, 50)).unlink()
    assert values_of(tmp_path) == []


def test_a_manifest_of_another_segment_is_an_error(tmp_path):
    path = put_aiven(tmp_path, upload(0, 50)).with_suffix(".rsm-manifest")
    other = put_aiven(tmp_path, upload(50, 100)).with_suffix(".rsm-manifest")
    path.write_bytes(other.read_bytes())
    with pytest.raises(CorruptCheckpointError, match="Expected the manifest of") as caught:
        values_of(tmp_path)
    assert caught.value.path == str(path)


def test_of_two_topics_with_one_name_the_later_one_is_shown(tmp_path, caplog):
    warn_once.cache_clear()
    put_aiven(tmp_path, upload(0, 50, value=b"old"))
    put_aiven(
        tmp_path,
        upload(0, 20, value=b"new", uploaded_ms=1_800_000_000_000),
        topic_id="BBBBBBBBBBBBBBBBBBBBBQ",
    )
    assert values_of(tmp_path) == rows((0, 20, b"new"))
    assert any("later topic" in record.message for record in caplog.records)


def test_a_snapshot_is_that_of_the_producers_at_the_end_of_its_segment(tmp_path):
    for start in (0, 50):
        each = upload(start, start + 50)
        put_aiven(tmp_path, each.__class__(start, start + 50, {**each.files, "snapshot": b"s%d" % start}))
    filesystem = TierFileSystem(FileSystem())
    filesystem.list_directory(str(tmp_path))
    assert filesystem.read_file(f"{tmp_path}/orders-0/{50:020d}.snapshot", 10) == b"s0"
    assert filesystem.read_file(f"{tmp_path}/orders-0/{100:020d}.snapshot", 10) == b"s50"


def test_an_epoch_that_the_log_does_not_have_ends_no_history(put, tmp_path):
    put(upload(0, 50, epochs=((7, 0),)))
    put(upload(50, 100))
    with pytest.raises(CorruptCheckpointError, match="Expected batches of leader epoch 7"):
        values_of(tmp_path)


def test_the_last_batch_of_a_tier_is_no_torn_append(put, tmp_path):
    put(upload(0, 50))
    path = put(upload(50, 100))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptRecordError):
        values_of(tmp_path)


def test_the_epochs_of_a_log_that_starts_within_a_segment(put, tmp_path):
    """DeleteRecords shortens the first epoch in the checkpoint that is uploaded, and not the segment."""
    put(upload(30, 60, epochs=((2, 33),), epoch=2))
    put(upload(60, 90, epochs=((2, 33),), epoch=2))
    assert values_of(tmp_path) == rows((30, 90, b"v"))
