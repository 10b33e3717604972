"""Spark reads a tiered topic from its true log start, in batches and streams."""

from __future__ import annotations

import pytest

from storage_core import read_table
from tests.scan.halves import cut, make_whole

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_a_batch_and_a_stream_read_both_halves(spark, tmp_path):
    whole = make_whole(tmp_path / "whole")
    local, remote = cut(whole, tmp_path, 5, 7)
    expected = read_table(str(whole))["offset"].to_pylist()
    frame = spark.read.format("segmentlog").option("remoteStorage", remote).load(local)
    assert sorted(row["offset"] for row in frame.select("offset").collect()) == expected
    options = {"remoteStorage": remote, "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("segmentlog")
        .options(**options)
        .load(local)
        .writeStream.format("memory")
        .queryName("both_halves")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(row["offset"] for row in spark.table("both_halves").select("offset").collect()) == expected
