"""Payloads: the byte ranges that decoders get."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.values.decoding import Payloads


def _texts(payloads: Payloads) -> list[bytes]:
    return [
        payloads.data[start:end].tobytes() for start, end in zip(payloads.starts, payloads.ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([b"ab", b"", b"cde"], pa.binary()), [b"ab", b"", b"cde"]),
        (pa.array([b"ab", None, b"cde"], pa.binary()), [b"ab", b"", b"cde"]),
        (pa.array([b"ab", b"c", b"cde"], pa.binary()).slice(1), [b"c", b"cde"]),
        (pa.array([None, None], pa.binary()), [b"", b""]),
        (pa.array([], pa.binary()), []),
    ],
)
def test_the_payloads_of_an_array_are_its_values(values: pa.BinaryArray, expected: list[bytes]):
    assert _texts(Payloads.of_array(values)) == expected
