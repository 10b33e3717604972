"""Small logs damaged at every position: a bit of each byte flipped, and truncated to every length."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from tests.damage.base_log import BaseLog
from tests.damage.campaign import Case
from tests.damage.mutations import Mutation
from tests.damage.reads import Read
from tests.damage.writer import LogWriter
from tests.record.encoding import CODECS

# DROPMALFORMED takes the same path as PERMISSIVE and reports less. `make test` covers some positions, `make test-all`
# more, `make soak` all of them. The steps are prime, so that every field is hit in some format.
STEPS = [
    pytest.param("FAILFAST", 17),
    pytest.param("PERMISSIVE", 23),
    pytest.param("FAILFAST", 3, marks=pytest.mark.thorough),
    pytest.param("PERMISSIVE", 5, marks=pytest.mark.thorough),
    pytest.param("FAILFAST", 1, marks=pytest.mark.soak),
    pytest.param("PERMISSIVE", 1, marks=pytest.mark.soak),
]
GARBAGE = [
    bytes(11),
    b"\xff" * 70,
    *(
        pytest.param(garbage, marks=pytest.mark.thorough)
        for garbage in (bytes(1), bytes(300), b"\xff", b"\x02" * 99, b"\0\1" * 60)
    ),
]
FORMATS = [
    *(f"v2-{name}" for name in CODECS),
    *(f"v{m}-{name}" for m in (0, 1) for name in CODECS if name != "zstd"),
]


def small_log(name) -> BaseLog:
    """Return two entries in a closed segment, two in the active one."""
    magic, codec = int(name[1]), CODECS[name[3:]]
    writer = LogWriter(name)
    partition = writer.partition()

    def append(count):
        if magic == 2:
            partition.batch(count, codec=codec, value_bytes=10)
        else:
            partition.messages(magic, count, codec=codec, value_bytes=10)

    for count in (2, 1):
        append(count)
    partition.roll()
    append(1)
    append(2)
    return writer.build()


def judged(campaign, log, text, change, path, mode):
    def apply(files):
        files[path] = change(files[path])

    mutation = Mutation("one place", (path,), f"{path}: {text}", apply)
    case = Case(log, 0, [mutation], dataclasses.replace(Read(), mode=mode))
    problems = campaign.run(case).problems
    return [f"{text}, {mode}: {problem}" for problem in problems]


def flipped(data, position):
    return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]


def cut(data, position):
    return data[:position]


@pytest.mark.cases(8, 24)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("segment", [0, 1], ids=["closed", "active"])
@pytest.mark.parametrize(("mode", "step"), STEPS)
@pytest.mark.parametrize("change", [flipped, cut], ids=["flipped", "cut"])
def test_every_byte(campaign, name, segment, mode, step, change):
    log = small_log(name)
    path = sorted(log.entries)[segment]
    wrong = []
    for position in range(0, len(log.files[path]), step):
        at_position = partial(change, position=position)
        wrong += judged(campaign, log, f"{change.__name__} at byte {position}", at_position, path, mode)
    assert wrong == []


@pytest.mark.cases(4, 16)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_between_entries(campaign, name, mode, garbage):
    log = small_log(name)
    wrong = []
    for path, entries in log.entries.items():
        for border in [0, *(entry.end for entry in entries)]:

            def insert(data, border=border):
                return data[:border] + garbage + data[border:]

            wrong += judged(campaign, log, f"{garbage[:4].hex()}… at {border} of {path}", insert, path, mode)
    assert wrong == []
