"""The local half of a tiered topic is opened, written and closed without a word on what only remote storage has.

A broker deletes the remote segments below the log start, and needs the older leader epochs to find the others.
"""

from __future__ import annotations

import pytest

from tests.log.logs import append, crash, name, offsets, open_directory, small, table, unclean, value

CHECKPOINT = "log-start-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"


@pytest.fixture(params=[0, 7, 20])
def start(request):
    """Return the log start in the checkpoint. With tiered storage, brokers write one that the first segment has, too."""
    return request.param


@pytest.fixture
def half(root, start):
    """Return the last two segments, from offset 20 on, of a log that the checkpoint says to begin earlier."""
    for base_offset in (0, 10):
        for path in (root / "orders-0").glob(name(base_offset, "*")):
            path.unlink()
    (root / CHECKPOINT).write_text(f"0\n1\norders 0 {start}\n")
    (root / "orders-0" / EPOCHS).write_text(
        f"0\n3\n0 {start}\n1 {max(start, 12)}\n2 20\n" if start < 20 else "0\n1\n2 20\n"
    )
    return root


def kept(root):
    return (root / CHECKPOINT).read_bytes(), (root / "orders-0" / EPOCHS).read_bytes()


@pytest.mark.parametrize("is_clean", [True, False])
def test_opening_and_closing(half, is_clean):
    before = kept(half)
    if not is_clean:
        unclean(half, 20)
    with open_directory(half) as logs:
        log = logs.get("orders")
        assert offsets(log) == list(range(20, 35))
        assert log.log_start_offset == 20
        logs.checkpoint()
        assert kept(half) == before
    assert kept(half) == before
    with open_directory(half) as logs:
        append(logs.get("orders"), 25)
    assert kept(half) == before


def test_the_log_start_is_raised_where_records_are_deleted(half, start):
    with open_directory(half) as logs:
        log = logs.get("orders")
        log.delete_records(5)
        log.delete_records(15)
        assert log.log_start_offset == 20
        assert (half / CHECKPOINT).read_text() == f"0\n1\norders 0 {max(start, 15)}\n"
        if start < 15:
            assert [(each.epoch, each.start_offset) for each in log.leader_epochs] == [(1, 15), (2, 20)]
        log.delete_records(32)
    # A broker with tiered storage finds no log start in the names of segments.
    assert (half / CHECKPOINT).read_text() == "0\n1\norders 0 32\n"
    assert (half / "orders-0" / EPOCHS).read_text() == "0\n1\n2 32\n"


def test_retention_raises_the_log_start(half):
    with open_directory(half, config=small(retention_bytes=500, retention_ms=-1)) as logs:
        assert logs.get("orders").apply_retention() == (20,)
    assert (half / CHECKPOINT).read_text() == "0\n1\norders 0 30\n"
    assert (half / "orders-0" / EPOCHS).read_text() == "0\n1\n2 30\n"


@pytest.mark.parametrize(("end", "start_after"), [(25, None), (3, 3)])
def test_a_truncation(half, start, end, start_after):
    before = kept(half)
    with open_directory(half) as logs:
        logs.get("orders").truncate_to(end)
    assert (half / CHECKPOINT).read_text() == f"0\n1\norders 0 {min(start, end)}\n"
    if start_after is None:
        assert kept(half) == before


def test_transactions_of_the_remote_part_are_remembered(tmp_path):
    root = tmp_path / "data"
    logs = open_directory(root)
    log = logs.create("orders")
    log.transaction(17).append(table(value(0)))
    append(log, 30)
    logs.checkpoint()
    first = log.segment_base_offsets[1]
    crash(logs)
    for path in (root / "orders-0").glob("*"):
        if path.name.startswith(name(0, "")) or (
            path.suffix == ".snapshot" and path.name != name(first, "snapshot")
        ):
            path.unlink()
    (root / CHECKPOINT).write_text("0\n1\norders 0 0\n")
    with open_directory(root, recovery="kafka") as logs:
        assert [each.producer_id for each in logs.get("orders").open_transactions()] == [17]
