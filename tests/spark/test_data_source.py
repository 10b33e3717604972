"""The data source class without Spark: what it validates, logs and passes on."""

from __future__ import annotations

import inspect
import logging
import pickle
import sys

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import LongType, StructType

from spark_segmentlog import SegmentLogDataSource
from spark_segmentlog.reader import PushdownReader, SegmentLogReader
from storage_core.errors import LogDirectoryError, OptionError

OFFSETS = StructType().add("offset", LongType())


def source(**options):
    return SegmentLogDataSource(CaseInsensitiveDict({"path": "/a", **options}))


def test_the_format_is_called_segmentlog():
    assert SegmentLogDataSource.name() == "segmentlog"


@pytest.mark.parametrize("method", ["reader", "writer", "streamReader", "streamWriter"])
def test_parameters_have_the_names_by_which_spark_passes_them(method):
    ours = inspect.signature(getattr(SegmentLogDataSource, method)).parameters
    theirs = inspect.signature(getattr(DataSource, method)).parameters
    assert list(ours) == list(theirs)


def test_options_are_checked_whether_or_not_spark_asks_for_the_schema():
    wrong = source(startingOfset="earliest")
    with pytest.raises(OptionError, match="startingOffsets"):
        wrong.schema()
    with pytest.raises(OptionError, match="startingOffsets"):
        wrong.reader(OFFSETS)


@pytest.mark.parametrize(
    ("name", "text"),
    [("backup.tar.gz", "found an archive. Unpack it"), (r"C:\kafka", "It is a Windows path")],
)
@pytest.mark.parametrize("view", ["records", "segments"])
def test_a_path_without_a_log_is_answered_as_in_python(tmp_path, name, text, view):
    (tmp_path / "backup.tar.gz").touch()
    reader = source(path=str(tmp_path / name), view=view)
    with pytest.raises(LogDirectoryError, match=text):
        reader.reader(reader.schema()).partitions()


def test_ignored_options_are_one_log_line_without_their_values(caplog):
    given = {"kafka.sasl.jaas.config": "secret", "maxOffsetsPerTrigger": "5"}
    with caplog.at_level(logging.INFO):
        source(**given).schema()
        assert caplog.messages == []
        source(**given).reader(OFFSETS)
    assert len(caplog.messages) == 1
    assert "ignored kafka.sasl.jaas.config, maxOffsetsPerTrigger," in caplog.messages[0]
    assert "secret" not in caplog.messages[0]


def test_nothing_is_logged_when_nothing_is_ignored(caplog):
    with caplog.at_level(logging.INFO):
        source(subscribe="a").reader(OFFSETS)
    assert caplog.messages == []


def test_filters_are_taken_only_when_asked_for_and_offered(monkeypatch):
    worker = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.delitem(sys.modules, worker, raising=False)
    assert type(source(filterPushdown="true").reader(OFFSETS)) is SegmentLogReader
    monkeypatch.setitem(sys.modules, worker, sys)
    assert type(source(filterPushdown="true").reader(OFFSETS)) is PushdownReader
    assert type(source(filterPushdown="false").reader(OFFSETS)) is SegmentLogReader
    assert type(source().reader(OFFSETS)) is SegmentLogReader


def test_nothing_is_looked_up_before_planning():
    # The path does not exist; only partitions() may find out.
    source().schema()
    source().reader(OFFSETS)


def test_the_source_is_pickled_as_its_options():
    assert len(pickle.dumps(source())) < 300
