"""The checkpoints of a log directory (214)."""

from __future__ import annotations

from tests.log.logs import append, names, open_directory, write


def test_checkpoints_are_written_when_asked_for(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 3)
        logs.checkpoint()
        assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 0\n"
        log.flush()
        logs.checkpoint()
        assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"


def test_the_high_watermark_of_a_replica_comes_back(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 5)
        log.update_high_watermark(3)
    with open_directory(tmp_path) as logs:
        assert logs.get("orders").high_watermark == 3


def test_unreadable_checkpoints_count_as_none(tmp_path):
    write(tmp_path)
    for name in names(tmp_path):
        if name.endswith("checkpoint"):
            (tmp_path / name).write_text("garbage")
    with open_directory(tmp_path) as logs:
        log = logs.get("orders")
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 12, 12)
