"""Sections that every decoder must agree on: good ones with their rows, and bad ones."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product

from tests.record.encoding import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    Batch,
    Record,
    counted_records,
    sized,
    varint,
)
from tests.record.golden import GOLDEN

DAY_MS = 86_400_000
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


def placed(*batches, start=0):
    """Return the batches one after the other, each at the offset where the one before it ends."""
    moved = []
    for batch in batches:
        moved.append(batch.at(start))
        start = moved[-1].last_offset + 1
    return moved


def _of_sizes(sizes):
    """Records with values of the given sizes."""
    return tuple(Record(delta, delta, None, b"x" * size) for delta, size in enumerate(sizes))


def _nothing_and_something():
    choices = (None, b"", b"bytes")
    headers = ((), ((b"", None),), ((b"name", b""), (b"name", b"again"), ("é☃".encode(), b"\0\xff")))
    combinations = product(choices, choices, headers)
    return tuple(Record(delta, 0, *fields) for delta, fields in enumerate(combinations))


def _extremes():
    deltas = [0, 1, 63, 64, 8191, 8192, 2**20 - 1, 2**20, 2**27 - 1, 2**27, MAX_INT - 1, MAX_INT]
    times = [0, 64, -65, 2**31, -(2**31), 2**34, 2**40, 2**60, -(2**60), MAX_LONG, 1, -1]
    return tuple(Record(delta, time, b"k") for delta, time in zip(deltas, times, strict=True))


def _random_batches(seed, count, most_records):
    generator = random.Random(seed)
    batches = []
    for _ in range(count):
        sizes = [generator.choice([0, 1, 5, 100, 300]) for _ in range(generator.randint(1, most_records))]
        batches.append(Batch(_of_sizes(sizes)))
    return placed(*batches)


_SINGLE = Batch((Record(value=b"single"),))
_MANY_SINGLES = [_SINGLE] * 400

# Name -> batches. All of these the decoder by column takes by itself.
_WELL_FORMED = {
    "a single record": [_SINGLE],
    "key and value of no bytes": [Batch((Record(key=b"", value=b""),))],
    "every mix of null, empty and more": [Batch(_nothing_and_something())],
    "extreme offsets and timestamps": [Batch(_extremes())],
    "the highest offsets there are": [Batch(counted_records(3), base_offset=MAX_LONG - 2)],
    "log append time": [Batch(counted_records(3), attributes=LOG_APPEND_TIME, max_timestamp_ms=77)],
    "log append time among create time": placed(
        Batch(counted_records(3, start=10)),
        Batch(counted_records(2), attributes=LOG_APPEND_TIME, max_timestamp_ms=77),
        Batch(counted_records(3, start=20)),
    ),
    "delete horizon": [Batch(counted_records(3), attributes=DELETE_HORIZON, base_timestamp_ms=1 << 41)],
    "delete horizon and log append time": [
        Batch(
            counted_records(3),
            attributes=DELETE_HORIZON | LOG_APPEND_TIME,
            base_timestamp_ms=1 << 41,
            max_timestamp_ms=5,
        )
    ],
    "the first records compacted away": [Batch((Record(70), Record(71)), last_offset_delta=71)],
    "the last records compacted away": [Batch((Record(0), Record(1)), last_offset_delta=9000)],
    "records between compacted away": [Batch(tuple(Record(delta) for delta in (3, 4, 90, 8200, 8201)))],
    "gaps between batches": [Batch(counted_records(2), offset) for offset in (0, 50, 2**40)],
    "no timestamps": [Batch(counted_records(3, start=-1, step_ms=0))],
    "timestamps below -1": [Batch(counted_records(3, start=-5000))],
    "timestamps 25 days apart": [Batch((Record(0, 0), Record(1, 25 * DAY_MS), Record(2, -25 * DAY_MS)))],
    "timestamps that fall": [Batch(counted_records(100, start=1 << 40, step_ms=-1000))],
    "timestamps beyond 64 bits wrap": [
        Batch(
            (Record(),),
            base_timestamp_ms=MAX_LONG,
            records_bytes=sized(b"\0" + varint(1) + b"\0" + b"\1\1\0"),
        )
    ],
    "lengths of two bytes": [Batch(_of_sizes([100] * 20 + [0, 200, 8000, 3]))],
    "lengths of three bytes": [Batch(_of_sizes([5, 10_000, 100, 60_000]))],
    "lengths of four bytes": [Batch(_of_sizes([5, 1_200_000, 100]))],
    "many batches with lengths of three bytes": placed(*[Batch(_of_sizes([9000, 1]))] * 40),
    "records that are larger than what is looked at once": [Batch(_of_sizes([70_000, 1, 140_000, 1]))],
    "integers longer than needed, few batches": placed(
        *[Batch(_nothing_and_something(), varint_width=3)] * 2
    ),
    "integers longer than needed, many batches": placed(*[Batch(counted_records(3), varint_width=5)] * 40),
    "integers of two bytes that need one": placed(*[Batch(counted_records(60), varint_width=2)] * 2),
    "attributes of a record, which mean nothing": [
        Batch((Record(),), records_bytes=sized(b"\xff\0\0\1" + sized(b"v") + b"\0"))
    ],
    "lengths far below null": [
        Batch((Record(value=None),), records_bytes=sized(b"\0\0\0" + varint(-2) + varint(-(2**31)) + b"\0"))
    ],
    "header values far below null": [
        Batch(
            (Record(key=None, value=None, headers=((b"h", None),)),),
            records_bytes=sized(b"\0\0\0\1\1\2" + sized(b"h") + varint(-(2**31))),
        )
    ],
    "256 headers": [Batch((Record(headers=((b"h", b"v"),) * 256),))],
    "headers in few of many records": [
        Batch(tuple(Record(delta, headers=((b"h", None),) * (delta % 7 == 3)) for delta in range(300)))
    ],
    "one batch of many records among many of one": placed(
        *_MANY_SINGLES, Batch(_of_sizes([7] * 1200)), *_MANY_SINGLES
    ),
    "one batch with a record of three bytes' length among many": placed(
        *_MANY_SINGLES, Batch(_of_sizes([1, 20_000, 1])), *_MANY_SINGLES
    ),
    "runs of equal records": [Batch(_of_sizes([20] * 100 + [21] * 100 + [200] * 100 + [3] + [20] * 100))],
    "a run beyond the first look for one": [Batch(_of_sizes([20] * 1000 + [21] * 1000))],
    "no runs in more than a chunk": [Batch(_of_sizes([number % 50 for number in range(3000)]))],
    "one large batch of uneven records": [Batch(_of_sizes([number * 37 % 191 for number in range(4500)]))],
    "runs and no runs by turns": [
        Batch(_of_sizes(([90] * 300 + [number % 90 for number in range(800)]) * 3))
    ],
    **{f"a run of {count}": [Batch(_of_sizes([20] * count + [7, 8]))] for count in (47, 48, 49, 64, 65)},
    **{f"{count} equal batches": placed(*[Batch(counted_records(3))] * count) for count in (31, 32, 33, 200)},
    **{f"{count} random batches": _random_batches(count, count, 40) for count in (2, 31, 32, 33, 100)},
}


@dataclass(frozen=True)
class Case:
    data: bytes
    rows: list


def _case(batches):
    return Case(
        b"".join(batch.encode() for batch in batches), [row for batch in batches for row in batch.rows]
    )


# The records of these cannot be told in the encoder's words, so their rows are put right here.
_TOLD_OTHERWISE = {"timestamps beyond 64 bits wrap": [(0, -(2**63), None, None, ())]}
_TOLD_OTHERWISE["attributes of a record, which mean nothing"] = [(0, 0, None, b"v", ())]

WELL_FORMED = {
    **{
        f"golden: {name}": Case(golden.data, list(golden.rows))
        for name, golden in GOLDEN.items()
        if golden.rows and golden.data[22] & 7 == 0
    },
    **{name: _case(batches) for name, batches in _WELL_FORMED.items()},
}
for _name, _rows in _TOLD_OTHERWISE.items():
    WELL_FORMED[_name] = replace(WELL_FORMED[_name], rows=_rows)

# Right, but so unusual that only the plain decoder takes them.
UNUSUAL = {
    "257 headers": _case([Batch((Record(headers=((b"h", b"v"),) * 257), Record(1)))]),
    "batches whose offsets overlap": _case([Batch(counted_records(5)), Batch(counted_records(5), 3)]),
    "batches in falling order": _case([Batch(counted_records(2), 100), Batch(counted_records(2), 0)]),
}


def _one_record(body):
    return Batch((Record(),), records_bytes=sized(body))


_GOOD = Batch(counted_records(3, key=b"key", value=b"value"))
_THREE = _GOOD.encode_records()
_START = b"\0\0\0"  # attributes, timestamp delta and offset delta of a first record
_TOO_LONG = b"\x80" * 5 + b"\0"

# Batches whose records contradict their lengths, their header, or the format.
MALFORMED = {
    "a count that is too high": replace(_GOOD, count=4, last_offset_delta=3),
    "a count that is far too high": replace(_GOOD, count=MAX_INT, last_offset_delta=MAX_INT - 1),
    "a count that is too low": replace(_GOOD, count=2),
    "a count of zero": replace(_GOOD, count=0),
    "a negative count": replace(_GOOD, count=-1),
    "the lowest count": replace(_GOOD, count=-(2**31)),
    "more records than offsets": replace(_GOOD, last_offset_delta=1),
    "a negative last offset": replace(_GOOD, last_offset_delta=-1),
    "no bytes": replace(_GOOD, records_bytes=b""),
    "zeros only": replace(_GOOD, records_bytes=bytes(200)),
    "junk after the last record": replace(_GOOD, records_bytes=_THREE + b"\0"),
    "a record cut off": replace(_GOOD, records_bytes=_THREE[:-1]),
    "a record length of zero": replace(_GOOD, records_bytes=b"\0" + _THREE, count=4, last_offset_delta=9),
    "a negative record length": replace(_GOOD, records_bytes=b"\1" + _THREE[1:]),
    "a record longer than the batch": replace(_GOOD, records_bytes=varint(500) + _THREE[1:]),
    "a record of 2 GiB": replace(_GOOD, records_bytes=varint(MAX_INT) + _THREE[1:]),
    "a record length beyond 5 bytes": replace(_GOOD, records_bytes=_TOO_LONG + _THREE[1:]),
    "a record length that the batch cuts off": Batch((Record(),), records_bytes=b"\x80\x80"),
    "a record one byte longer than its fields": _one_record(_START + b"\1\1\0\0"),
    "a record one byte shorter than its fields": Batch(
        (Record(),), records_bytes=varint(5) + _START + b"\1\1\0"
    ),
    "a record of attributes only": _one_record(b"\0"),
    "a record that ends in its timestamp": _one_record(b"\0\x80\x80"),
    "a record that ends in its offset": _one_record(b"\0\0\x80"),
    "a record that ends before its key": _one_record(_START),
    "a record that ends before its value": _one_record(_START + b"\1"),
    "a record that ends before its headers": _one_record(_START + b"\1\1"),
    "a timestamp beyond 10 bytes": _one_record(b"\0" + b"\x80" * 10 + b"\0\0\1\1\0"),
    "an offset beyond 5 bytes": _one_record(b"\0\0" + _TOO_LONG + b"\1\1\0"),
    "a key length beyond 5 bytes": _one_record(_START + _TOO_LONG + b"\1\0"),
    "a value length beyond 5 bytes": _one_record(_START + b"\1" + _TOO_LONG + b"\0"),
    "a header count beyond 5 bytes": _one_record(_START + b"\1\1" + _TOO_LONG),
    "a key longer than the record": _one_record(_START + varint(9) + b"key\1\0"),
    "a key of 2 GiB": _one_record(_START + varint(MAX_INT) + b"key\1\0"),
    "a key that reaches into the next record": Batch(
        counted_records(2), records_bytes=sized(_START + varint(8) + b"k\1\0") + Record(1, 0).encode(0)
    ),
    "a value longer than the record": _one_record(_START + b"\1" + varint(9) + b"value\0"),
    "a value of 2 GiB": _one_record(_START + b"\1" + varint(MAX_INT) + b"value\0"),
    "a negative header count": _one_record(_START + b"\1\1" + varint(-1)),
    "more headers than bytes": _one_record(_START + b"\1\1" + varint(5) + sized(b"h") + b"\1"),
    "a billion headers": _one_record(_START + b"\1\1" + varint(10**9) + sized(b"h") + b"\1"),
    "one header too many": _one_record(_START + b"\1\1" + varint(2) + sized(b"h") + sized(b"v")),
    "one header too few": _one_record(_START + b"\1\1" + varint(1) + (sized(b"h") + sized(b"v")) * 2),
    "headers announced that are not there": _one_record(_START + b"\1\1" + varint(1)),
    "headers not announced": _one_record(_START + b"\1\1\0" + sized(b"h") + sized(b"v")),
    "a header without a key": _one_record(_START + b"\1\1" + varint(1) + varint(-1) + sized(b"v")),
    "a header key longer than the record": _one_record(_START + b"\1\1" + varint(1) + varint(99) + b"h\1"),
    "a header value longer than the record": _one_record(
        _START + b"\1\1" + varint(1) + sized(b"h") + varint(99) + b"v"
    ),
    "a header that ends before its value": _one_record(_START + b"\1\1" + varint(1) + sized(b"h")),
    "an offset below the base": Batch((Record(-1), Record(0)), last_offset_delta=5),
    "the same offset twice": Batch((Record(3), Record(3)), last_offset_delta=5),
    "offsets that fall": Batch((Record(4), Record(3)), last_offset_delta=5),
    "an offset beyond the last": Batch((Record(0), Record(6)), last_offset_delta=5),
    "an offset beyond 63 bits": Batch(counted_records(3), base_offset=MAX_LONG - 1),
    "a last offset beyond 63 bits": Batch(counted_records(3), base_offset=MAX_LONG - 2, last_offset_delta=3),
}
