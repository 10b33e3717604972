"""Where a stream ends beside a broker that does not run, and while its checkpoint comes, changes and goes."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys

import pytest

from storage_core.filesystem import FileSystem
from storage_core.scan import tail
from tests.log.logs import append, open_directory
from tests.scan.test_stream import Query, orders

_HOLD = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
_LONG_AGO = (1_700_000_000, 1_700_000_000)


class Broker:
    """A log directory as a broker leaves it on disk, with ten records in each of two partitions."""

    def __init__(self, root):
        self.root = root
        self.path = root / "replication-offset-checkpoint"
        self.append(10)
        (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n")
        (root / ".lock").touch()

    def append(self, count):
        meta = self.root / "meta.properties"
        content = meta.read_bytes() if meta.exists() else None
        meta.unlink(missing_ok=True)
        with open_directory(self.root) as logs:
            for number in (0, 1):
                append(logs.get_or_create("orders", number), count)
        if content is not None:
            meta.write_bytes(content)

    def checkpoint(self, *high_watermarks):
        """Write a checkpoint, without lines for partitions whose high watermark is None."""
        lines = [
            f"orders {number} {offset}" for number, offset in enumerate(high_watermarks) if offset is not None
        ]
        self.path.with_suffix(".tmp").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
        self.path.with_suffix(".tmp").rename(self.path)


@pytest.fixture
def broker(tmp_path):
    return Broker(tmp_path / "data")


@pytest.fixture
def running_broker(broker):
    """Return the same directory, while another process holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, broker.root / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"held\n"
        yield broker
        process.kill()


def left_out(caplog):
    return [each.args[1] for each in caplog.records if "Left out are offsets" in each.msg]


class TestABrokerThatDoesNotRun:
    def test_records_after_an_old_high_watermark_are_named_once(self, broker, caplog):
        broker.checkpoint(4, 10)
        running = Query(broker.root)
        assert running.new_rows() == [*orders(*range(4)), *orders(*range(10), partition=1)]
        running.run()
        assert left_out(caplog) == ["orders-0 from 4 to 10"]
        assert "endingAt=logEnd" in caplog.text

    def test_a_partition_without_a_line_is_named(self, broker, caplog):
        broker.checkpoint(10, None)
        running = Query(broker.root)
        running.stream.stop_at_present_ends()
        assert running.new_rows() == orders(*range(10))
        assert left_out(caplog) == ["orders-1 from 0 to 10"]

    def test_a_checkpoint_without_any_line_is_one(self, broker, caplog):
        broker.checkpoint(None, None)
        running = Query(broker.root)
        assert running.new_rows() == []
        assert left_out(caplog) == ["orders-0 from 0 to 10, orders-1 from 0 to 10"]
        broker.checkpoint(1, None)
        assert running.new_rows() == orders(0)

    def test_a_checkpoint_that_is_complete_leaves_nothing_out(self, broker, caplog):
        broker.checkpoint(10, 10)
        assert len(Query(broker.root).new_rows()) == 20
        assert left_out(caplog) == []

    def test_all_is_read_if_asked_for(self, broker, caplog):
        broker.checkpoint(0, None)
        assert len(Query(broker.root, ending_at="logEnd").new_rows()) == 20
        assert left_out(caplog) == []

    def test_a_broker_that_dies_while_the_stream_runs(self, running_broker, caplog, monkeypatch):
        running_broker.checkpoint(4, 10)
        running = Query(running_broker.root)
        running.run()
        assert left_out(caplog) == []
        monkeypatch.setattr(tail, "_QUIET_S", -1)
        running.run()
        running.run()
        assert left_out(caplog) == ["orders-0 from 4 to 10"]

    def test_a_checkpoint_that_another_program_does_not_renew(self, running_broker, caplog):
        running_broker.checkpoint(4, 10)
        os.utime(running_broker.path, _LONG_AGO)
        Query(running_broker.root).run()
        assert left_out(caplog) == ["orders-0 from 4 to 10"]


class TestABrokerThatRuns:
    def test_is_no_reason_for_a_warning(self, running_broker, caplog):
        running_broker.checkpoint(4, None)
        running = Query(running_broker.root)
        assert running.new_rows() == orders(*range(4))
        running_broker.checkpoint(6, 3)
        assert sorted(running.new_rows()) == [*orders(4, 5), *orders(*range(3), partition=1)]
        assert left_out(caplog) == []

    def test_its_lock_is_tested_and_not_taken(self, broker, running_broker):
        filesystem = FileSystem()
        assert filesystem.is_locked(str(broker.root / ".lock"))
        assert not filesystem.is_locked(str(broker.root / "meta.properties"))
        assert not filesystem.is_locked(str(broker.root / "nothing"))

    def test_a_lock_of_this_process_is_seen_and_kept(self, broker):
        filesystem = FileSystem()
        path = str(broker.root / ".lock")
        with filesystem.lock(path):
            assert filesystem.is_locked(path)
            script = "import sys; from storage_core.filesystem import FileSystem; print(FileSystem().is_locked(sys.argv[1]))"
            found = subprocess.run(
                [sys.executable, "-c", script, path], check=True, capture_output=True, text=True
            )
            assert found.stdout == "True\n"
        assert not filesystem.is_locked(path)


class TestACheckpointThatChangesWhileTheStreamRuns:
    def test_appears(self, broker, caplog):
        running = Query(broker.root)
        assert len(running.new_rows()) == 20
        broker.append(5)
        broker.checkpoint(10, 10)
        assert running.new_rows() == []
        broker.checkpoint(12, 10)
        assert running.new_rows() == orders(10, 11)

    def test_appears_with_older_offsets(self, broker):
        running = Query(broker.root)
        running.run()
        broker.checkpoint(4, 10)
        assert running.new_rows() == []
        broker.append(1)
        broker.checkpoint(11, 10)
        assert running.new_rows() == orders(10)

    def test_vanishes(self, broker, caplog):
        broker.checkpoint(4, 10)
        running = Query(broker.root)
        running.run()
        broker.path.unlink()
        assert running.new_rows() == orders(*range(4, 10))
        running.run()
        (warning,) = (each for each in caplog.records if "is read to its log ends" in each.getMessage())
        assert warning.levelno == logging.WARNING
        broker.append(1)
        broker.checkpoint(10, 10)
        assert running.new_rows() == []

    def test_belongs_to_a_broker_from_then_on(self, broker):
        shutil.move(broker.root / "meta.properties", broker.root / "kept")
        running = Query(broker.root)
        assert len(running.new_rows()) == 20
        shutil.move(broker.root / "kept", broker.root / "meta.properties")
        broker.append(1)
        broker.checkpoint(10, 10)
        assert running.new_rows() == []
