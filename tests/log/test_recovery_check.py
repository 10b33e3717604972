"""What a recovery would drop is found out before anything is changed."""

from __future__ import annotations

import os

import pytest

from storage_core.errors import RecoveryWouldDiscardError
from tests.log.logs import BATCH_BYTES, DAMAGE, contents, flip, name, open_directory, reopened, unclean
from tests.log.producing import data


@pytest.mark.parametrize("what", DAMAGE)
def test_the_default_recovery_drops_nothing_whole_and_changes_nothing(root, path, what):
    base_offset, position, _ = DAMAGE[what]
    flip(path / name(base_offset), position)
    unclean(root)
    before = contents(root)
    with pytest.raises(RecoveryWouldDiscardError, match="recovery='kafka'") as caught:
        open_directory(root)
    assert contents(root) == before
    if base_offset != 30:
        assert any(name(30) in text for text in caught.value.discarded)
    if what != "the last batch of an earlier segment":
        assert name(base_offset) in caught.value.discarded[0]
    # It goes on being refused, and the lock was given back.
    with pytest.raises(RecoveryWouldDiscardError):
        open_directory(root)
    open_directory(root, recovery="kafka").close()
    open_directory(root).close()


def test_a_damaged_last_batch_is_a_torn_one(root, path):
    flip(path / name(30), 499)
    unclean(root)
    assert reopened(root)[-1] == list(range(34))


def test_a_damaged_offset_that_leads_out_of_the_segment_is_damage(root, path):
    # The first byte of the base offset of the third batch: no CRC covers it.
    flip(path / name(30), 200)
    content = bytearray((path / name(30)).read_bytes())
    content[200] = 1
    (path / name(30)).write_bytes(content)
    unclean(root)
    with pytest.raises(RecoveryWouldDiscardError, match="bytes 200 to 499"):
        open_directory(root)
    assert reopened(root, recovery="kafka")[-1] == list(range(32))


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_damaged_transaction_index_is_no_reason_to_drop_batches(root, path, is_clean):
    # It has its segment recovered, though that was flushed long ago.
    (path / name(10, "txnindex")).write_bytes(b"garbage")
    flip(path / name(10), 2 * BATCH_BYTES + 50)
    if not is_clean:
        unclean(root, recovery_point=35)
    before = contents(root)
    with pytest.raises(RecoveryWouldDiscardError, match="bytes 200 to 999") as caught:
        open_directory(root)
    assert len(caught.value.discarded) == 1
    assert contents(root) == before
    # The later segments must stay.
    assert reopened(root, recovery="kafka")[-1] == [*range(12), *range(20, 35)]


def test_damage_after_offsets_that_do_not_fit_their_segment_is_found_too(root, path):
    far = 1 << 32
    content = data(30) + data(far) + data(far + 1) + data(far + 2)
    (path / name(30)).write_bytes(content)
    flip(path / name(30), len(content) // 4 * 2 + 65)
    unclean(root)
    with pytest.raises(RecoveryWouldDiscardError, match="from a complete batch at byte 207 on"):
        open_directory(root)
    flip(path / name(30), len(content) // 4 * 2 + 65)
    assert reopened(root)[-1] == [*range(31), far, far + 1, far + 2]


@pytest.mark.parametrize("cut_bytes", [1, BATCH_BYTES])
def test_opening_a_log_that_lacks_flushed_records_is_warned_of(root, path, cut_bytes, caplog):
    log = path / name(30)
    os.truncate(log, log.stat().st_size - cut_bytes)
    with open_directory(root) as logs:
        assert logs.get("orders").log_end_offset == 34
    assert "offsets 34 to 34, which were on disk, are damaged or missing" in caplog.text


def test_opening_after_a_crash_is_not_warned_of(root, path, caplog):
    unclean(root)
    with (path / name(30)).open("ab") as file:
        file.write(data(35)[:-1])
    open_directory(root).close()
    assert not [each for each in caplog.records if "damaged or missing" in each.getMessage()]
