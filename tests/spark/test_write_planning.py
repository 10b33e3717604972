"""What the driver determines before any rows: the root, the partition counts, and what is restored."""

from __future__ import annotations

import contextlib
import os

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StructType

import storage_core
from spark_segmentlog.write_options import write_options
from spark_segmentlog.write_plan import plan_write
from storage_core.errors import InvalidRecordError, LogDirectoryError, OptionError
from tests.faults.observed_filesystem import refusing
from tests.spark.writers import batch, rows, write, writer_of


def test_an_existing_topic_keeps_its_partitions(root):
    write(writer_of(root, "key", "value", topic="t", partitions="12"), [batch(key=[b"abc"], value=[b"1"])])
    write(writer_of(root, "key", "value", topic="t", partitions="5"), [batch(key=[b"abc"], value=[b"2"])])
    assert rows(root)["partition"].to_pylist() == [3, 3]
    assert sum(name.startswith("t-") for name in os.listdir(root)) == 12


def test_a_new_topic_has_all_of_its_partitions(root):
    write(writer_of(root, "value", "topic", partitions="3"), [batch(value=[b"v"] * 2, topic=["t", "u"])])
    found = sorted(name for name in os.listdir(root) if name[0] in "tu")
    assert found == ["t-0", "t-1", "t-2", "u-0", "u-1", "u-2"]


def test_a_topic_that_begins_with_a_dot_is_one_like_any_other(root):
    for number in range(3):
        write(writer_of(root, "value", topic=".hidden", partitions="2"), [batch(value=[b"%d" % number])])
    assert sorted(rows(root)["value"].to_pylist()) == [b"0", b"1", b"2"]
    write(writer_of(root, "value", overwrite=True, topic=".hidden"), [batch(value=[b"last"])])
    assert rows(root)["value"].to_pylist() == [b"last"]


def test_a_hidden_directory_that_is_no_partition_counts_for_no_topic(root):
    (root / ".Trash-1000/files").mkdir(parents=True)
    for _ in range(2):
        write(writer_of(root, "value", topic=".Trash", partitions="2"), [batch(value=[b"v"])])
    assert sorted(name for name in os.listdir(root) if name[:2] == ".T") == [
        ".Trash-0",
        ".Trash-1",
        ".Trash-1000",
    ]
    assert rows(root)["value"].to_pylist() == [b"v", b"v"]


def test_a_file_named_like_a_partition_is_not_one(root):
    write(writer_of(root, "value", topic="u"), [batch(value=[b"1"])])
    (root / "t-0").write_bytes(b"")
    with pytest.raises(LogDirectoryError, match=r"found something\. Move it away\. .*/t-0"):
        write(writer_of(root, "value", topic="t"), [batch(value=[b"1"])])
    assert rows(root)["topic"].to_pylist() == ["u"]
    write(writer_of(root, "value", topic="u"), [batch(value=[b"2"])])
    assert rows(root)["value"].to_pylist() == [b"1", b"2"]


def test_the_bounds_of_the_logs_that_rows_come_from_are_restored(root, new_logs, records_of):
    new_logs.write("t", 0, records_of(10), base_offset=40)
    new_logs.write("t", 2, records_of(10), base_offset=7)
    new_logs.write("u", 0, records_of(10))
    table = rows(new_logs.path, subscribe="t", ending_offsets='{"t":{"0":45,"2":9}}')
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    writer = writer_of(root, *names, preserveOffsets="true", offsetsFrom=new_logs.path)
    write(writer, table.select(names).to_batches())
    assert rows(root).select(names).equals(table.select(names))
    assert sorted(name for name in os.listdir(root) if name[0] in "tu") == ["t-0", "t-2"]
    with storage_core.LogDirectory.open(root) as logs:
        bounds = [(log.log_start_offset, log.log_end_offset) for log in (logs.get("t", 0), logs.get("t", 2))]
    assert bounds == [(40, 50), (7, 17)]


def bounds_of(path):
    with storage_core.LogDirectory.open(path) as logs:
        return {
            f"{log.topic}-{log.partition}": (log.log_start_offset, log.log_end_offset) for log in logs.logs()
        }


@pytest.fixture
def source_without_rows(tmp_path):
    """Return a topic and an internal topic without their records, one with some left, and one that never had any."""
    path = tmp_path / "source"
    with storage_core.LogDirectory.open(path) as logs:
        for name in ("gone", "kept", "__consumer_offsets"):
            logs.create(name).append(pa.table({"value": [b"1", b"2", b"3"]}))
        logs.get("gone").delete_records(3)
        logs.get("__consumer_offsets").delete_records(3)
        logs.create("empty")
    return path


def test_a_topic_whose_records_are_all_gone_is_restored(root, source_without_rows):
    """Otherwise its log would start at 0, and a group at its old end would miss new records."""
    names = ["value", "topic", "partition", "offset"]
    writer = writer_of(root, *names, preserveOffsets="true", offsetsFrom=str(source_without_rows))
    write(writer, rows(source_without_rows).select(names).to_batches())
    assert bounds_of(root) == {"gone-0": (3, 3), "kept-0": (0, 3)}


@pytest.mark.parametrize(("topic", "bounds"), [("gone", (3, 3)), ("kept", (0, 3)), ("empty", (0, 0))])
def test_the_topic_that_is_named_is_restored_without_rows(root, source_without_rows, topic, bounds):
    options = {"topic": topic, "preserveOffsets": "true", "offsetsFrom": str(source_without_rows)}
    write(writer_of(root, "value", "partition", "offset", **options))
    assert bounds_of(root) == {f"{topic}-0": bounds}


@pytest.fixture
def source_without_committed_rows(tmp_path):
    """Topics with only aborted records, with an open transaction, with both and a deleted start, and with rows."""
    path = tmp_path / "source"
    row = pa.table({"value": [b"1"]})
    with storage_core.LogDirectory.open(path) as logs:
        for name in ("aborted", "both"):
            log = logs.create(name)
            with contextlib.suppress(ZeroDivisionError), log.transaction() as transaction:
                transaction.append(row)
                raise ZeroDivisionError
        logs.get("both").delete_records(1)
        for name in ("open", "both"):
            logs.get_or_create(name).transaction().append(row)
        logs.create("kept").append(row)
        logs.create("rows").append(row)
    return path


def test_topics_with_only_aborted_or_open_records_are_restored(root, source_without_committed_rows):
    """Otherwise the groups that are at their ends would be out of range."""
    source = source_without_committed_rows
    names = ["value", "topic", "partition", "offset"]
    table = rows(source, isolation_level="read_committed", subscribe="rows").select(names)
    writer = writer_of(root, *names, preserveOffsets="true", offsetsFrom=str(source))
    write(writer, table.to_batches())
    bounds = bounds_of(source)
    # Another topic with rows may have been left out on purpose.
    del bounds["kept-0"]
    assert bounds == {"aborted-0": (0, 2), "both-0": (1, 3), "open-0": (0, 1), "rows-0": (0, 1)}
    assert bounds_of(root) == bounds
    assert rows(root).select(names).equals(table)


def test_a_topic_without_committed_rows_that_a_cluster_does_not_have_is_told(
    root, source_without_committed_rows, caplog
):
    root.mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n")
    names = ["value", "topic", "partition", "offset"]
    topic_id = "AbCdEfGhIjKlMnOpQrStUg"
    writer = writer_of(
        root,
        *names,
        preserveOffsets="true",
        offsetsFrom=str(source_without_committed_rows),
        brokerDirectory="true",
        topicIds=f'{{"rows":"{topic_id}","open":"{topic_id[::-1]}"}}',
    )
    table = rows(source_without_committed_rows, subscribe="rows").select(names)
    write(writer, table.to_batches())
    assert sorted(name for name in os.listdir(root) if name.endswith("-0")) == ["open-0", "rows-0"]
    assert [record.args[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "aborted",
        "both",
    ]


def test_a_source_with_an_unknown_end_is_refused_with_advice(root, tmp_path):
    source = tmp_path / "source"
    with storage_core.LogDirectory.open(source) as logs:
        log = logs.create("t")
        sizes_bytes = [log.append(pa.table({"value": [b"1"]})).size_bytes for _ in range(3)]
    segment = source / "t-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    # The magic of the second batch.
    data[sizes_bytes[0] + 16] = 77
    segment.write_bytes(data)
    names = ["value", "topic", "partition", "offset"]
    with pytest.raises(OptionError, match=r"found damage: .* Leave offsetsFrom out: each log then ends"):
        writer_of(root, *names, preserveOffsets="true", offsetsFrom=str(source))
    readable = storage_core.read_table(source, mode="DROPMALFORMED").select(names)
    write(writer_of(root, *names, preserveOffsets="true"), readable.to_batches())
    assert rows(root)["offset"].to_pylist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overwrite": True, "preserveOffsets": "true"}, "preserveOffsets does not go with mode overwrite"),
        ({"preserveOffsets": "true", "offsetsFrom": "{logs}"}, "which has no topic 't'. It has a, b."),
    ],
)
def test_conflicting_options_are_refused_before_anything_is_created(root, logs, options, message):
    options = {
        name: text.format(logs=logs) if isinstance(text, str) else text for name, text in options.items()
    }
    with pytest.raises(OptionError, match=message):
        writer_of(root, "value", "offset", "partition", topic="t", **options)
    assert not root.exists()


def test_a_path_with_a_comma_is_one_path_only_if_it_exists(tmp_path):
    path = tmp_path / "a,b"
    with pytest.raises(OptionError, match=r"a,b' names several directories, or one that does not exist"):
        writer_of(path, "value", topic="t")
    path.mkdir()
    write(writer_of(path, "value", topic="t"), [batch(value=[b"1"])])
    assert rows(path)["value"].to_pylist() == [b"1"]


def test_a_wrong_frame_is_refused_before_anything_is_created(root):
    with pytest.raises(InvalidRecordError, match=r"^Required attribute 'value' not found"):
        writer_of(root, "key", topic="t")
    assert not root.exists()


def test_a_log_directory_may_have_the_name_of_a_partition(tmp_path):
    path = tmp_path / "disk-1" / "logs-2"
    write(writer_of(path, "value", topic="t"), [batch(value=[b"1"])])
    assert rows(path)["value"].to_pylist() == [b"1"]


def test_a_parent_directory_need_not_be_listed(tmp_path):
    path = tmp_path / "tenant-7" / "logs"
    options = write_options(CaseInsensitiveDict({"path": str(path), "topic": "t"}))
    schema = StructType().add("value", BinaryType())
    assert plan_write(refusing(tmp_path / "tenant-7"), schema, options, is_overwrite=False).root == str(path)
