"""Rows of a typed read, compared with what independent decoders make of the records (README.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tests.values.canonical import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable

_REASONS = ("unframed", "unknown-id", "malformed", "encrypted", "unresolvable")
Row = tuple[int, int, Any, str | None]
"""Partition, offset, value in canonical form, and ``_corrupt_record``."""


def rows_of(table: pa.Table, column: str = "value") -> list[Row]:
    """Return the rows of a read in mode PERMISSIVE."""
    places = [table[name].to_pylist() for name in ("partition", "offset", "_corrupt_record")]
    values = [value for chunk in table[column].chunks for value in canonical(chunk)]
    return list(zip(places[0], places[1], values, places[2], strict=True))


def is_same(found: Any, expected: Any) -> bool:
    """Compare a value in canonical form; a recursive record is JSON text in its column."""
    if isinstance(found, str) and isinstance(expected, (dict, list)):
        return is_same(json.loads(found), expected)
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(is_same(found[name], expected[name]) for name in found)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    if isinstance(found, str) and isinstance(expected, int) and not isinstance(expected, bool):
        # A time or a date as text: the unit is that of its last digits.
        return int(np.datetime64(found.removesuffix("Z")).astype(np.int64)) == expected
    if isinstance(expected, str) and isinstance(found, int) and not isinstance(found, bool):
        return str(found) == expected
    return (
        type(found) is type(expected) and found == expected
        if isinstance(expected, bool)
        else found == expected
    )


def differences(rows: Iterable[Row], partitions: dict[str, list[Any]], column: str = "value") -> list[str]:
    """Compare rows with the expected ones.

    Args:
        rows: What was read.
        partitions: The expected rows of each partition.
        column: Which column is compared.
    """
    expected = {
        (int(partition), offset): {"key": key, "value": value}[column]
        for partition, records in partitions.items()
        for offset, key, value in records
    }
    found = {(partition, offset): (value, text) for partition, offset, value, text in rows}
    wrong = [f"{place}: rows differ" for place in sorted(expected.keys() ^ found.keys())]
    for place, wanted in expected.items():
        if place in found and not _matches(*found[place], wanted, column):
            wrong.append(f"{place}: expected {wanted}, found {found[place]}")
    return wrong


def rows_without_errors(partitions: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the expected rows that a read with mode DROPMALFORMED has."""
    return {
        number: [row for row in rows if not {row[1].get("e"), row[2].get("e")} & set(_REASONS)]
        for number, rows in partitions.items()
    }


def _matches(value: Any, corrupt: str | None, wanted: dict[str, Any], column: str) -> bool:
    failure = None if corrupt is None else json.loads(corrupt)
    if failure is not None and failure["column"] != column:
        failure = failure.get(column)
    if "strict" in wanted:
        return failure is not None or is_same(value, wanted.get("v"))
    if wanted.get("e") in _REASONS:
        return value is None and failure is not None and failure["reason"] == wanted["e"]
    return failure is None and is_same(value, wanted.get("v"))
