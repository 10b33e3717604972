"""A log that ends before something says that it did: damage that vouches make of a tail, and what stays a torn end."""

from __future__ import annotations

import itertools
import json
import logging
import os

import pytest

from storage_core import read_table
from storage_core.directory import LogDirectoryFiles, PartitionDirectory, PartitionLog
from storage_core.errors import CorruptRecordError, DataLossError
from storage_core.filesystem import FileSystem
from tests.scan.copies import batches, write_copy
from tests.scan.test_stream import Query

RECOVERY_POINT, HIGH_WATERMARK = "recovery-point-offset-checkpoint", "replication-offset-checkpoint"
WHOLE = 6
END = 10


def flipped(data):
    return data[:-5] + bytes([data[-5] ^ 0xFF]) + data[-4:]


# The bytes in place of the last batch.
TAILS = {
    "wrong CRC": flipped,
    "garbage": lambda data: b"\x07" * len(data),
    "cut": lambda data: data[:-9],
    "cut in its header": lambda data: data[:10],
    "zeros": lambda data: bytes(len(data)),
    "nothing": lambda data: b"",
}
BAD = ("wrong CRC", "garbage")
# What a log of our own has after its last batch only if something was damaged.
BAD_OR_CUT = (*BAD, "cut", "cut in its header")


def mark_brokers(log_root):
    (log_root.path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n", encoding="utf-8")


@pytest.fixture
def make(log_root):
    """Writes events-0: offsets 0 to 5 whole, and in place of the batch of 6 to 9 another tail."""

    def make(tail, *, is_clean=False, recovery_point=None, high_watermark=None, is_brokers=True):
        log = log_root.partition("events").data(3).data(3)
        whole_bytes = len(log.segments[-1].data)
        log.data(4)
        data = log.segments[-1].data
        log.segments[-1].data = data[:whole_bytes] + TAILS[tail](bytes(data[whole_bytes:]))
        log.write()
        if is_brokers:
            mark_brokers(log_root)
        for name, offset in ((RECOVERY_POINT, recovery_point), (HIGH_WATERMARK, high_watermark)):
            log_root.checkpoint(name, {} if offset is None else {("events", 0): offset})
        if is_clean:
            log_root.mark_clean()
        return log_root.path

    return make


def read(path, **options):
    """Return the offsets of the rows, and those of the damaged ranges that rows describe."""
    table = read_table(str(path), columns=["offset", "_corrupt_record"], mode="PERMISSIVE", **options)
    rows = table.to_pylist()
    described = [json.loads(row["_corrupt_record"]) for row in rows if row["_corrupt_record"]]
    offsets = [row["offset"] for row in rows if row["offset"] is not None]
    return offsets, [(each["startOffset"], each["endOffset"]) for each in described]


VOUCHERS = {
    "clean stop": {"is_clean": True, "recovery_point": END, "high_watermark": END},
    "recovery point": {"recovery_point": END, "high_watermark": END},
    "recovery point alone": {"recovery_point": END},
}
VOUCHED = [
    *itertools.product(TAILS, VOUCHERS.values()),
    *((tail, {"recovery_point": 3, "high_watermark": END}) for tail in BAD),
    *((tail, {"is_clean": True}) for tail in ("wrong CRC", "cut")),
    *((tail, {**each, "is_brokers": False}) for tail in BAD_OR_CUT for each in VOUCHERS.values()),
]


@pytest.mark.parametrize(("tail", "vouchers"), VOUCHED)
class TestVouched:
    def test_a_read_fails_and_names_the_offsets(self, make, tail, vouchers):
        path = make(tail, **vouchers)
        for options in ({}, {"columns": ["offset"]}, {"columns": ["partition"]}, {"where": "offset >= 0"}):
            with pytest.raises(CorruptRecordError) as raised:
                read_table(str(path), **options)
            assert (raised.value.offset, raised.value.last_offset) == (WHOLE, END - 1)

    @pytest.mark.parametrize("records", [None, 1, 3, 4])
    def test_a_read_that_goes_on_describes_one_range(self, make, tail, vouchers, records):
        path = make(tail, **vouchers)
        split = {} if records is None else {"max_records_per_partition": records}
        assert read(path, **split) == ([*range(WHOLE)], [(WHOLE, END)])

    def test_a_read_that_drops_damage_warns(self, make, tail, vouchers, caplog):
        path = make(tail, **vouchers)
        with caplog.at_level(logging.WARNING):
            assert read_table(str(path), mode="DROPMALFORMED").num_rows == WHOLE
        assert "offsets 6 to 9" in caplog.text

    def test_bounds_before_it_do_not_meet_it(self, make, tail, vouchers):
        path = make(tail, **vouchers)
        assert read_table(str(path), ending_offsets={"events": {"0": WHOLE}}).num_rows == WHOLE

    def test_bounds_within_it_meet_it(self, make, tail, vouchers):
        path = make(tail, **vouchers)
        with pytest.raises(CorruptRecordError):
            read_table(str(path), starting_offsets={"events": {"0": WHOLE + 1}})

    def test_the_view_has_it(self, make, tail, vouchers):
        path = make(tail, **vouchers)
        (row,) = read_table(str(path), view="damage").to_pylist()
        assert (row["startOffset"], row["endOffset"]) == (WHOLE, END)


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
class TestNotDamage:
    @pytest.mark.parametrize("tail", TAILS)
    @pytest.mark.parametrize("vouchers", [{}, {"recovery_point": WHOLE, "high_watermark": WHOLE}])
    def test_what_nothing_vouches_for_is_a_torn_end(self, make, tail, vouchers, mode, caplog):
        path = make(tail, **vouchers)
        with caplog.at_level(logging.WARNING):
            assert read_table(str(path), mode=mode).num_rows == WHOLE
        assert not caplog.text

    @pytest.mark.parametrize("tail", [tail for tail in TAILS if tail not in BAD])
    def test_a_power_cut_below_the_high_watermark_is_warned_of(self, make, tail, mode, caplog):
        path = make(tail, recovery_point=3, high_watermark=END)
        with caplog.at_level(logging.WARNING):
            assert read_table(str(path), mode=mode).num_rows == WHOLE
        assert "ends at offset 6, and the checkpoints say that it reached 10" in caplog.text

    @pytest.mark.parametrize("tail", [tail for tail in TAILS if tail not in BAD_OR_CUT])
    @pytest.mark.parametrize("vouchers", VOUCHERS.values())
    def test_a_log_of_our_own_that_merely_ends_early_is_warned_of(self, make, tail, vouchers, mode, caplog):
        """It may have been truncated when truncations within a batch left the checkpoints above the last batch."""
        path = make(tail, **vouchers, is_brokers=False)
        with caplog.at_level(logging.WARNING):
            assert read_table(str(path), mode=mode).num_rows == WHOLE
        assert "ends at offset 6, and the checkpoints say that it reached 10" in caplog.text

    @pytest.mark.parametrize("tail", ["zeros", "nothing"])
    def test_zeros_after_all_that_is_known_are_preallocated(self, make, tail, mode, caplog):
        path = make(tail, is_clean=True, recovery_point=WHOLE, high_watermark=WHOLE)
        assert read_table(str(path), mode=mode).num_rows == WHOLE
        assert not caplog.text

    def test_a_topic_that_has_just_been_created_anew(self, make, log_root, mode, caplog):
        """Its broker has removed the old recovery point, but not yet the old high watermark."""
        path = make("nothing", high_watermark=END)
        log_root.checkpoint(RECOVERY_POINT, {("other", 0): 0})
        assert read_table(str(path), mode=mode).num_rows == WHOLE
        assert not caplog.text

    def test_the_log_of_the_controllers(self, log_root, mode, caplog):
        """It goes on after the broker beside it has written the marker."""
        log = log_root.partition("__cluster_metadata").data(3)
        whole_bytes = len(log.segments[-1].data)
        log.data(3)
        log.segments[-1].data = log.segments[-1].data[: whole_bytes + 30]
        log.write()
        log_root.mark_clean()
        table = read_table(str(log_root.path), mode=mode, subscribe="__cluster_metadata")
        assert table.num_rows == 3
        assert not caplog.text


class TestFiles:
    def test_an_emptied_log(self, make):
        path = make("nothing", is_clean=True, recovery_point=END, high_watermark=END)
        os.truncate(path / "events-0" / f"{0:020d}.log", 0)
        with pytest.raises(CorruptRecordError):
            read_table(str(path))
        assert read(path) == ([], [(0, END)])

    def test_a_last_segment_that_is_gone(self, log_root):
        log_root.partition("events").data(4).roll().data(6).write()
        log_root.checkpoint(RECOVERY_POINT, {("events", 0): END})
        mark_brokers(log_root)
        (log_root.path / "events-0" / f"{4:020d}.log").unlink()
        with pytest.raises(CorruptRecordError) as raised:
            read_table(str(log_root.path))
        assert (raised.value.offset, raised.value.last_offset) == (4, END - 1)
        assert read(log_root.path) == ([*range(4)], [(4, END)])

    def test_no_segment_is_left(self, make, caplog):
        path = make("nothing", is_clean=True, recovery_point=END, high_watermark=END)
        (path / "events-0" / f"{0:020d}.log").unlink()
        (path / "events-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
        with pytest.raises(CorruptRecordError, match="found none"):
            read_table(str(path))
        assert read(path) == ([], [])
        assert "offsets 0 to 9" in caplog.text

    def test_whole_batches_after_damage_are_read(self, log_root):
        log = log_root.partition("events").data(3)
        first_bytes = len(log.segments[-1].data)
        log.data(3)
        second_bytes = len(log.segments[-1].data)
        log.data(2)
        third_bytes = len(log.segments[-1].data)
        log.data(2)
        data = bytes(log.segments[-1].data)
        log.segments[-1].data = (
            data[:first_bytes] + flipped(data[first_bytes:second_bytes]) + data[second_bytes:third_bytes]
            + flipped(data[third_bytes:])
        )  # fmt: skip
        log.write()
        log_root.checkpoint(HIGH_WATERMARK, {("events", 0): END})
        mark_brokers(log_root)
        assert read(log_root.path) == ([0, 1, 2, 6, 7], [(3, 6), (8, 10)])

    @pytest.mark.parametrize("tail", BAD)
    def test_a_power_cut_may_leave_any_bytes_in_logs_of_our_own(self, make, tail, caplog):
        path = make(tail, recovery_point=3, high_watermark=END, is_brokers=False)
        assert read_table(str(path)).num_rows == WHOLE
        assert "events-0 ends at offset 6, and the checkpoints say that it reached 10" in caplog.text

    @pytest.mark.parametrize("name", [f"{END:020d}.snapshot", f"{END:020d}.index"])
    def test_names_of_later_files_are_warned_of_after_a_clean_stop(self, make, log_root, name, caplog):
        path = make("nothing")
        (path / "events-0" / name).write_bytes(b"")
        assert read_table(str(path)).num_rows == WHOLE
        assert not caplog.text
        log_root.mark_clean()
        assert read_table(str(path)).num_rows == WHOLE
        assert "ends at offset 6, and a snapshot or an index" in caplog.text

    def test_another_copy_gives_what_is_damaged(self, make, new_log_root):
        damaged = make("wrong CRC", is_clean=True, recovery_point=END, high_watermark=END)
        other = new_log_root()
        other.partition("events").data(3).data(3).data(3).write()
        assert read_table(str(damaged), str(other.path)).num_rows == 9


@pytest.mark.parametrize("tail", ["wrong CRC", "cut", "nothing"])
class TestTransactions:
    """The marker that would tell whether offsets 3 and 4 are committed is lost."""

    @pytest.fixture
    def path(self, log_root, tail):
        log = log_root.partition("events").data(3).transactional(7, 2)
        whole_bytes = len(log.segments[-1].data)
        log.commit(7)
        data = bytes(log.segments[-1].data)
        log.segments[-1].data = data[:whole_bytes] + TAILS[tail](data[whole_bytes:])
        log.write()
        log_root.checkpoint(RECOVERY_POINT, {("events", 0): 6})
        mark_brokers(log_root)
        self.whole_bytes = whole_bytes
        return log_root.path

    def test_a_read_of_committed_rows_fails(self, path):
        for options in ({}, {"ending_timestamp": 2**40}, {"ending_offsets": {"events": {"0": 5}}}):
            with pytest.raises(CorruptRecordError) as raised:
                read_table(str(path), isolation_level="read_committed", **options)
            assert (raised.value.offset, raised.value.last_offset) == (5, 5)
            log_file = path / "events-0" / f"{0:020d}.log"
            assert (raised.value.path, raised.value.position_bytes) == (str(log_file), self.whole_bytes)

    def test_a_read_that_ends_before_the_transaction_does_not(self, path, tail):
        # The bytes of a marker that are there are read.
        mode = "DROPMALFORMED" if tail == "wrong CRC" else "FAILFAST"
        bounds = {"ending_offsets": {"events": {"0": 3}}, "mode": mode}
        assert read_table(str(path), isolation_level="read_committed", **bounds).num_rows == 3

    @pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
    def test_a_read_that_goes_on_warns(self, path, mode, caplog):
        assert read_table(str(path), isolation_level="read_committed", mode=mode).num_rows == 3
        assert "A transaction is open at offset 3" in caplog.text

    def test_a_stream_of_committed_rows_fails(self, path, tail, monkeypatch):
        monkeypatch.setattr("storage_core.scan.tail._FAILING_S", 0)
        query = Query(path, isolation_level="read_committed")
        if tail == "wrong CRC":
            with pytest.raises(CorruptRecordError):
                query.run()
        else:
            # What is missing may still be copied.
            query.run()
            assert len(query.rows) == 3


class TestBesideABroker:
    """What vouches is taken back, or the file grows, while a read looks."""

    def load(self, root):
        files = LogDirectoryFiles(FileSystem(), str(root))
        directory = PartitionDirectory(str(root / "events-0"), "events", 0, files)
        return PartitionLog.load(FileSystem(), directory)

    def test_a_broker_that_starts(self, make):
        path = make("cut", is_clean=True, recovery_point=WHOLE, high_watermark=WHOLE)
        log = self.load(path)
        (path / ".kafka_cleanshutdown").unlink()
        assert log.log_end_offset == WHOLE

    def test_a_log_that_is_truncated(self, make, log_root):
        log = self.load(make("nothing", recovery_point=END, high_watermark=END))
        for name in (RECOVERY_POINT, HIGH_WATERMARK):
            log_root.checkpoint(name, {("events", 0): WHOLE})
        assert log.log_end_offset == WHOLE

    def test_a_checkpoint_that_is_written_after_the_listing(self, make, log_root):
        log = self.load(make("wrong CRC"))
        log_root.checkpoint(HIGH_WATERMARK, {("events", 0): END})
        assert log.log_end_offset == WHOLE

    def test_a_segment_that_is_deleted_before_what_follows_it_is_looked_at(self, make):
        log = self.load(make("garbage", recovery_point=END))
        assert log.valid_end_offset == WHOLE
        os.unlink(log.segments[-1].log_path)
        with pytest.raises(DataLossError, match="Read again"):
            _ = log.log_end_offset

    def test_a_checkpoint_that_cannot_be_parsed_says_nothing(self, make, caplog):
        path = make("wrong CRC")
        (path / HIGH_WATERMARK).write_text("nonsense")
        assert read_table(str(path)).num_rows == WHOLE
        assert "Ignored a checkpoint" in caplog.text

    def test_a_copy_that_is_whole_is_chosen(self, make, tmp_path, new_log_root):
        damaged = make("wrong CRC", is_clean=True, recovery_point=END, high_watermark=END)
        whole = new_log_root()
        whole.partition("events").data(3).data(3).data(4).write()
        assert read_table(str(damaged), str(whole.path)).num_rows == END


@pytest.fixture
def cut():
    """Replaces what follows offset 39 in a log file of ten batches with another tail."""

    def cut(path, tail):
        data = path.read_bytes()
        kept_bytes = sum(map(len, batches(0, 40).values()))
        path.write_bytes(data[:kept_bytes] + TAILS[tail](data[kept_bytes:]))

    return cut


@pytest.fixture
def partition(tmp_path):
    """Return the directory of orders-0 with 100 records, which a broker has flushed and not closed."""
    path = write_copy(tmp_path / "data", {0: batches(0, 100)}, end=100)
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    return path


class TestStreams:
    @pytest.mark.parametrize("tail", ["nothing", "cut in its header", "garbage"])
    @pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
    def test_a_batch_that_is_repeated_after_its_records_were_lost(self, partition, cut, tail, mode, caplog):
        query = Query(partition.parent, mode=mode, max_offsets_per_trigger=50, ending_at="logEnd")
        query.plan_batch()
        query.run_batch()
        query.plan_batch()
        cut(partition / f"{0:020d}.log", tail)
        if mode == "FAILFAST":
            with pytest.raises(CorruptRecordError):
                query.start()
        else:
            query.start()
            assert len(query.rows) == 50
            assert (
                "offsets 50 to 99 of a batch are left out: they are in damage that begins at offset 40"
                in caplog.text
            )

    def test_damage_that_ends_where_a_batch_begins_is_no_news(self, partition, caplog):
        path = partition / f"{0:020d}.log"
        sizes_bytes = [len(each) for each in batches(0, 100).values()]
        data = bytearray(path.read_bytes())
        data[sum(sizes_bytes[:5]) - 9] ^= 0xFF
        path.write_bytes(data)
        query = Query(partition.parent, mode="PERMISSIVE", max_offsets_per_trigger=50, ending_at="logEnd")
        query.run()
        described = [row for row in query.rows if row[2] is None]
        assert (len(query.rows), len(described)) == (91, 1)
        assert "in an earlier batch" not in caplog.text

    def test_a_log_that_is_still_being_copied_is_warned_of_once(self, partition, caplog):
        path = partition / f"{0:020d}.log"
        data = path.read_bytes()
        query = Query(partition.parent, max_offsets_per_trigger=10, ending_at="logEnd")
        for batch_count in (4, 5, 7):
            path.write_bytes(data[: sum(map(len, batches(0, 10 * batch_count).values()))])
            query.run()
            assert len(query.rows) == 10 * batch_count
        assert caplog.text.count("the checkpoints say that it reached 100") == 1

    def test_without_checkpoints_it_is_said_once_too(self, partition, caplog):
        """Then it is the marker of the clean stop that says so."""
        (partition.parent / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
        path = partition / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-9])
        query = Query(partition.parent, max_offsets_per_trigger=10, ignore_checkpoints=True)
        query.run()
        assert len(query.rows) == 90
        assert caplog.text.count("the checkpoints say that it reached 100") == 1

    def test_a_log_that_ends_before_what_was_read_is_an_older_copy(self, partition, cut):
        query = Query(partition.parent, ending_at="logEnd")
        query.run()
        cut(partition / f"{0:020d}.log", "nothing")
        with pytest.raises(DataLossError, match="offset was changed from 100 to 40"):
            query.start().run()
