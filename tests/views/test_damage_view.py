"""The view ``damage`` has the ranges that a read in mode PERMISSIVE reports, and no others."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views.damage import DAMAGE_VIEW
from tests.scan.damaged_log import DamagedLog, damage


def damage_of(path, **options):
    """The rows of the view, and the number of tasks."""
    filesystem = FileSystem()
    tasks = DAMAGE_VIEW.plan(filesystem, options_of([str(path)], options))
    batches = [
        batch
        for task in tasks
        for batch in DAMAGE_VIEW.read(filesystem, task, frozenset(DAMAGE_VIEW.schema.names))
    ]
    return pa.Table.from_batches(batches, schema=DAMAGE_VIEW.schema).to_pylist(), len(tasks)


@pytest.fixture
def torn(tmp_path):
    """Two segments; of the first, one byte of the second batch is changed."""
    log = DamagedLog().batch().batch().batch().roll().batch()
    piece = log.segments[0].pieces[1]
    piece.lose(piece.data[:-1] + b"\x7f")
    log.write(tmp_path)
    return tmp_path


def test_a_row_says_which_bytes_and_offsets_are_damaged_and_why(torn):
    (row,), _ = damage_of(torn)
    size = len(DamagedLog().batch().segments[0].data)
    reason = row.pop("reason")
    assert reason.startswith("Expected a record batch with CRC ")
    assert row == {
        "topic": "events",
        "partition": 0,
        "segment": "00000000000000000000.log",
        "startByte": size,
        "endByte": 2 * size,
        "startOffset": 3,
        "endOffset": 6,
        "error": "CorruptRecordError",
        "file": str(torn / "events-0" / "00000000000000000000.log"),
    }


def test_a_sound_log_has_no_row(tmp_path):
    DamagedLog().batch().roll().batch().write(tmp_path)
    assert damage_of(tmp_path)[0] == []


def test_bounds_limit_the_rows(torn):
    assert damage_of(torn, starting_offsets={"events": {"0": 6}})[0] == []
    assert len(damage_of(torn, ending_offsets={"events": {"0": 4}})[0]) == 1


def test_records_that_contradict_a_right_checksum_are_damage(tmp_path):
    """Only who decodes the records notices: the batch claims more records than it has."""
    log = DamagedLog().batch(3).batch(2).roll().batch()
    log.segments[0].pieces[1].data = _with_record_count(log.segments[0].pieces[1].data, 7)
    log.write(tmp_path)
    ((row,), _) = damage_of(tmp_path)
    assert (row["startOffset"], row["endOffset"], row["error"]) == (3, 5, "CorruptRecordError")


def _with_record_count(data, count):
    from crc32c import crc32c

    checked = data[21:57] + count.to_bytes(4, "big") + data[61:]
    return data[:17] + crc32c(checked).to_bytes(4, "big") + checked


@pytest.mark.parametrize("seed", range(12))
def test_same_ranges_as_a_permissive_read_however_the_work_is_divided(tmp_path, seed):
    rng = random.Random(seed)
    log = DamagedLog()
    for _ in range(3):
        for _ in range(6):
            log.batch(rng.randint(1, 4), b"x" * rng.choice((1, 300)), codec=rng.randrange(5))
        log.roll()
    damage(log, rng, 2)
    log.write(tmp_path)
    table = read_table(str(tmp_path), mode="PERMISSIVE")
    expected = [json.loads(text) for text in table["_corrupt_record"].drop_null().to_pylist()]
    assert expected
    for options in ({}, {"max_records_per_partition": 3}):
        rows, tasks = damage_of(tmp_path, **options)
        assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert tasks > 1
