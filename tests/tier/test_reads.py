"""Tiers read as the log directories that they were made of."""

from __future__ import annotations

import pytest

import storage_core
from storage_core.check.verify import plan_verification, verify
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.tier import TierFileSystem
from tests.tier.conftest import read
from tests.tier.uploads import KINDS, put_aiven, put_local, uploads_of


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
