"""Recovery: what it makes of damage, by Kafka's rules and by ours."""

from __future__ import annotations

import pytest

from storage_core import LogConfig
from storage_core.errors import RecoveryWouldDiscardError
from storage_core.filesystem import WritableFile
from tests.log.logs import (
    DAMAGE,
    append,
    crash,
    flip,
    name,
    names,
    offsets,
    open_directory,
    table,
    unclean,
)
from tests.log.producing import ABORT, data, marker, transactional

# Damage (221): what each kind of recovery makes of it.


@pytest.mark.parametrize("what", DAMAGE)
def test_kafkas_recovery_drops_everything_after_the_first_bad_batch(root, path, what):
    base_offset, position, kept = DAMAGE[what]
    flip(path / name(base_offset), position)
    unclean(root)
    with open_directory(root, recovery="kafka") as logs:
        log = logs.get("orders")
        assert log.log_end_offset == base_offset + kept
        assert offsets(log) == list(range(base_offset + kept))
        assert log.segment_base_offsets == tuple(base for base in (0, 10, 20, 30) if base <= base_offset)
        append(log, 2)
        assert offsets(log) == list(range(base_offset + kept + 2))
    gone = [base for base in (10, 20, 30) if base > base_offset]
    assert not [
        base
        for base in gone
        for suffix in ("log", "index", "timeindex")
        if (path / name(base, suffix)).exists()
    ]


def test_kafkas_own_scenario(tmp_path):
    """Section 11.8: nine batches of 76 bytes, the second one of segment 2 damaged."""
    config = LogConfig(internal_segment_bytes=200, index_interval_bytes=50)
    logs = open_directory(tmp_path, config=config)
    log = logs.create("vector")
    for number in range(9):
        log.append(table(f"value{number}".encode(), keys=[f"k{number}".encode()], timestamps=[number + 1]))
    assert log.segment_base_offsets == (0, 2, 4, 6, 8)
    crash(logs)
    path = tmp_path / "vector-0"
    assert (path / name(0)).read_bytes().hex() == (
        "00000000000000000000004000000000028b759e7500000000000000000000000000010000000000000001ffffffffffffffff"
        "ffffffffffff000000011c000000046b300c76616c756530000000000000000001000000400000000002fe60b1780000000000"
        "0000000000000000020000000000000002ffffffffffffffffffffffffffff000000011c000000046b310c76616c75653100"
    )
    assert (path / name(0, "index")).read_bytes().hex() == "000000010000004c"
    assert (path / name(0, "timeindex")).read_bytes().hex() == "0000000000000002" + "00000001"
    flip(path / name(2), 150)
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    logs = open_directory(tmp_path, config=config, recovery="kafka")
    log = logs.get("vector")
    assert log.log_end_offset == 3
    assert (path / name(2)).stat().st_size == 76
    assert (path / name(2, "index")).stat().st_size == 10_485_760
    assert (path / name(2, "timeindex")).stat().st_size == 10_485_756
    assert (path / name(2, "timeindex")).read_bytes()[:12].hex() == "000000000000000300000000"
    assert [each for each in names(path) if each.endswith(".log.deleted")] == [
        name(base_offset, "log.deleted") for base_offset in (4, 6, 8)
    ]
    assert [each for each in names(path) if each.endswith(".snapshot")] == [
        name(2, "snapshot"),
        name(3, "snapshot"),
    ]
    assert offsets(log) == [0, 1, 2]
    assert log.append(table(b"next")).first_offset == 3
    logs.close()


# Transactions (203, 226).


def test_a_corrupt_transaction_index_is_made_anew(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        log.append_batches(transactional(0, producer=1) + marker(1, producer=1, kind=ABORT) + data(2))
        log.update_high_watermark(3)
    index = tmp_path / "orders-0" / name(0, "txnindex")
    before = index.read_bytes()
    index.write_bytes(before[:-1])
    with open_directory(tmp_path) as logs:
        assert offsets(logs.get("orders"), isolation_level="read_committed") == [2]
    assert index.read_bytes() == before


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_damage_before_a_wide_gap_is_recovered_like_any_other(tmp_path, recovery):
    # A segment that may span too many offsets is looked at first, and has no end that can be found.
    logs = open_directory(tmp_path)
    log = logs.create("orders")
    log.append_batches(data(0))
    log.append_batches(data(1 << 33))
    crash(logs)
    with (tmp_path / "orders-0" / name(0)).open("ab") as file:
        file.write(data(1)[:11] + b"\x05" + bytes(100))
    if recovery == "tail":
        with pytest.raises(RecoveryWouldDiscardError, match="the whole segment of 69 bytes"):
            open_directory(tmp_path)
        return
    with open_directory(tmp_path, recovery=recovery) as logs:
        assert offsets(logs.get("orders")) == [0]


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_is_made_anew_of_a_flushed_segment_is_on_disk(root, path, is_clean, monkeypatch):
    # Below the recovery point, nothing else forces it there.
    (path / name(10, "index")).unlink()
    if not is_clean:
        unclean(root, recovery_point=35)
    flushed = []
    flush = WritableFile.flush

    def note_flush(file):
        flushed.append(file.path)
        flush(file)

    monkeypatch.setattr(WritableFile, "flush", note_flush)
    crash(open_directory(root))
    for suffix in ("log", "index", "timeindex"):
        assert str(path / name(10, suffix)) in flushed
