from __future__ import annotations

import pytest

from storage_core.segment import file_names
from storage_core.segment.file_names import base_offset_of


@pytest.mark.parametrize(
    ("name", "base_offset"),
    [
        ("00000000000000000000.log", 0),
        ("00000000000000000042.index", 42),
        ("00000000000000000042.timeindex.deleted", 42),
        ("00000000000000000042.index.swap", 42),
        ("09223372036854775807.log", 2**63 - 1),
        ("00000000000000000042.", 42),
    ],
)
def test_base_offset_is_what_stands_before_the_first_dot(name, base_offset):
    assert base_offset_of(name) == base_offset


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "0.log",
        "0000000000000000042.log",
        "000000000000000000042.log",
        "00000000000000000042",
        "00000000000000000042log",
        "09223372036854775808.log",
        "99999999999999999999.log",
        "-0000000000000000001.log",
        "+0000000000000000001.log",
        " 0000000000000000001.log",
        "0000000000_000000001.log",
        "0000000000000000000x.log",
        "000000000000000000\u0663\u0664.log",
        "00000000000000000\u00b2\u00b2\u00b2.log",
        "00000000000000000042-0000000007.checkpoint",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_other_names_have_no_base_offset(name):
    assert base_offset_of(name) is None


def test_names_are_padded_to_twenty_digits():
    assert file_names.log_file_name(42) == "00000000000000000042.log"
    assert file_names.offset_index_file_name(42) == "00000000000000000042.index"
    assert file_names.time_index_file_name(42) == "00000000000000000042.timeindex"
    assert file_names.transaction_index_file_name(42) == "00000000000000000042.txnindex"
    assert file_names.snapshot_file_name(2**63 - 1) == "09223372036854775807.snapshot"


@pytest.mark.parametrize("base_offset", [0, 1, 10**18, 2**63 - 1])
def test_names_and_base_offsets_are_inverse(base_offset):
    assert base_offset_of(file_names.log_file_name(base_offset)) == base_offset
