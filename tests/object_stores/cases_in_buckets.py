"""Cases of the conformance suite in a bucket of any server: uploaded, and read in some of the ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from conformance.archives import unpack_case
from conformance.case_under_test import CaseUnderTest
from conformance.rules import rules_of
from conformance.ways import s3

if TYPE_CHECKING:
    import os
    from collections.abc import Set as AbstractSet
    from pathlib import Path

# Transactions, a compacted log, damage, a torn tail, an old format, several leader epochs.
CASES = ("txn", "compact-txn", "corrupt-middle", "torn-tail", "magic1", "leader-epochs")
COLUMNS = frozenset({"table", "committed", "offsets", "lookups", "topics", "errors"})


class AnyBucket(Protocol):
    """A bucket that takes a directory."""

    @property
    def storage_options(self) -> dict[str, str]: ...
    def put_tree(self, directory: str | os.PathLike[str], prefix: str) -> str: ...


def upload_case(bucket: AnyBucket, name: str, scratch: Path) -> CaseUnderTest:
    """Upload a case; return it as it is read from there."""
    logs, expected = unpack_case(name, scratch / name)
    uri = bucket.put_tree(logs, f"{name}/logs")
    return CaseUnderTest(name, logs, expected, scratch).in_bucket(uri, bucket.storage_options)


def check_case(case: CaseUnderTest, columns: AbstractSet[str] = COLUMNS) -> None:
    """Read it in those ways of these columns that apply and need no Spark."""
    for way in s3.WAYS:
        is_asked_for = way.session is None and way.name.partition(" ")[0] in columns
        if is_asked_for and way.applies(rules_of(case.name)):
            way.run(case)
    assert case.checks >= len(columns)
