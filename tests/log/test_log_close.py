"""What a close leaves: all that a broker needs to load the log without recovery."""

from __future__ import annotations

from tests.log.logs import append, contents, open_directory


def test_what_a_close_leaves(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 25, leader_epoch=3)
        log.delete_records(13)
        append(logs.create("clicks", 2), 4)
        logs.create("empty")
    assert sorted((tmp_path / "recovery-point-offset-checkpoint").read_text().splitlines()) == [
        "0",
        "3",
        "clicks 2 4",
        "empty 0 0",
        "orders 0 25",
    ]
    assert sorted((tmp_path / "replication-offset-checkpoint").read_text().splitlines()) == [
        "0",
        "3",
        "clicks 2 4",
        "empty 0 0",
        "orders 0 25",
    ]
    # Only where it is above the first segment.
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 13\n"
    assert (tmp_path / "orders-0/leader-epoch-checkpoint").read_text() == "0\n1\n3 13\n"
    files = contents(tmp_path / "orders-0")
    assert {name for name in files if not name.endswith(".deleted")} == {
        *(
            f"{base:020d}.{suffix}"
            for base in (10, 20)
            for suffix in ("log", "index", "timeindex", "snapshot")
        ),
        "00000000000000000025.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    # Trimmed, and the time index is complete.
    assert len(files["00000000000000000020.index"]) == 8
    assert int.from_bytes(files["00000000000000000020.timeindex"][-4:], "big") == 0
    # Of an empty log the index files are there all the same: a broker would miss them.
    assert {name: len(content) for name, content in contents(tmp_path / "empty-0").items()} == {
        "00000000000000000000.index": 0,
        "00000000000000000000.log": 0,
        "00000000000000000000.timeindex": 0,
        "partition.metadata": 43,
    }
