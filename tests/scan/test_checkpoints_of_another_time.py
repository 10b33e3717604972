"""An old copy of a log beside newer checkpoints: it ends below the log start offset that they tell."""

from __future__ import annotations

import pytest

from storage_core import read_table
from storage_core.cli.main import run
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.spans import project, record_schema
from tests.scan.copies import batches, offsets_of, write_copy
from tests.scan.test_copies import stream_offsets

NOTICE = "its log ends at offset 100, below the log start offset 500 in log-start-offset-checkpoint"


@pytest.fixture
def root(tmp_path):
    write_copy(tmp_path, {0: batches(0, 60), 60: batches(60, 100)}, start=500, end=500)
    return tmp_path


@pytest.mark.parametrize("read", [offsets_of, stream_offsets])
@pytest.mark.parametrize(
    "options", [{}, {"mode": "PERMISSIVE"}, {"subscribe": "orders"}, {"isolation_level": "read_committed"}]
)
def test_both_offsets_are_named(root, caplog, read, options):
    assert read(root, **options) == []
    assert caplog.text.count(NOTICE) == 1


@pytest.mark.parametrize("read", [offsets_of, stream_offsets])
@pytest.mark.parametrize("options", [{}, {"mode": "PERMISSIVE"}, {"isolation_level": "read_committed"}])
def test_without_the_checkpoints_all_is_read(root, caplog, read, options):
    assert read(root, ignore_checkpoints=True, **options) == list(range(100))
    assert "ends at offset" not in caplog.text


def test_checkpoints_that_are_ignored_are_not_read(root, caplog):
    (root / "log-start-offset-checkpoint").write_text("damaged")
    (root / "replication-offset-checkpoint").write_text("damaged")
    assert offsets_of(root, ignore_checkpoints=True) == list(range(100))
    assert "Ignored a checkpoint" not in caplog.text


def test_offsets_below_the_log_start(root):
    starting = {"orders": {"0": 30}}
    assert offsets_of(root, starting_offsets=starting, ignore_checkpoints="true") == list(range(30, 100))


def test_a_high_watermark_is_a_checkpoint(root):
    with pytest.raises(OptionError, match="ignoreCheckpoints"):
        read_table(str(root), ending_at="highWatermark", ignore_checkpoints=True)


def test_a_log_that_ends_at_its_start_is_empty(tmp_path, caplog):
    write_copy(tmp_path, {0: batches(0, 100)}, start=100)
    assert offsets_of(tmp_path) == []
    assert not caplog.records


def test_a_copy_beside_it_is_read(root, tmp_path, caplog):
    write_copy(tmp_path / "other", {0: batches(0, 100), 100: batches(100, 130)})
    assert offsets_of(root, tmp_path / "other") == list(range(130))
    assert NOTICE in caplog.text


def test_a_file_that_is_replaced_while_it_is_read(root):
    filesystem = FileSystem()
    plan = plan_scan(filesystem, options_of([root], {"ignore_checkpoints": True}))
    path = root / "orders-0" / f"{0:020d}.log"
    content = path.read_bytes()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(content)
    schema = project(record_schema(), ("offset",))
    rows = [
        row for task in plan.tasks for batch in read_task(filesystem, task, schema) for row in batch["offset"]
    ]
    assert len(rows) == 100


def test_the_flag(root, capfd):
    with pytest.raises(SystemExit) as ended:
        run(["cat", str(root), "--ignore-checkpoints", "true", "-c", "1"])
    assert not ended.value.code
    assert "v0" in capfd.readouterr().out
