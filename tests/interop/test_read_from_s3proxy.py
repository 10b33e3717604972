"""Reads from S3Proxy: an S3 that checks signatures, answers late, and lists objects some time after they were written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import storage_core
from storage_core.errors import SegmentLogError, UnreadableError
from tests.interop.clients import rows_of, wait_until
from tests.interop.conftest import sample
from tests.interop.s3proxy import EVENTUAL, SLOW, S3Proxy
from tests.object_stores.cases_in_buckets import CASES, check_case, upload_case
from tests.object_stores.served import ServedBucket

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def proxy(tmp_path_factory) -> Iterator[ServedBucket]:
    with ServedBucket(S3Proxy(), tmp_path_factory.mktemp("s3proxy")) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def slow_proxy(tmp_path_factory) -> Iterator[ServedBucket]:
    with ServedBucket(S3Proxy(SLOW), tmp_path_factory.mktemp("slow-s3proxy")) as bucket:
        yield bucket


@pytest.mark.parametrize("case", sample(CASES, 3))
def test_a_case_is_read_as_from_a_disk(proxy, case, tmp_path):
    check_case(upload_case(proxy, case, tmp_path))


@pytest.mark.parametrize("case", sample(reversed(CASES), 1))
def test_late_answers_change_nothing(slow_proxy, case, tmp_path):
    check_case(upload_case(slow_proxy, case, tmp_path), {"table", "committed"})


def test_another_secret_is_refused(proxy, tmp_path):
    case = upload_case(proxy, "txn", tmp_path)
    options = {**proxy.storage_options, "s3.secret-access-key": "not that secret"}

    with pytest.raises(UnreadableError, match="s3://") as caught:
        storage_core.read_table(case.path, storage_options=options)
    assert "not that secret" not in str(caught.value)


def test_a_listing_that_lags_gives_less_and_then_all(tmp_path):
    (tmp_path / "server").mkdir()
    with ServedBucket(S3Proxy(EVENTUAL), tmp_path / "server") as bucket:
        case = upload_case(bucket, "v2-zstd", tmp_path)
        expected = set(rows_of(storage_core.read_table(case.logs, include_headers=True)))

        def is_whole() -> bool:
            try:
                found = storage_core.read_table(case.path, include_headers=True, storage_options=case.access)
            except SegmentLogError:
                # Nothing is listed yet, or something whose neighbours are not.
                return False
            rows = set(rows_of(found))
            assert rows <= expected
            return rows == expected

        wait_until(is_whole, "The bucket never showed all that was uploaded.")
