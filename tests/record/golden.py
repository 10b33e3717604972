"""Batches written by Kafka's own classes (4.1.0), and the rows that they hold.

A row is (offset, timestamp in ms, key, value, headers).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GoldenBatch:
    data: bytes
    rows: tuple


def _golden(text, *rows):
    return GoldenBatch(bytes.fromhex(text), rows)


_TWO_ROWS = ((0, 283843, b"key1", b"value1", ()), (1, 1234, b"key2", b"value2", ()))

# The same two records in every codec.
TWO_RECORDS = {
    "none": _golden(
        "000000000000000000000055ffffffff02e58cf1ff00000000000100000000000454c300000000000454c3ffffffffff"
        "ffffffffffffffffff0000000220000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c756532"
        "00",
        *_TWO_ROWS,
    ),
    "gzip": _golden(
        "000000000000000000000063ffffffff0262371a3c00010000000100000000000454c300000000000454c3ffffffffff"
        "ffffffffffffffffff000000021f8b08000000000000ff53606060e0c84ead34e4294bcc294d3564506178b85f890924"
        "640411326200005993009b24000000",
        *_TWO_ROWS,
    ),
    "snappy": _golden(
        "00000000000000000000006bffffffff02a729e9df00020000000100000000000454c300000000000454c3ffffffffff"
        "ffffffffffffffffff0000000282534e4150505900000000010000000100000026248c20000000086b6579310c76616c"
        "756531002400e1bf2202086b6579320c76616c75653200",
        *_TWO_ROWS,
    ),
    "lz4": _golden(
        "000000000000000000000064ffffffff02a3ac2aa200030000000100000000000454c300000000000454c3ffffffffff"
        "ffffffffffffffffff0000000204224d186040822400008020000000086b6579310c76616c756531002400e1bf220208"
        "6b6579320c76616c7565320000000000",
        *_TWO_ROWS,
    ),
    "zstd": _golden(
        "000000000000000000000061ffffffff023e54590e00040000000100000000000454c300000000000454c3ffffffffff"
        "ffffffffffffffffff0000000228b52ffd005820010020000000086b6579310c76616c756531002400e1bf2202086b65"
        "79320c76616c75653200010000",
        *_TWO_ROWS,
    ),
}

# Base offset 1234567, leader epoch 9, producer 4000 in epoch 7 from sequence 42.
TRANSACTIONAL = _golden(
    "000000000012d687000000590000000902e1cfd8790010000000020000018bcfe568000000018bcfe568050000000000"
    "000fa000070000002a0000000310000000026b0276002a000a02010278060468310476310468320104c3a90010001304"
    "046b320100",
    (1234567, 1700000000000, b"k", b"v", ()),
    (1234568, 1700000000005, None, b"x", ((b"h1", b"v1"), (b"h2", None), ("é".encode(), b""))),
    (1234569, 1699999999990, b"k2", None, ()),
)
# Offset 100, leader epoch 3, producer 4000 in epoch 7, coordinator epoch 11.
COMMIT_MARKER = _golden(
    "0000000000000064000000420000000302ab6840d60030000000000000018bcfe568000000018bcfe568000000000000"
    "000fa00007ffffffff000000012000000008000000010c00000000000b00",
    (100, 1700000000000, b"\0\0\0\1", b"\0\0\0\0\0\x0b", ()),
)
ABORT_MARKER = _golden(
    "00000000000000640000004200000003025f56969e0030000000000000018bcfe568000000018bcfe568000000000000"
    "000fa00007ffffffff000000012000000008000000000c00000000000b00",
    (100, 1700000000000, b"\0\0\0\0", b"\0\0\0\0\0\x0b", ()),
)
# What compaction leaves of offsets 15 to 37: producer 23423 in epoch 145 from sequence 983, leader epoch 15.
EMPTY = _golden(
    "000000000000000f000000310000000f025d4e3d62000000000016ffffffffffffffff0000018bcfe568000000000000"
    "005b7f0091000003d700000000",
)
# A control batch of KRaft: leader 5, voter 6, leader epoch 1.
LEADER_CHANGE = _golden(
    "00000000000000000000004a00000001024dcb09500020000000000000018bcfe568000000018bcfe56800ffffffffff"
    "ffffffffffffffffff000000013000000008000000021c000000000005020000000600010000",
    (0, 1700000000000, b"\0\0\0\2", bytes.fromhex("0000000000050200000006000100"), ()),
)
# A record without a timestamp.
NO_TIMESTAMP = _golden(
    "000000000000000700000039ffffffff0228cd2368000000000000ffffffffffffffffffffffffffffffffffffffffff"
    "ffffffffffffffffff000000010e00000001027600",
    (7, -1, None, b"v", ()),
)
# Two records, then the same after edits in place: the append time set to 15; the last offset set to 500
# and the leader epoch to 5, which leaves the CRC as it is.
CREATE_TIME = _golden(
    "000000000000000000000043ffffffff02f5845ea200000000000100000000000000010000000000000002ffffffffff"
    "ffffffffffffffffff00000002100000000261023100100002020262023200",
    (0, 1, b"a", b"1", ()),
    (1, 2, b"b", b"2", ()),
)
APPEND_TIME = _golden(
    "000000000000000000000043ffffffff02dc91cf770008000000010000000000000001000000000000000fffffffffff"
    "ffffffffffffffffff00000002100000000261023100100002020262023200",
    (0, 15, b"a", b"1", ()),
    (1, 15, b"b", b"2", ()),
)
MOVED = _golden(
    "00000000000001f3000000430000000502dc91cf770008000000010000000000000001000000000000000fffffffffff"
    "ffffffffffffffffff00000002100000000261023100100002020262023200",
    (499, 15, b"a", b"1", ()),
    (500, 15, b"b", b"2", ()),
)
# Compacted: offset 0 is gone, the delete horizon is 1024, leader epoch 998.
DELETE_HORIZON = _golden(
    "000000000000000000000044000003e602a89deb660040000000020000000000000400000000000000000fffffffffff"
    "ffffffffffffffffff000000021000eb0f02023101001200e10f040232023200",
    (1, 10, b"1", None, ()),
    (2, 15, b"2", b"2", ()),
)

GOLDEN = {
    **{f"two records, {codec}": golden for codec, golden in TWO_RECORDS.items()},
    "transactional": TRANSACTIONAL,
    "commit marker": COMMIT_MARKER,
    "abort marker": ABORT_MARKER,
    "empty": EMPTY,
    "leader change": LEADER_CHANGE,
    "no timestamp": NO_TIMESTAMP,
    "create time": CREATE_TIME,
    "append time": APPEND_TIME,
    "moved": MOVED,
    "delete horizon": DELETE_HORIZON,
}
