"""Reads through az:// and gs://, from Azurite and from fake-gcs-server; see CONTRIBUTING.md for what fetches them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.object_stores.cases_in_buckets import CASES, check_case, upload_case
from tests.object_stores.other_stores import Azurite, FakeGcs
from tests.object_stores.served import ServedBucket

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.versions


@pytest.fixture(scope="module", params=[(Azurite(), "npm"), (FakeGcs(), "go")], ids=["az", "gs"])
def other(request, tmp_path_factory) -> Iterator[ServedBucket]:
    served, tool = request.param
    if not shutil.which(tool):
        pytest.skip(f"NOT TESTED: {served.scheme}://, because {tool} is not there, which fetches its server")
    with ServedBucket(served, tmp_path_factory.mktemp(served.scheme)) as bucket:
        yield bucket


@pytest.mark.cases(len(CASES) * 2, len(CASES) * 2)
@pytest.mark.parametrize("case", CASES)
def test_a_case_is_read_as_from_a_disk(other, case, tmp_path):
    check_case(upload_case(other, case, tmp_path))
