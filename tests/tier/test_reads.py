"""Tiers read as the log directories that they were made of."""

from __future__ import annotations

import pytest

import storage_core
from storage_core.check.verify import plan_verification, verify
from storage_core.filesystem import FileSystem
from storage_core.options import options_of, parse_stream_options
from storage_core.scan.read import read_task
from storage_core.scan.spans import project, record_schema
from storage_core.scan.stream import MicroBatchPlanner
from storage_core.tier import TierFileSystem
from tests.filesystem.counted_store import CountedStore
from tests.tier.conftest import read
from tests.tier.uploads import KINDS, put_aiven, put_local, upload, uploads_of


@pytest.fixture(params=["local", *KINDS])
def tier(request, tmp_path, source, public_key):
    end_offset = storage_core.read_table(str(source), view="partitions")["logEndOffset"][0].as_py()
    for each in uploads_of(source / "orders-0", end_offset):
        if request.param == "local":
            put_local(tmp_path, each)
        else:
            put_aiven(tmp_path, each, request.param, public_key=public_key)
    return tmp_path


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_rows_are_those_of_the_log_that_was_uploaded(tier, source, key_file, isolation_level):
    options = {"isolation_level": isolation_level, "include_headers": True}
    expected = storage_core.read_table(str(source), **options)
    assert expected.num_rows
    assert read(tier, key_file, **options).equals(expected)


def test_verify_finds_nothing_in_a_tier(tier, key_file):
    filesystem = TierFileSystem(FileSystem(), key_file)
    plan = plan_verification(filesystem, options_of([str(tier)], {}), is_deep=True)
    report = verify(filesystem, plan)
    assert [finding for partition in report.partitions for finding in partition.findings] == []
    assert sum(report.counts.values()) == 0


@pytest.mark.parametrize("put", [put_aiven, put_local])
@pytest.mark.parametrize("store", [FileSystem, CountedStore])
def test_a_stream_sees_the_segments_that_are_uploaded(tmp_path, put, store):
    put(tmp_path, upload(0, 50))
    base = FileSystem() if store is FileSystem else store(tmp_path)
    filesystem = TierFileSystem(base)
    raw = {
        "path": str(tmp_path),
        "starting_offsets": "earliest",
        "ending_at": "logEnd",
        "poll_interval": "0 s",
    }
    stream = MicroBatchPlanner(filesystem, parse_stream_options(raw))
    start = stream.initial_offsets()
    assert stream.latest_offsets(start) == {("orders", 0): 50}
    put(tmp_path, upload(50, 90))
    filesystem.forget_listings()
    end = stream.latest_offsets({("orders", 0): 50})
    assert end == {("orders", 0): 90}
    schema = project(record_schema(), ("offset",))
    read = (
        batch
        for task in stream.plan({("orders", 0): 50}, end).tasks
        for batch in read_task(TierFileSystem(base), task, schema)
    )
    assert [offset for batch in read for offset in batch["offset"].to_pylist()] == list(range(50, 90))
