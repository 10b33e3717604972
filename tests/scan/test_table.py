"""`read_table`: the way in for programs without Spark."""

from __future__ import annotations

import datetime as dt
import os

import pyarrow as pa
import pytest

import storage_core
from storage_core import read_table
from storage_core.errors import LogDirectoryError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.options.predicate import And, Comparison
from storage_core.scan.spans import METADATA_TYPE, project, record_schema


@pytest.fixture
def log(log_root, record_of):
    """Offsets 0 to 9, a second apart from 2024-01-01 on, in two segments."""
    log = log_root.rows("orders")
    for number in range(10):
        log.append(record_of(0, 1_704_067_200_000 + 1000 * number, b"k%d" % (number % 2)))
        if number == 5:
            log.roll()
    return log.write()


def offsets(table):
    return table["offset"].to_pylist()


def test_the_table_that_was_written(log):
    table = read_table(log.path)
    assert table.schema == record_schema()
    assert offsets(table) == list(range(10))
    assert table["timestamp"][3].as_py() == dt.datetime(2024, 1, 1, 0, 0, 3, tzinfo=dt.UTC)
    assert table["key"].to_pylist() == [b"k0", b"k1"] * 5
    assert storage_core.read_table is read_table


@pytest.mark.parametrize("kind", [str, lambda path: path, lambda path: f"file://{path}", os.fspath])
def test_paths_of_every_kind(log, kind):
    assert read_table(kind(log.path)).num_rows == 10
    assert read_table(kind(log.path.parent)).num_rows == 10
    assert read_table(path=kind(log.path)).num_rows == 10
    assert read_table(paths=[kind(log.path)]).num_rows == 10


def test_several_paths(log_root, log, new_log_root):
    other = new_log_root()
    other.rows("payments").values(3).write()
    table = read_table(log_root.path, other.path)
    assert table["topic"].to_pylist() == ["orders"] * 10 + ["payments"] * 3
    assert read_table(f"{log_root.path},{other.path}").num_rows == 13


def test_rows_are_ordered_by_topic_partition_and_offset(log_root):
    for topic, partition in (("b", 1), ("a", 10), ("b", 0), ("a", 9)):
        log_root.rows(topic, partition).values(2).roll().values(1).write()
    table = read_table(log_root.path, min_partitions=12)
    found = list(zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))
    assert found == [
        (topic, partition, offset)
        for topic, partition in (("a", 9), ("a", 10), ("b", 0), ("b", 1))
        for offset in range(3)
    ]


def test_options_in_snake_case(log):
    table = read_table(
        log.path,
        subscribe="orders",
        starting_timestamp=dt.datetime(2024, 1, 1, 0, 0, 2, tzinfo=dt.UTC),
        ending_offsets={"orders": {"0": 7}},
        isolation_level="read_committed",
        columns=["offset", "topic"],
        max_bytes_per_partition="1k",
        use_indexes=False,
    )
    assert table.column_names == ["offset", "topic"]
    assert offsets(table) == [2, 3, 4, 5, 6]
    assert offsets(read_table(log.path, startingTimestamp="2024-01-01T00:00:08Z")) == [8, 9]


def test_headers_and_metadata_are_added_when_asked_for(log):
    table = read_table(log.path, include_headers=True, include_metadata=True)
    assert table.column_names[-2:] == ["headers", "_metadata"]
    assert table.schema.field("_metadata").type == METADATA_TYPE
    with pytest.raises(OptionError, match="Set includeMetadata"):
        read_table(log.path, columns=["_metadata"])


def test_statistics_say_what_was_read(log):
    filesystem = FileSystem()
    read_table(log.path, filesystem=filesystem)
    statistics = filesystem.statistics
    assert statistics.bytes_read >= sum(path.stat().st_size for path in log.path.glob("*.log"))
    assert statistics.files_opened >= 2
    assert statistics.directories_listed > 0


# -- Nothing to read --------


def check_empty(table):
    assert table.num_rows == 0
    assert table.schema == record_schema()


def test_an_empty_range_has_the_schema(log):
    check_empty(
        read_table(log.path, starting_offsets={"orders": {"0": 4}}, ending_offsets={"orders": {"0": 4}})
    )


def test_an_empty_partition_has_the_schema(log_root):
    log_root.rows("orders").write()
    check_empty(read_table(log_root.path))


def test_a_log_of_markers_has_the_schema(log_root):
    log_root.rows("orders").abort(7).empty_control(7).write()
    check_empty(read_table(log_root.path))


def test_a_log_directory_without_partitions_has_the_schema(log_root):
    (log_root.path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n", encoding="utf-8")
    check_empty(read_table(log_root.path))


@pytest.mark.parametrize(
    "mark",
    [
        ".lock",
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        ".segmentlog-commits",
        ".segmentlog-unflushed",
        "segmentlog.commit-in-progress/",
    ],
)
def test_what_makes_a_log_directory_without_partitions(tmp_path, mark):
    """A broker, a log directory that is open, or a first job that is at work."""
    root = tmp_path / "data/logs"
    root.mkdir(parents=True)
    (root / mark).mkdir() if mark.endswith("/") else (root / mark).touch()
    check_empty(read_table(root))
    # And a folder of such.
    check_empty(read_table(tmp_path / "data"))
    with pytest.raises(LogDirectoryError, match="found none"):
        read_table(tmp_path)
    with pytest.raises(OptionError, match=r"UnknownTopicOrPartition.*'orders'"):
        read_table(root, subscribe="orders")


def test_an_empty_projection_is_refused(log):
    with pytest.raises(OptionError, match="names no column"):
        read_table(log.path, columns=[])


# -- Mistakes --------


@pytest.mark.parametrize("paths", [[], [""], ["  "]])
def test_no_path(paths):
    with pytest.raises(OptionError, match="No path is given"):
        read_table(*paths)


@pytest.mark.parametrize(
    "path",
    [3, None, b"/bytes", ["/a", "/b"], {"path": "/a"}],
    ids=["number", "None", "bytes", "list", "dict"],
)
def test_what_is_no_path(path):
    with pytest.raises(OptionError, match="path is"):
        read_table(path)


@pytest.mark.parametrize("name", ["path", "paths"])
def test_paths_are_given_once(log, name):
    with pytest.raises(OptionError, match="once"):
        read_table(log.path, **{name: "/elsewhere"})


def test_mistakes_are_found_before_a_directory_is_looked_at(tmp_path):
    filesystem = FileSystem()
    with pytest.raises(OptionError):
        read_table(tmp_path, filesystem=filesystem, min_partitions=0)
    assert filesystem.statistics.directories_listed == 0


def test_a_large_value_does_not_overflow_a_column(log_root):
    """Arrow's binary columns hold 2 GiB at most: a table has chunks."""
    log = log_root.rows("orders").values(30, b"x" * (1 << 20)).write()
    table = read_table(log.path, columns=["value"])
    assert table["value"].num_chunks > 1
    assert pa.compute.sum(pa.compute.binary_length(table["value"])).as_py() == 30 << 20


def test_a_condition_as_text_or_as_a_predicate(log):
    assert offsets(read_table(log.path, where="key = 'k1' AND offset > 4")) == [5, 7, 9]
    predicate = And((Comparison("key", "=", b"k1"), Comparison("offset", ">", 4)))
    assert offsets(read_table(log.path, where=predicate, columns=["offset"])) == [5, 7, 9]
    found = read_table(
        log.path, where="timestamp >= '2024-01-01 00:00:07' AND value IS NOT NULL", columns=["key"]
    )
    assert found["key"].to_pylist() == [b"k1", b"k0", b"k1"]
    assert read_table(log.path, where="FALSE").schema == record_schema()


def test_a_condition_that_is_none_is_refused(log):
    with pytest.raises(OptionError, match="at character 7, `5`"):
        read_table(log.path, where="key ! 5")
    with pytest.raises(OptionError, match="found 5 of type int"):
        read_table(log.path, where=5)


def test_many_small_segments_become_few_chunks(log_root):
    """Each chunk of a table takes kilobytes, whatever it holds."""
    log = log_root.rows("orders")
    for _ in range(1_200):
        log.values(1).roll()
    log.values(2, b"v" * 40_000).roll().values(1).roll().values(1)
    table = read_table(log.write().path)
    assert offsets(table) == list(range(1_204))
    assert [len(chunk) for chunk in table["offset"].chunks] == [1_000, 200, 2, 2]


# -- Columns --------


KAFKA_SOURCE = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


def test_the_columns_are_those_of_sparks_kafka_source():
    assert record_schema() == pa.schema(KAFKA_SOURCE)


def test_headers_and_metadata_follow_in_this_order():
    assert record_schema(include_headers=True) == pa.schema([*KAFKA_SOURCE, HEADERS])
    both = record_schema(include_headers=True, include_metadata=True)
    assert both == pa.schema([*KAFKA_SOURCE, HEADERS, ("_metadata", METADATA_TYPE)])
    assert record_schema(include_metadata=True).names[-2:] == ["timestampType", "_metadata"]


def test_the_fields_of_metadata():
    assert [(field.name, str(field.type)) for field in METADATA_TYPE] == [
        ("segment", "string"),
        ("position", "int64"),
        ("batchOffset", "int64"),
        ("leaderEpoch", "int32"),
        ("producerId", "int64"),
        ("producerEpoch", "int32"),
        ("sequence", "int32"),
        ("isTransactional", "bool"),
        ("compression", "string"),
        ("magic", "int32"),
        ("timestampMs", "int64"),
    ]


def test_every_column_is_nullable():
    schema = record_schema(include_headers=True, include_metadata=True)
    assert all(field.nullable for field in schema)
    assert all(field.nullable for field in METADATA_TYPE)


def test_a_projection_keeps_the_order_asked_for():
    assert project(record_schema(), ("offset", "key")) == pa.schema(
        [("offset", pa.int64()), ("key", pa.binary())]
    )
    assert project(record_schema(), None) == record_schema()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("key", "offsets"), "no column is named 'offsets'. Choose from key, value, topic"),
        (("headers",), "no column is named 'headers'"),
        (("Key",), "no column is named 'Key'"),
        (("key", "value", "key"), "'key' is named twice"),
    ],
)
def test_a_projection_of_other_columns_is_refused(columns, message):
    with pytest.raises(OptionError, match=message):
        project(record_schema(), columns)
