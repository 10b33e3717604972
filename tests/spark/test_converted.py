"""Spark reads what a conversion to Parquet wrote, and finds the topics and days that its paths tell."""

from __future__ import annotations

import datetime as dt

import pytest

from storage_core import read_table
from storage_core.dump.convert import convert
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.scan.plan import plan_scan

pytestmark = pytest.mark.spark


def test_rows_and_partitions(spark, tmp_path, request):
    data = request.config.rootpath / "examples" / "data"
    options = options_of([data], {})
    convert(FileSystem(), plan_scan(FileSystem(), options), options, str(tmp_path / "out"))
    frame = spark.read.parquet(str(tmp_path / "out"))
    columns = ["topic", "partition", "offset", "key", "value", "timestamp", "timestampType"]
    found = frame.select(columns).toArrow()
    expected = read_table(data).select(columns)
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    assert found.sort_by(order).cast(expected.schema).equals(expected)
    days = frame.where("topic = 'clicks'").select("date").distinct().collect()
    assert [row.date for row in days] == [dt.date(2026, 3, 6)]
