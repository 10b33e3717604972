"""Following logs while others write: each record once, whatever happens to the files."""

from __future__ import annotations

import json
import logging
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.dump.follow import LogFollower
from storage_core.errors import CorruptRecordError, DataLossError, LogTruncationError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.scan.spans import project, record_schema
from tests.examples import examples
from tests.log.logs import append, flip, name, open_directory, small, table


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def logs(root):
    """Yield an open log directory; ten records to a segment."""
    with open_directory(root) as opened:
        yield opened


@pytest.fixture
def follow(root):
    """Follows the directory: each call gives what is new, by partition."""

    def start(*paths, last=None, **options):
        filesystem = FileSystem()
        schema = project(record_schema(), ("topic", "partition", "offset"))
        parsed = options_of(paths or [root], {"fail_on_data_loss": False, **options})
        follower = LogFollower(filesystem, parsed, schema, last=last)

        def read_new():
            found: dict[str, list[int]] = {}
            for batch in follower.read_new():
                for row in batch.to_pylist():
                    found.setdefault(f"{row['topic']}-{row['partition']}", []).append(row["offset"])
            return found

        read_new.filesystem = filesystem
        read_new.follower = follower
        return read_new

    return start


def settle(root):
    """Make all files look as if they had not changed for a minute."""
    for folder, _, files in os.walk(root):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            os.utime(path, (1_700_000_000, 1_700_000_000))


def rounds(read_new, count):
    for _ in range(count):
        read_new()


class TestAppends:
    def test_first_what_there_is_then_what_is_appended(self, logs, follow):
        log = logs.create("orders")
        append(log, 3)
        read_new = follow()
        assert read_new() == {"orders-0": [0, 1, 2]}
        assert read_new() == {}
        append(log, 2)
        assert read_new() == {"orders-0": [3, 4]}
        assert read_new() == {}

    def test_new_partitions_and_topics(self, logs, follow):
        append(logs.create("orders"), 1)
        read_new = follow()
        read_new()
        append(logs.create("orders", 1), 2)
        append(logs.create("clicks"), 1)
        assert read_new() == {"clicks-0": [0], "orders-1": [0, 1]}
        append(logs.get("clicks"), 1)
        assert read_new() == {"clicks-0": [1]}

    def test_only_topics_that_are_asked_for(self, logs, follow):
        append(logs.create("orders"), 1)
        read_new = follow(subscribe="orders")
        assert read_new() == {"orders-0": [0]}
        append(logs.create("clicks"), 1)
        append(logs.create("orders", 1), 1)
        assert read_new() == {"orders-1": [0]}

    def test_only_partitions_that_the_condition_leaves(self, logs, follow):
        log = logs.create("orders")
        append(log, 4)
        read_new = follow(where="offset >= 2 AND partition < 2")
        assert read_new() == {"orders-0": [2, 3]}
        append(log, 1)
        append(logs.create("orders", 1), 4)
        append(logs.create("orders", 2), 4)
        assert read_new() == {"orders-0": [4], "orders-1": [2, 3]}

    def test_the_last_offsets_of_each_partition(self, logs, follow):
        log = logs.create("orders")
        append(log, 12)
        append(logs.create("clicks"), 1)
        read_new = follow(last=2)
        assert read_new() == {"clicks-0": [0], "orders-0": [10, 11]}

    def test_nothing_of_what_was_there(self, logs, follow):
        log = logs.create("orders")
        append(log, 12)
        read_new = follow(last=0)
        assert read_new() == {}
        append(log, 1)
        assert read_new() == {"orders-0": [12]}

    def test_from_a_time_on_also_where_no_record_is_so_late_yet(self, logs, follow):
        log = logs.create("orders")
        append(log, 4, timestamps=(1000, 2000, 3000, 4000))
        append(logs.create("clicks"), 1, timestamps=(1000,))
        read_new = follow(starting_timestamp=3000)
        assert read_new() == {"orders-0": [2, 3]}
        append(logs.get("clicks"), 1, timestamps=(1000,))
        append(logs.create("orders", 1), 2, timestamps=(1000, 3000))
        assert read_new() == {"clicks-0": [1], "orders-1": [1]}

    def test_from_offsets_on(self, logs, follow):
        append(logs.create("orders"), 4)
        read_new = follow(starting_offsets=json.dumps({"orders": {"0": 3}}))
        assert read_new() == {"orders-0": [3]}

    def test_committed_transactions_when_they_are(self, logs, follow):
        log = logs.create("orders")
        read_new = follow(isolation_level="read_committed")
        assert read_new() == {}
        transaction = log.transaction()
        transaction.append(table(b"1", b"2"))
        assert read_new() == {}
        transaction.commit()
        assert read_new() == {"orders-0": [0, 1]}

    def test_up_to_the_high_watermark(self, logs, root, follow):
        append(logs.create("orders"), 5)
        checkpoint = root / "replication-offset-checkpoint"
        checkpoint.write_text("0\n1\norders 0 2\n")
        read_new = follow(ending_at="highWatermark")
        assert read_new() == {"orders-0": [0, 1]}
        temporary = root / "replication-offset-checkpoint.tmp"
        temporary.write_text("0\n1\norders 0 4\n")
        temporary.replace(checkpoint)
        assert read_new() == {"orders-0": [2, 3]}


class TestPolling:
    def test_a_round_without_changes_opens_and_lists_nothing(self, logs, root, follow):
        for number in range(5):
            append(logs.create("orders", number), 1)
        settle(root)
        read_new = follow()
        read_new()
        read_new()
        before = read_new.filesystem.statistics
        opened, listed, examined = before.files_opened, before.directories_listed, before.files_examined
        assert read_new() == {}
        after = read_new.filesystem.statistics
        assert (after.files_opened, after.directories_listed) == (opened, listed)
        # A directory and a log file for each partition; the root, its journal, commits and truncations.
        assert after.files_examined - examined <= 5 * 2 + 4

    def test_an_append_within_the_granularity_of_time_stamps_is_seen(self, logs, root, follow):
        log = logs.create("orders")
        append(log, 1)
        read_new = follow()
        read_new()
        status = os.stat(root / "orders-0" / name(0))
        append(log, 1)
        # Preallocated files keep their size, too.
        os.utime(root / "orders-0" / name(0), ns=(status.st_atime_ns, status.st_mtime_ns))
        assert read_new() == {"orders-0": [1]}


class TestOtherChanges:
    def test_retention_overtakes(self, logs, follow, caplog):
        log = logs.create("orders")
        append(log, 5)
        read_new = follow()
        read_new()
        append(log, 30)
        log.delete_records(20)
        assert read_new() == {"orders-0": list(range(20, 35))}
        assert "read orders-0 on from offset 5, found that it starts at offset 20" in caplog.text

    def test_retention_overtakes_and_loss_is_an_error(self, logs, follow):
        log = logs.create("orders")
        append(log, 5)
        read_new = follow(fail_on_data_loss=True)
        read_new()
        append(log, 30)
        log.delete_records(20)
        with pytest.raises(DataLossError, match="starts at offset 20") as caught:
            rounds(read_new, 3)
        assert (caught.value.offset, caught.value.last_offset) == (5, 19)

    def test_truncated(self, logs, follow, caplog):
        log = logs.create("orders")
        append(log, 15)
        read_new = follow()
        read_new()
        log.truncate_to(12)
        assert read_new() == {}
        append(log, 5)
        assert read_new() == {"orders-0": [12, 13, 14, 15, 16]}
        assert "truncated to offset 12" in caplog.text

    def test_truncated_by_a_broker_which_leaves_a_new_leader_epoch(self, logs, root, follow):
        log = logs.create("orders")
        append(log, 15, leader_epoch=3)
        logs.close()
        read_new = follow()
        read_new()
        with open_directory(root) as again:
            log = again.get("orders")
            log.truncate_to(12)
            append(log, 8, leader_epoch=4)
        (root / ".segmentlog-truncations").unlink()
        assert read_new() == {"orders-0": list(range(12, 20))}

    @pytest.mark.parametrize("fails", [False, True])
    def test_truncated_after_its_end_was_found(self, logs, root, follow, fails):
        """Remove the marker of an aborted transaction while the caller handles the rows of another log."""
        clicks, orders = logs.create("clicks"), logs.create("orders")
        transaction = orders.transaction(7)
        transaction.append(table("a", "b"))
        orders.roll()
        append(orders, 1)
        transaction.abort()
        append(clicks, 1)
        read_new = follow(isolation_level="read_committed", fail_on_data_loss=fails)
        batches = read_new.follower.read_new()
        assert next(batches)["topic"].to_pylist() == ["clicks"]
        orders.truncate_to(3)
        append(orders, 1)
        assert list(batches) == []
        orders.abort_transaction(7)
        assert read_new() == {"orders-0": [2, 3]}

    def test_truncated_and_loss_is_an_error(self, logs, follow):
        log = logs.create("orders")
        append(log, 15)
        read_new = follow(fail_on_data_loss=True)
        read_new()
        log.truncate_to(12)
        with pytest.raises(LogTruncationError, match="truncated to offset 12") as caught:
            rounds(read_new, 3)
        assert (caught.value.offset, caught.value.last_offset) == (12, 14)

    def test_a_topic_that_is_deleted(self, logs, follow, caplog):
        append(logs.create("orders"), 5)
        append(logs.create("clicks"), 1)
        read_new = follow(subscribe="orders,clicks")
        read_new()
        logs.delete("orders")
        append(logs.get("clicks"), 1)
        assert read_new() == {"clicks-0": [1]}
        assert "orders-0 is gone" in caplog.text

    def test_cleaned(self, root, follow):
        with open_directory(root, config=small(cleanup_policy="compact")) as logs:
            log = logs.create("orders")
            for number in range(25):
                log.append(table(str(number).encode(), keys=[b"k%d" % (number % 2)]))
            read_new = follow()
            read_new()
            assert log.clean().records_after == 2
            log.append(table(b"new", keys=[b"k0"]))
            assert read_new() == {"orders-0": [25]}

    def test_moved_to_another_disk(self, logs, root, follow, tmp_path):
        append(logs.create("orders"), 5)
        append(logs.create("clicks"), 1)
        logs.close()
        other = tmp_path / "other"
        with open_directory(other) as others:
            append(others.create("carts"), 1)
        read_new = follow(root, other)
        read_new()
        shutil.move(root / "orders-0", other / "orders-0")
        with open_directory(other) as others:
            append(others.get("orders"), 1)
        assert read_new() == {"orders-0": [5]}

    def test_deleted_in_one_directory_while_a_job_is_committed_in_another(
        self, logs, follow, tmp_path, monkeypatch
    ):
        append(logs.create("clicks"), 1)
        with open_directory(tmp_path / "other") as others:
            append(others.create("orders"), 1)
            read_new = follow(tmp_path / "data", tmp_path / "other")
            read_new()
            append(logs.get("clicks"), 1)
            append(others.get("orders"), 1)
            monitor = read_new.follower._monitor
            look_at = monitor._refresh

            def look_at_meanwhile(root, suspects):
                if root.path.endswith("other") and (tmp_path / "data" / "clicks-0").exists():
                    logs.delete("clicks")
                    # As after a commit that became visible during the look.
                    return False
                return look_at(root, suspects)

            monkeypatch.setattr(monitor, "_refresh", look_at_meanwhile)
            assert read_new() == {"orders-0": [1]}

    def test_a_batch_that_is_being_written(self, logs, root, follow):
        append(logs.create("orders"), 2)
        logs.close()
        path = root / "orders-0" / name(0)
        whole = path.read_bytes()
        path.write_bytes(whole[:150])
        read_new = follow()
        assert read_new() == {"orders-0": [0]}
        path.write_bytes(whole)
        assert read_new() == {"orders-0": [1]}

    @pytest.mark.parametrize(
        ("options", "at_first"),
        [
            ({}, {"orders-0": [0, 1, 2]}),
            ({"last": 0}, {}),
            ({"last": 1}, {"orders-0": [2]}),
            ({"starting_timestamp": 10**15}, {}),
            ({"isolation_level": "read_committed"}, {"orders-0": [0, 1, 2]}),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("size_bytes", [300, 350])
    def test_records_that_checkpoints_know_and_the_last_file_has_not_yet(
        self, logs, root, follow, caplog, size_bytes, options, at_first
    ):
        append(logs.create("orders"), 5)
        logs.close()
        (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n", encoding="utf-8")
        path = root / "orders-0" / name(0)
        whole = path.read_bytes()
        path.write_bytes(whole[:size_bytes])
        read_new = follow(fail_on_data_loss=True, **options)
        assert read_new() == at_first
        rounds(read_new, 4)
        assert "the checkpoints say that it reached 5" in caplog.text
        path.write_bytes(whole)
        assert read_new() == {"orders-0": [3, 4]}

    def test_damage_that_stays_is_an_error(self, logs, root, follow):
        append(logs.create("orders"), 5)
        logs.close()
        flip(root / "orders-0" / name(0), 150)
        read_new = follow()
        assert read_new() == {"orders-0": [0]}
        assert read_new() == {}
        with pytest.raises(CorruptRecordError):
            read_new()

    def test_damage_that_is_skipped(self, logs, root, follow):
        append(logs.create("orders"), 5)
        logs.close()
        flip(root / "orders-0" / name(0), 170)
        read_new = follow(mode="DROPMALFORMED")
        assert read_new() == {"orders-0": [0, 2, 3, 4]}
        assert read_new() == {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(1, 15)),
        st.tuples(st.just("delete"), st.integers(1, 15)),
        st.tuples(st.just("anew"), st.just(0)),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=25,
)


class ChangingLog:
    """A log, and what may happen to it. Batches have one record, because a truncation drops whole ones."""

    def __init__(self, logs):
        self.logs = logs
        self.log = logs.create("orders")
        self.written = 0

    def append(self, count):
        for _ in range(count):
            self.log.append(table(b"%d" % self.written))
            self.written += 1

    def roll(self, _):
        self.log.roll()

    def truncate(self, count):
        self.log.truncate_to(max(self.log.log_end_offset - count, self.log.log_start_offset))

    def delete(self, count):
        self.log.delete_records(min(self.log.log_start_offset + count, self.log.log_end_offset))

    def anew(self, _):
        self.logs.delete("orders")
        self.log = self.logs.create("orders")

    def records(self):
        return dict(rows_of(self.log.read(self.log.log_start_offset)))


def rows_of(batches):
    for batch in batches:
        yield from zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)


@examples(100)
@given(steps=STEPS)
def test_whatever_happens_what_was_read_last_is_the_log(tmp_path_factory, steps):
    """Records of an offset at or below the last one replace all that was read from there on."""
    root = tmp_path_factory.mktemp("data")
    schema = project(record_schema(), ("offset", "value"))
    follower = LogFollower(FileSystem(), options_of([root], {"fail_on_data_loss": False}), schema)
    read: dict[int, bytes] = {}

    def follow_on():
        for offset, value in rows_of(follower.read_new()):
            for known in [each for each in read if each >= offset]:
                del read[known]
            read[offset] = value

    with open_directory(root) as logs:
        changing = ChangingLog(logs)
        for step, count in steps:
            follow_on() if step == "read" else getattr(changing, step)(count)
        changing.append(1)
        # The second one is for a truncation that the first one met.
        follow_on()
        follow_on()
        log_start_offset = changing.log.log_start_offset
        present = changing.records()
    assert {offset: value for offset, value in read.items() if offset >= log_start_offset} == present


def test_an_end_is_refused(logs, follow):
    append(logs.create("orders"), 1)
    with pytest.raises(OptionError, match="has no end"):
        follow(ending_timestamp=5)


def test_a_topic_that_does_not_exist_at_the_beginning_is_an_error(logs, follow):
    append(logs.create("orders"), 1)
    with pytest.raises(OptionError, match="does not exist"):
        follow(subscribe="order")()


def test_nothing_is_written(logs, root, follow, caplog):
    caplog.set_level(logging.DEBUG)
    append(logs.create("orders"), 5)
    logs.close()
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    read_new = follow()
    read_new()
    read_new()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
