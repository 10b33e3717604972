"""Indexes change how much is read, never what: without them, and with broken ones."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from conformance.rules import ISOLATION_LEVELS
from conformance.ways.bounds import inner_span
from conformance.ways.offsets import check_time_lookups
from conformance.ways.way import Way

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conformance.case_under_test import CaseUnderTest

_SUFFIXES = (".index", ".timeindex", ".txnindex")


def _unused(case: CaseUnderTest) -> None:
    """``useIndexes=false`` walks every header."""
    _check(case, case.path, use_indexes=False)
    check_time_lookups(case, use_indexes=False)


def _broken(case: CaseUnderTest, break_index: Callable[[Path], None]) -> None:
    """Break every index of a copy in the same manner."""
    with case.copied() as logs:
        for path in logs.rglob("*"):
            if path.suffix in _SUFFIXES and path.is_file():
                break_index(path)
        _check(case, str(logs), use_indexes=True)
        check_time_lookups(case, str(logs))


def _check(case: CaseUnderTest, path: str, *, use_indexes: bool) -> None:
    for isolation_level in ISOLATION_LEVELS:
        for span in case.spans():
            for part in (span, inner_span(case, span, isolation_level, 400, 600)):
                options = {**case.bounded(part), "use_indexes": use_indexes}
                case.check_places(options, part, isolation_level, "indexes", path)


def _delete(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _garble(path: Path) -> None:
    """Noise of the same size: the same noise in each run."""
    path.write_bytes(random.Random(path.name).randbytes(path.stat().st_size))


def _truncate(path: Path) -> None:
    """About half of it, and never a whole number of entries: those have 8, 12 or 34 bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 | 1])


WAYS = (
    Way("no index", "useIndexes=false", _unused),
    Way("bad index", "deleted", partial(_broken, break_index=_delete), is_quick=False),
    Way("bad index", "empty", partial(_broken, break_index=_empty), is_quick=False),
    Way("bad index", "zeroed", partial(_broken, break_index=_zero), is_quick=False),
    Way("bad index", "garbled", partial(_broken, break_index=_garble)),
    Way("bad index", "truncated", partial(_broken, break_index=_truncate), is_quick=False),
)
