"""Micro-batches of growing logs: each record once, whatever is killed, repeated or changed in between."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import ProducerSequence
from storage_core.checkpoint.truncations_file import TRUNCATIONS_FILE
from storage_core.errors import DataLossError, LogDirectoryError, OffsetOutOfRangeError, OptionError
from storage_core.filesystem import FileStatus, FileSystem
from storage_core.options import parse_stream_options
from storage_core.scan.read import read_task
from storage_core.scan.spans import project, record_schema
from storage_core.scan.stream import (
    MicroBatchPlanner,
    json_of_offsets,
    offsets_of_json,
    schema_ids_of_json,
    shares,
)
from storage_core.scan.tail import is_settled
from tests.examples import examples
from tests.log.logs import Clock, append, name, open_directory, table

SCHEMA = project(record_schema(), ("topic", "partition", "offset"))
_WITH_DAMAGE = project(
    record_schema(corrupt_record_column="_corrupt_record"), (*SCHEMA.names, "_corrupt_record")
)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def logs(root):
    """Yield an open log directory; ten records to a segment."""
    with open_directory(root) as opened:
        yield opened


class Query:
    """A streaming query as Spark runs it: a checkpoint of offsets, and a reader for each run."""

    def __init__(self, *paths, knows_starts=True, **options):
        self.options = {"path": [str(path) for path in paths], "starting_offsets": "earliest", **options}
        self.knows_starts = knows_starts
        # The ends of batches, as text, and how many of these batches are committed.
        self.ends: list[str] = []
        self.committed = 0
        self.rows: list[tuple[str, int, int]] = []
        self.start()

    def start(self, **changed):
        """Start the query, or start it again after it was killed; repeat the batch that was not committed."""
        self.options |= changed
        self.filesystem = FileSystem()
        self.stream = MicroBatchPlanner(self.filesystem, parse_stream_options(self.options))
        if self.ends and not self.knows_starts:
            # What Spark 4.0 and 4.1 do instead of passing the start.
            last = offsets_of_json(json.loads(self.ends[-1]))
            assert self.stream.plan(last, last).tasks == ()
        if self.committed < len(self.ends):
            self.run_batch()
        return self

    def plan_batch(self, *, is_limited=True):
        """Write the end of the next batch to the checkpoint; False if there is none."""
        if self.knows_starts:
            start = self.last_end()
            latest = self.stream.latest_offsets(start, is_limited=is_limited)
        else:
            latest = self.stream.latest_offsets()
        text = json.dumps(json_of_offsets(latest))
        if self.ends and text == self.ends[-1]:
            return False
        self.ends.append(text)
        return True

    def last_end(self):
        if not self.ends:
            return self.stream.initial_offsets()
        return offsets_of_json(json.loads(self.ends[-1]))

    def read_batch(self):
        """Return the rows of the batch that is not committed yet."""
        number = self.committed
        start = self.stream.initial_offsets()
        if number:
            start = offsets_of_json(json.loads(self.ends[number - 1]))
        rows = []
        schema = _WITH_DAMAGE if self.options.get("mode") == "PERMISSIVE" else SCHEMA
        for task in self.stream.plan(start, offsets_of_json(json.loads(self.ends[number]))).tasks:
            for batch in read_task(self.filesystem, task, schema):
                rows += [(row["topic"], row["partition"], row["offset"]) for row in batch.to_pylist()]
        return rows

    def run_batch(self):
        self.rows += self.read_batch()
        self.committed += 1

    def run(self, **options):
        """Run all batches that there are; return their rows, batch by batch."""
        batches = []
        while self.plan_batch(**options):
            before = len(self.rows)
            self.run_batch()
            batches.append(self.rows[before:])
        return batches

    def new_rows(self):
        return [row for batch in self.run() for row in batch]


def orders(*offsets, partition=0):
    return [("orders", partition, offset) for offset in offsets]


@pytest.fixture(params=[True, False], ids=["Spark 4.2", "Spark 4.0"])
def query(request, root):
    """Makes a query of the directory, of a Spark that passes the start of a batch, and of one that does not."""

    def make(*paths, **options):
        return Query(*(paths or [root]), knows_starts=request.param, **options)

    return make


class TestAppends:
    def test_what_is_there_and_what_is_appended(self, logs, query):
        log = logs.create("orders")
        append(log, 3)
        running = query()
        assert running.run() == [orders(0, 1, 2)]
        assert running.run() == []
        append(log, 25)
        assert running.run() == [orders(*range(3, 28))]

    def test_new_partitions_and_topics_are_read_from_their_beginning(self, logs, query):
        append(logs.create("orders"), 2)
        running = query(starting_offsets="latest")
        assert running.new_rows() == []
        append(logs.create("orders", 1), 2)
        append(logs.create("clicks"), 1)
        assert sorted(running.new_rows()) == [("clicks", 0, 0), *orders(0, 1, partition=1)]

    def test_a_roll_without_another_record(self, logs, query):
        log = logs.create("orders")
        append(log, 4)
        running = query()
        running.run()
        log.roll()
        assert running.new_rows() == []
        append(log, 1)
        assert running.new_rows() == orders(4)

    def test_a_restart_goes_on_where_the_last_batch_ended(self, logs, query):
        log = logs.create("orders")
        append(log, 3)
        running = query()
        running.run()
        append(log, 2)
        assert running.start().new_rows() == orders(3, 4)
        assert running.start().new_rows() == []

    def test_a_batch_that_is_repeated_has_the_same_rows(self, logs, query):
        log = logs.create("orders")
        append(log, 3)
        running = query()
        running.run()
        append(log, 2)
        assert running.plan_batch()
        rows = running.read_batch()
        append(log, 2)
        append(logs.create("orders", 1), 1)
        running.start()
        assert running.rows[3:] == rows == orders(3, 4)
        assert sorted(running.new_rows()) == [*orders(5, 6), *orders(0, partition=1)]

    def test_nothing_is_written(self, logs, root, query):
        append(logs.create("orders"), 3)
        before = sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*"))
        query().run()
        assert sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*")) == before

    def test_an_idle_look_opens_and_lists_nothing(self, logs, root, query):
        append(logs.create("orders"), 3)
        for folder, _, files in os.walk(root):
            for path in (folder, *(os.path.join(folder, file) for file in files)):
                os.utime(path, (1_700_000_000, 1_700_000_000))
        running = query()
        running.run()
        for _ in range(4):
            running.run()
        before = running.filesystem.statistics.files_opened, running.filesystem.statistics.directories_listed
        assert running.run() == []
        statistics = running.filesystem.statistics
        # The journal and the list of commits are looked for.
        assert (statistics.files_opened, statistics.directories_listed) == before

    @pytest.mark.parametrize(("age_ms", "expected"), [(1_999, False), (2_001, True)])
    def test_a_file_may_have_changed_again_within_the_tick_of_its_clock(self, monkeypatch, age_ms, expected):
        monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
        status = FileStatus(1, 1_700_000_000_000 - age_ms, 1, 1, is_regular_file=True, is_directory=False)
        assert is_settled(status) == expected

    def test_idle_looks_pause_in_proportion_to_what_they_cost(self, logs, query, monkeypatch):
        log = logs.create("orders")
        append(log, 3)
        running = query()
        pauses = []
        monkeypatch.setattr(time, "sleep", pauses.append)
        # A look at the clock takes a millisecond: what else the machine does must not count.
        ticks = count()
        monkeypatch.setattr(time, "monotonic", lambda: next(ticks) / 1000)
        running.run()
        assert pauses == []
        running.run()
        running.run()
        assert len(pauses) == 2
        assert all(0 < pause_s <= 0.5 for pause_s in pauses)
        append(log, 1)
        running.run()
        # The look that found something, and the one after it.
        assert len(pauses) == 3


class TestWhereANewQueryStarts:
    def test_at_the_latest_offset_by_default(self, logs, root):
        log = logs.create("orders")
        append(log, 3)
        running = Query(root, starting_offsets=None)
        assert running.run() == [[]]
        append(log, 2)
        assert running.run() == [orders(3, 4)]

    @pytest.mark.parametrize("start", ["latest", '{"orders":{"0":-1}}'])
    def test_the_first_batch_is_empty_so_that_the_checkpoint_knows_the_start(self, logs, query, start):
        """A crash in it loses nothing, though records are appended before the query starts again."""
        log = logs.create("orders")
        append(log, 3)
        running = query(starting_offsets=start)
        assert running.plan_batch()
        assert running.ends == ['{"orders": {"0": 3}}']
        append(log, 4)
        running.start()
        assert running.rows == []
        assert running.new_rows() == orders(3, 4, 5, 6)

    def test_partitions_made_between_a_crash_in_the_first_batch_and_the_restart(self, logs, query):
        append(logs.create("orders"), 3)
        running = query(starting_offsets="latest")
        assert running.plan_batch()
        append(logs.create("orders", 1), 2)
        running.start()
        assert running.new_rows() == orders(0, 1, partition=1)

    def test_at_a_time_without_a_record(self, logs, query):
        log = logs.create("orders")
        append(log, 3, timestamps=[1000, 2000, 3000])
        running = query(starting_timestamp=5000, starting_offsets_by_timestamp_strategy="latest")
        assert running.plan_batch()
        append(log, 2, timestamps=[4000, 6000])
        running.start()
        assert running.rows == []
        assert running.new_rows() == orders(3, 4)

    def test_at_a_time_with_a_record(self, logs, query):
        log = logs.create("orders")
        append(log, 3, timestamps=[1000, 2000, 3000])
        running = query(starting_timestamp=2000)
        assert running.run() == [orders(1, 2)]

    def test_at_a_time_without_a_record_is_an_error_by_default(self, logs, query):
        append(logs.create("orders"), 1, timestamps=[1000])
        with pytest.raises(OffsetOutOfRangeError, match="No offset matched"):
            query(starting_timestamp=5000).run()

    def test_a_relative_time_moves_on_until_the_first_batch_is_committed(self, root, query):
        now_ms = int(time.time() * 1000)
        with open_directory(root, clock=Clock(now_ms)) as logs:
            logs.create("orders").append(table(b"a", b"b", timestamps=[now_ms - 3_600_000, now_ms - 60_000]))
        running = query(starting_timestamp="-10 minutes")
        assert running.run() == [[], orders(1)]

    def test_at_offsets(self, logs, query):
        append(logs.create("orders"), 5)
        append(logs.create("orders", 1), 5)
        assert query(starting_offsets='{"orders":{"0":3,"1":-2}}').run() == [
            [*orders(3, 4), *orders(*range(5), partition=1)]
        ]

    def test_at_the_latest_and_the_earliest_offset_among_times(self, logs, query):
        for number in range(3):
            append(logs.create("orders", number), 3, timestamps=[1000, 2000, 3000])
        running = query(starting_offsets_by_timestamp='{"orders":{"0":-1,"1":-2,"2":3000}}')
        assert running.new_rows() == [*orders(0, 1, 2, partition=1), *orders(2, partition=2)]
        append(logs.get("orders"), 1)
        assert running.new_rows() == orders(3)

    def test_offsets_of_other_partitions_are_an_error(self, logs, query):
        append(logs.create("orders"), 5)
        with pytest.raises(OptionError, match="KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
            query(starting_offsets='{"orders":{"1":3}}').run()

    def test_an_offset_below_the_log_start_is_data_loss(self, logs, query):
        log = logs.create("orders")
        append(log, 5)
        log.delete_records(2)
        with pytest.raises(OffsetOutOfRangeError, match="COULD_NOT_READ_OFFSET_RANGE"):
            query(starting_offsets='{"orders":{"0":1}}').run()
        assert query(starting_offsets='{"orders":{"0":1}}', fail_on_data_loss=False).run() == [
            orders(2, 3, 4)
        ]


class TestLimits:
    def test_shares_are_in_proportion_and_never_nothing(self):
        sizes = {("a", 0): 990, ("a", 1): 9, ("a", 2): 1}
        assert shares(sizes, 100) == {("a", 0): 99, ("a", 1): 1, ("a", 2): 1}
        assert shares(sizes, 2000) == sizes
        assert shares({}, 5) == {}

    def test_most_offsets(self, logs, query):
        append(logs.create("orders"), 8)
        append(logs.create("orders", 1), 4)
        running = query(max_offsets_per_trigger=6)
        sizes = [len(batch) for batch in running.run()]
        assert sizes == [6, 6]
        assert sorted(running.rows) == [*orders(*range(8)), *orders(*range(4), partition=1)]

    def test_most_bytes(self, logs, query):
        append(logs.create("orders"), 25)
        running = query(max_bytes_per_trigger=1000)
        batches = running.run()
        assert [row for batch in batches for row in batch] == orders(*range(25))
        assert 3 <= len(batches) <= 5

    def test_fewer_bytes_than_one_batch_has(self, logs, query):
        append(logs.create("orders"), 3)
        assert query(max_bytes_per_trigger=1).run() == [orders(0), orders(1), orders(2)]

    def test_no_limit_where_all_is_asked_for(self, logs, root):
        append(logs.create("orders"), 25)
        running = Query(root, max_offsets_per_trigger=2, max_bytes_per_trigger=100, min_offsets_per_trigger=2)
        assert [len(batch) for batch in running.run(is_limited=False)] == [25]

    def test_a_batch_waits_for_the_least_number_of_offsets(self, logs, query):
        log = logs.create("orders")
        append(log, 1)
        running = query(min_offsets_per_trigger=3)
        # The first one of a run never waits.
        assert running.run() == [orders(0)]
        append(log, 2)
        assert running.run() == []
        append(log, 1)
        assert running.run() == [orders(1, 2, 3)]

    def test_no_least_number_is_none_at_all(self, logs, query):
        append(logs.create("orders"), 1)
        assert query(min_offsets_per_trigger=0).run() == [orders(0)]

    def test_no_offsets_at_all_as_in_the_kafka_source(self, logs, query, caplog):
        append(logs.create("orders"), 3)
        assert query(max_offsets_per_trigger=0).new_rows() == []
        assert "maxOffsetsPerTrigger is 0" in caplog.text

    def test_but_not_for_longer_than_it_may(self, logs, query):
        log = logs.create("orders")
        append(log, 1)
        running = query(min_offsets_per_trigger=3, max_trigger_delay="1ms")
        running.run()
        append(log, 1)
        assert running.run() == [orders(1)]


class TestAvailableNow:
    def test_many_batches_up_to_the_ends_of_the_beginning(self, logs, root):
        log = logs.create("orders")
        append(log, 7)
        running = Query(root, max_offsets_per_trigger=3, min_offsets_per_trigger=2)
        running.stream.stop_at_present_ends()
        append(log, 5)
        append(logs.create("clicks"), 1)
        assert [len(batch) for batch in running.run()] == [3, 3, 1]
        assert running.rows == orders(*range(7))

    def test_the_next_run_reads_the_rest(self, logs, root):
        log = logs.create("orders")
        append(log, 2)
        running = Query(root)
        running.stream.stop_at_present_ends()
        running.run()
        append(log, 1)
        append(logs.create("clicks"), 1)
        running.start().stream.stop_at_present_ends()
        assert sorted(running.new_rows()) == [("clicks", 0, 0), *orders(2)]

    def test_of_a_query_that_starts_at_the_latest_offset(self, logs, root):
        log = logs.create("orders")
        append(log, 2)
        running = Query(root, starting_offsets="latest")
        running.stream.stop_at_present_ends()
        append(log, 2)
        assert running.new_rows() == []


class TestHighWatermark:
    @pytest.fixture
    def broker(self, root):
        """Return a log directory as a broker leaves it on disk."""
        with open_directory(root) as logs:
            append(logs.create("orders"), 6)
        (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n")

        def checkpoint(**high_watermarks):
            lines = [f"{name.replace('_', ' ')} {offset}" for name, offset in high_watermarks.items()]
            path = root / "replication-offset-checkpoint"
            path.with_suffix(".tmp").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
            path.with_suffix(".tmp").rename(path)

        return checkpoint

    def test_the_end_where_a_broker_tells_it(self, broker, query):
        broker(orders_0=4)
        running = query()
        assert running.run() == [orders(0, 1, 2, 3)]
        broker(orders_0=6)
        assert running.run() == [orders(4, 5)]

    def test_the_log_end_if_asked_for(self, broker, query):
        broker(orders_0=4)
        assert query(ending_at="logEnd").run() == [orders(*range(6))]

    def test_the_log_end_without_a_checkpoint_and_one_line_in_the_log(self, broker, root, query, caplog):
        (root / "replication-offset-checkpoint").unlink()
        running = query()
        assert running.run() == [orders(*range(6))]
        running.run()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "is read to its log ends" in caplog.text

    def test_a_checkpoint_of_another_program_says_nothing(self, root, query):
        with open_directory(root) as logs:
            append(logs.create("orders"), 3)
        (root / "replication-offset-checkpoint").write_text("0\n1\norders 0 1\n")
        assert query().run() == [orders(0, 1, 2)]

    def test_a_partition_that_the_checkpoint_does_not_name_yet_waits(self, broker, root, query):
        broker(orders_0=6)
        running = query()
        running.run()
        shutil.copytree(root / "orders-0", root / "orders-1")
        assert running.new_rows() == []
        broker(orders_0=6, orders_1=5)
        assert running.new_rows() == orders(*range(5), partition=1)

    def test_a_checkpoint_ahead_of_a_copied_log(self, broker, query):
        broker(orders_0=9)
        assert query().new_rows() == orders(*range(6))

    def test_a_start_beyond_an_old_high_watermark_is_no_loss(self, broker, root, query):
        broker(orders_0=6)
        running = query(ending_at="logEnd")
        running.run()
        broker(orders_0=4)
        running.start(ending_at=None)
        assert running.new_rows() == []

    def test_an_idle_look_examines_no_partition(self, broker, root, query):
        broker(orders_0=6)
        for path in (root, root / "orders-0"):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        running = query()
        running.run()
        for _ in range(3):
            running.run()
        before = running.filesystem.statistics.files_examined
        running.run()
        # The path, the checkpoint, and the list of truncations.
        assert running.filesystem.statistics.files_examined - before == 3


class TestTransactions:
    def test_rows_come_when_the_transaction_is_committed(self, logs, query):
        log = logs.create("orders")
        append(log, 1)
        log.append(table(b"x"), producer=ProducerSequence(7, 0, 0), is_transactional=True)
        append(log, 1)
        running = query(isolation_level="read_committed")
        assert running.run() == [orders(0)]
        log.end_transaction(7, 0, is_abort=False)
        assert running.run() == [orders(1, 2)]

    def test_rows_of_an_aborted_one_never_come(self, logs, query):
        log = logs.create("orders")
        log.append(table(b"x"), producer=ProducerSequence(7, 0, 0), is_transactional=True)
        append(log, 1)
        running = query(isolation_level="read_committed")
        assert running.new_rows() == []
        log.end_transaction(7, 0, is_abort=True)
        assert running.new_rows() == orders(1)

    def test_a_batch_that_was_planned_without_isolation_is_not_repeated_with_it(self, logs, query):
        log = logs.create("orders")
        running = query()
        running.run()
        log.append(table(b"x"), producer=ProducerSequence(7, 0, 0), is_transactional=True)
        assert running.plan_batch()
        with pytest.raises(OptionError, match="open transaction below offset 1"):
            running.start(isolation_level="read_committed")
        log.end_transaction(7, 0, is_abort=False)
        running.start()
        assert running.rows == orders(0)


class TestDataLoss:
    def test_records_that_retention_deletes_before_they_are_read(self, logs, query):
        log = logs.create("orders")
        append(log, 25)
        running = query(max_offsets_per_trigger=5)
        running.plan_batch()
        running.run_batch()
        log.delete_records(12)
        assert running.plan_batch()
        with pytest.raises(OffsetOutOfRangeError, match=r"offset \[5, 12\) for topic partition orders-0"):
            running.run_batch()
        running.start(fail_on_data_loss=False)
        running.run()
        assert running.rows == orders(0, 1, 2, 3, 4, *range(12, 25))

    def test_records_that_retention_deletes_after_they_were_read(self, logs, query):
        log = logs.create("orders")
        append(log, 25)
        running = query()
        running.run()
        log.delete_records(12)
        append(log, 1)
        assert running.run() == [orders(25)]

    def test_partitions_that_vanish(self, logs, query, caplog):
        append(logs.create("orders"), 2)
        append(logs.create("clicks"), 2)
        running = query()
        running.run()
        logs.delete("clicks", 0)
        ends = list(running.ends)
        with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED\] Partitions \[clicks-0\] have been"):
            running.plan_batch()
        append(logs.get("orders"), 1)
        running.start(fail_on_data_loss=False)
        assert running.new_rows() == orders(2)
        assert "[clicks-0]" in caplog.text
        assert running.ends == [*ends, '{"clicks": {"0": 2}, "orders": {"0": 3}}']

    def test_a_new_partition_whose_first_records_are_gone(self, logs, query):
        append(logs.create("orders"), 2)
        running = query()
        running.run()
        log = logs.create("orders", 1)
        append(log, 5)
        log.delete_records(3)
        assert running.plan_batch()
        with pytest.raises(DataLossError, match="Added partition orders-1 starts from 3 instead of 0"):
            running.run_batch()
        running.start(fail_on_data_loss=False)
        assert running.rows[2:] == orders(3, 4, partition=1)

    def test_a_truncation_below_the_start(self, logs, query):
        log = logs.create("orders")
        append(log, 8)
        running = query()
        running.run()
        log.truncate_to(5)
        assert running.plan_batch()
        with pytest.raises(DataLossError, match="orders-0's offset was changed from 8 to 5"):
            running.run_batch()
        running.start(fail_on_data_loss=False)
        append(log, 4)
        assert running.new_rows() == orders(5, 6, 7, 8)

    def test_a_truncation_below_the_start_after_which_the_log_grew(self, logs, query):
        log = logs.create("orders")
        append(log, 8)
        running = query()
        running.run()
        running.run()
        log.truncate_to(5)
        append(log, 6)
        assert running.plan_batch()
        with pytest.raises(DataLossError, match="orders-0's offset was changed from 8 to 5"):
            running.run_batch()
        running.start(fail_on_data_loss=False)
        assert running.new_rows() == orders(*range(5, 11))

    def test_a_truncation_that_took_nothing_that_was_read(self, logs, query):
        log = logs.create("orders")
        append(log, 5)
        running = query()
        running.run()
        append(log, 3)
        log.truncate_to(5)
        append(log, 1)
        assert running.new_rows() == orders(5)

    def test_a_truncation_that_took_the_marker_of_a_transaction_from_a_batch(self, logs, query):
        log = logs.create("orders")
        append(log, 1)
        running = query(isolation_level="read_committed")
        running.run()
        transaction = log.transaction(7)
        transaction.append(table("a", "b"))
        transaction.abort()
        append(log, 1)
        assert running.plan_batch()
        log.truncate_to(3)
        append(log, 2)
        with pytest.raises(OptionError, match=r"no open transaction below offset 5.*from offset 1 on"):
            running.run_batch()
        log.abort_transaction(7)
        running.start()
        assert running.rows == orders(0, 3, 4)

    def test_a_truncation_under_way_that_takes_the_marker_of_a_transaction(self, logs, query, root):
        log = logs.create("orders")
        append(log, 1)
        running = query(isolation_level="read_committed", fail_on_data_loss=False)
        running.run()
        transaction = log.transaction(7)
        transaction.append(table("a", "b"))
        end_bytes = (root / "orders-0" / name(0)).stat().st_size
        transaction.abort()
        (root / TRUNCATIONS_FILE).write_text("begin orders 0 3\n")
        assert running.plan_batch()
        os.truncate(root / "orders-0" / name(0), end_bytes)
        with pytest.raises(OptionError, match=r"below offset 3.*from offset 1 on"):
            running.run_batch()

    def test_a_truncation_within_a_batch_without_transactions(self, logs, query):
        log = logs.create("orders")
        append(log, 1)
        running = query(isolation_level="read_committed", fail_on_data_loss=False)
        running.run()
        append(log, 4)
        assert running.plan_batch()
        log.truncate_to(3)
        running.run_batch()
        assert running.rows == orders(0, 1, 2)

    def test_of_two_truncations_the_lower_one_counts(self, logs, query):
        log = logs.create("orders")
        append(log, 8)
        running = query()
        running.run()
        running.run()
        log.truncate_to(3)
        running.stream.stop_at_present_ends()  # looks
        append(log, 7)
        log.truncate_to(6)
        append(log, 6)
        assert running.plan_batch()
        with pytest.raises(DataLossError, match="orders-0's offset was changed from 8 to 3"):
            running.run_batch()

    def test_a_topic_that_is_created_anew(self, logs, query, root):
        append(logs.create("orders"), 4)
        running = query()
        running.run()
        running.run()
        logs.delete("orders", 0)
        append(logs.create("orders"), 6)
        assert running.plan_batch()
        with pytest.raises(DataLossError, match="orders-0's offset was changed from 4 to 0"):
            running.run_batch()


class TestDirectories:
    def test_an_empty_one(self, root, query):
        root.mkdir()
        running = query()
        assert running.run() == [[]]
        with open_directory(root) as logs:
            append(logs.create("orders"), 2)
            assert running.new_rows() == orders(0, 1)

    def test_one_that_appears_later(self, root, query, caplog):
        running = query()
        assert running.run() == [[]]
        assert f"{root} does not exist yet" in caplog.text
        with open_directory(root) as logs:
            append(logs.create("orders"), 2)
            assert running.new_rows() == orders(0, 1)

    def test_one_that_vanishes(self, root, query):
        with open_directory(root) as logs:
            append(logs.create("orders"), 2)
        running = query(fail_on_data_loss=False)
        running.run()
        root.rename(root.with_name("elsewhere"))
        with pytest.raises(LogDirectoryError, match="The log directory that this stream reads is gone"):
            running.run()
        # Not even after a restart is everything that was read taken for deleted.
        running.start()
        with pytest.raises(LogDirectoryError, match="If it was moved, start the query with its new path"):
            running.run()

    def test_one_that_is_moved(self, root, query):
        with open_directory(root) as logs:
            append(logs.create("orders"), 2)
        running = query()
        running.run()
        moved = root.with_name("elsewhere")
        root.rename(moved)
        with open_directory(moved) as logs:
            append(logs.get("orders"), 1)
        running.start(path=[str(moved)])
        assert running.new_rows() == orders(2)

    def test_a_partition_that_moves_to_another_disk(self, root, query):
        for disk in ("one", "two"):
            with open_directory(root / disk) as logs:
                append(logs.create(disk), 2)
        running = query(root / "one", root / "two")
        assert len(running.new_rows()) == 4
        (root / "one" / "one-0").rename(root / "two" / "one-0")
        with open_directory(root / "two") as logs:
            append(logs.get("one"), 1)
        assert running.new_rows() == [("one", 0, 2)]

    def test_a_topic_that_does_not_exist_yet(self, logs, query):
        running = query(subscribe="orders")
        assert running.run() == [[]]
        append(logs.create("clicks"), 1)
        append(logs.create("orders"), 1)
        assert running.new_rows() == orders(0)


class TestFiles:
    def test_a_batch_that_is_being_written(self, root, query):
        with open_directory(root) as logs:
            append(logs.create("orders"), 3)
        path = root / "orders-0" / name(0)
        content = path.read_bytes()
        path.write_bytes(content[:250])
        running = query()
        assert running.new_rows() == orders(0, 1)
        path.write_bytes(content)
        assert running.new_rows() == orders(2)

    def test_a_condition_may_change_between_two_runs(self, logs, query):
        log = logs.create("orders")
        append(log, 4)
        append(logs.create("orders", 1), 2)
        running = query(where="partition = 0 AND offset > 1")
        assert running.new_rows() == orders(2, 3)
        append(log, 1)
        append(logs.get("orders", 1), 1)
        running.start(where="partition = 1")
        assert running.new_rows() == orders(2, partition=1)

    @pytest.mark.parametrize("starts_at", [0, 14])
    def test_damage_is_described_once_by_the_micro_batches_that_touch_it(self, root, query, starts_at):
        with open_directory(root) as logs:
            log = logs.create("orders")
            for _ in range(3):
                log.append(table(*[b"value"] * 10))
        path = root / "orders-0" / name(0)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
        start = f'{{"orders":{{"0":{starts_at}}}}}'
        running = query(mode="PERMISSIVE", max_offsets_per_trigger=3, starting_offsets=start)
        assert [row for row in running.new_rows() if row[2] is None] == [("orders", 0, None)]
        assert [row[2] for row in running.rows if row[2] is not None] == [
            offset for offset in range(starts_at, 30) if not 10 <= offset < 20
        ]

    def test_damage_is_skipped_if_asked_for(self, root, query):
        with open_directory(root) as logs:
            append(logs.create("orders"), 12)
        path = root / "orders-0" / name(0)
        content = bytearray(path.read_bytes())
        content[350] ^= 0xFF
        path.write_bytes(content)
        assert query(mode="DROPMALFORMED").new_rows() == orders(0, 1, 2, *range(4, 12))


class TestOffsets:
    def test_as_the_kafka_source_writes_them(self):
        offsets = {("b", 0): 1, ("a", 10): 2, ("a", 9): 3}
        assert json.dumps(json_of_offsets(offsets)) == '{"a": {"9": 3, "10": 2}, "b": {"0": 1}}'
        assert offsets_of_json(json_of_offsets(offsets)) == offsets

    def test_with_ids_of_schemas(self):
        written = json_of_offsets({("a", 0): 2}, {"value": 7})
        assert json.dumps(written) == '{":valueSchemaId": {"0": 7}, "a": {"0": 2}}'
        assert offsets_of_json(written) == {("a", 0): 2}
        assert schema_ids_of_json(written) == {"value": 7}

    @pytest.mark.parametrize("topic", ["a", ":valueSchemaId"])
    @pytest.mark.parametrize("value", [5, None, {"x": 5}, {"0": "5"}, {"0": -1}, {"-1": 1}])
    @pytest.mark.parametrize("parse", [offsets_of_json, schema_ids_of_json])
    def test_of_no_source(self, parse, topic, value):
        with pytest.raises(OptionError, match="Expected offsets in the checkpoint"):
            parse({topic: value})

    @pytest.mark.parametrize("value", [None, 5])
    def test_of_another_source(self, value):
        with pytest.raises(OptionError, match="Expected offsets in the checkpoint"):
            offsets_of_json(value)


PLACES = [("orders", 0), ("orders", 1), ("clicks", 0)]


def append_anywhere(logs, running, data):
    append(logs.get_or_create(*data.draw(st.sampled_from(PLACES))), data.draw(st.integers(1, 12)))


def roll(logs, running, data):
    logs.get("orders").roll()


def plan(logs, running, data):
    if running.committed == len(running.ends):
        running.plan_batch()


def run(logs, running, data):
    if running.committed < len(running.ends):
        running.run_batch()


def kill(logs, running, data):
    running.start()


def delete_what_was_read(logs, running, data):
    read = [offset for *place, offset in running.rows if tuple(place) == PLACES[0]]
    if read:
        logs.get("orders").delete_records(max(read) + 1)


@examples(60)
@given(data=st.data())
def test_whatever_happens_each_record_comes_once(tmp_path_factory, data):
    limits = data.draw(st.sampled_from([{}, {"max_offsets_per_trigger": 3}, {"max_bytes_per_trigger": 300}]))
    steps = st.sampled_from([append_anywhere, append_anywhere, roll, plan, run, kill, delete_what_was_read])
    root = tmp_path_factory.mktemp("stream") / "data"
    with open_directory(root) as logs:
        append(logs.create("orders"), 3)
        running = Query(root, knows_starts=data.draw(st.booleans()), **limits)
        for step in data.draw(st.lists(steps, max_size=25)):
            step(logs, running, data)
        running.start()
        running.run()
        ends = {place: logs.get_or_create(*place).log_end_offset for place in PLACES}
    for place in PLACES:
        assert [row for row in running.rows if row[:2] == place] == [
            (*place, offset) for offset in range(ends[place])
        ]
