"""The judge itself: it detects results that are wrong in any way."""

from __future__ import annotations

import dataclasses

import pytest

from storage_core.errors import CorruptRecordError
from tests.damage.built_logs import built_logs
from tests.damage.judge import judge
from tests.damage.mutations import Mutation
from tests.damage.reads import Outcome, OutRow, Read

KEY = ("events", 0)
PATH = f"events-0/{0:020d}.log"
LOG = built_logs()["v2-none"]


def right_rows(log=LOG, without=()):
    return [OutRow(KEY, offset, row, None) for offset, row in log.rows[KEY].items() if offset not in without]


def damaged():
    """The second batch of the first segment, offsets 4 to 7, with one byte flipped."""
    entry = LOG.entries[PATH][1]
    place = entry.position + 70

    def apply(files):
        data = bytearray(files[PATH])
        data[place] ^= 1
        files[PATH] = bytes(data)

    return Mutation("a flip", (PATH,), f"flip {place}", apply), entry


def problems(rows, mode="FAILFAST", mutations=(), error=None, damage=(), read=None, bytes_read=0):
    files = dict(LOG.files)
    for mutation in mutations:
        mutation.apply(files)
    read = read or Read(mode=mode)
    outcome = Outcome(list(rows), list(damage), error, bytes_read)
    undamaged = Outcome(right_rows()) if mutations else outcome
    return judge(LOG, list(mutations), files, read, outcome, lambda: undamaged).problems


def damage_row(entry, **changes):
    fields = {
        "file": f"/logs/{PATH}", "topic": "events", "partition": 0, "startByte": entry.position, "endByte": entry.end,
        "startOffset": entry.first_offset, "endOffset": entry.last_offset + 1, "error": "CorruptRecordError",
        "reason": "Expected a CRC, found another.",
    }  # fmt: skip
    return KEY, fields | changes


def test_right_results_pass():
    assert problems(right_rows()) == []
    mutation, entry = damaged()
    lost = range(entry.first_offset, entry.last_offset + 1)
    where = {"path": f"/logs/{PATH}", "position_bytes": entry.position, "offset": entry.first_offset}
    assert problems([], mutations=[mutation], error=CorruptRecordError("x", **where)) == []
    assert problems(right_rows(without=lost), "DROPMALFORMED", [mutation]) == []
    assert problems(right_rows(without=lost), "PERMISSIVE", [mutation], damage=[damage_row(entry)]) == []


@pytest.mark.parametrize("error", [ValueError("x"), IndexError(), MemoryError(), AssertionError()])
def test_an_error_of_another_kind(error):
    assert "none of ours" in problems([], error=error)[0]


def test_an_error_that_does_not_say_where():
    mutation, entry = damaged()
    assert "does not say where" in problems([], mutations=[mutation], error=CorruptRecordError("x"))[0]
    elsewhere = {
        "path": f"/logs/{PATH}",
        "position_bytes": 0,
        "end_position_bytes": entry.position,
        "offset": 0,
    }
    assert (
        "without damage" in problems([], mutations=[mutation], error=CorruptRecordError("x", **elsewhere))[0]
    )


def test_an_error_without_damage():
    assert problems([], error=CorruptRecordError("x"))


def test_an_error_where_reading_should_continue():
    mutation, _ = damaged()
    for mode in ("DROPMALFORMED", "PERMISSIVE"):
        assert "raised" in problems([], mode, [mutation], error=CorruptRecordError("x"))[0]


def test_silence_about_damage():
    mutation, entry = damaged()
    lost = range(entry.first_offset, entry.last_offset + 1)
    assert "nothing was said" in problems(right_rows(without=lost), mutations=[mutation])[0]


def test_a_row_that_is_missing():
    mutation, entry = damaged()
    lost = set(range(entry.first_offset, entry.last_offset + 1))
    for mode in ("DROPMALFORMED", "PERMISSIVE"):
        found = problems(right_rows(without=lost | {20}), mode, [mutation], damage=[damage_row(entry)])
        assert any("were not read" in text for text in found)


def test_a_row_of_a_damaged_batch():
    mutation, _ = damaged()
    assert any("never written" in text for text in problems(right_rows(), "DROPMALFORMED", [mutation]))


@pytest.mark.parametrize("column", range(5))
def test_a_value_that_was_never_written(column):
    rows = right_rows()
    values = list(rows[9].values)
    values[column] = "another"
    rows[9] = dataclasses.replace(rows[9], values=tuple(values))
    assert any("never written" in text for text in problems(rows))


def test_a_row_at_another_offset():
    rows = right_rows()
    rows[-1] = dataclasses.replace(rows[-1], offset=rows[-1].offset + 1)
    assert any("never written" in text for text in problems(rows))


def test_rows_twice_and_out_of_order():
    rows = right_rows()
    assert any("do not ascend" in text for text in problems([*rows, rows[-1]]))
    assert any("do not ascend" in text for text in problems([rows[1], rows[0], *rows[2:]]))


def test_a_row_beyond_the_bounds():
    read = Read(offsets=((KEY, 5, 9),))
    rows = right_rows()
    assert problems(rows[5:9], read=read) == []
    assert any("outside" in text for text in problems(rows[5:10], read=read))
    assert any("were not read" in text for text in problems(rows[6:9], read=read))


@pytest.mark.parametrize(
    "changes",
    [
        {"endByte": 10**9}, {"startByte": -1}, {"endOffset": 0}, {"startOffset": 6}, {"topic": "orders"}, {"reason": ""},
        {"error": "Nothing"}, {"startByte": 0}, {"endOffset": 5},
    ],
)  # fmt: skip
def test_a_damage_row_that_is_wrong(changes):
    mutation, entry = damaged()
    lost = range(entry.first_offset, entry.last_offset + 1)
    wrong = damage_row(entry, **changes)
    assert problems(right_rows(without=lost), "PERMISSIVE", [mutation], damage=[wrong])


def test_damage_without_a_damage_row():
    mutation, entry = damaged()
    lost = range(entry.first_offset, entry.last_offset + 1)
    assert problems(right_rows(without=lost), "PERMISSIVE", [mutation])


def test_more_bytes_read_than_necessary():
    assert problems(right_rows(), bytes_read=100 << 20)


def test_an_index_that_changes_rows():
    def apply(files):
        files[f"events-0/{0:020d}.index"] = b"\xff" * 8

    mutation = Mutation("an index", (f"events-0/{0:020d}.index",), "garbage", apply)
    assert problems(right_rows(), mutations=[mutation]) == []
    assert problems(right_rows()[:-1], mutations=[mutation])


def test_a_record_that_was_not_committed():
    log = built_logs()["transactions-clean"]
    hidden = log.rows[KEY].keys() - log.committed[KEY]
    outcome = Outcome(right_rows(log))
    read = Read(committed=True)
    verdict = judge(log, [], log.files, read, outcome, lambda: outcome)
    assert any("not committed" in text for text in verdict.problems)
    outcome = Outcome(right_rows(log, without=hidden))
    assert judge(log, [], log.files, read, outcome, lambda: outcome).problems == []
