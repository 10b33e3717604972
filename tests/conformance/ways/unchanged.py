"""Reading leaves no trace: runs last, and compares every file with what was unpacked."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from conformance.archives import fingerprint
from conformance.rules import READ_UNCOMMITTED
from conformance.ways.way import Way
from storage_core.errors import SegmentLogError

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest


def _unchanged(case: CaseUnderTest) -> None:
    """Content and modification time of each file, and no file more or less."""
    with suppress(SegmentLogError):  # a read that fails must leave no trace either
        case.read({}, READ_UNCOMMITTED)
    after = fingerprint(case.logs)
    for name in sorted(case.fingerprint | after):
        case.check_equal(
            after.get(name), case.fingerprint.get(name), f"(modification time, SHA-256) of {name}"
        )


WAYS = (Way("unchanged", "hash and time of every file", _unchanged),)
