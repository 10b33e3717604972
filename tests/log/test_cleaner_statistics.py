from __future__ import annotations

from storage_core import CleanerStatistics


def test_a_pass_in_one_line():
    statistics = CleanerStatistics(
        topic="orders",
        partition=3,
        start_offset=10,
        end_offset=500,
        bytes_read=9000,
        bytes_written=800,
        records_before=400,
        records_after=40,
        invalid_records=0,
        map_bytes_read=7000,
        map_records_read=390,
        map_size=38,
        map_utilization=0.125,
        segments_before=4,
        segments_after=1,
        started_ms=1000,
        map_built_ms=1030,
        ended_ms=1100,
    )
    assert str(statistics) == (
        "Cleaned orders-3 from offset 10 to 500 in 100 ms, 30 ms of it for 38 keys in 7000 bytes "
        "(12.5% of the memory for keys): 4 segments with 400 records, 9000 bytes, became 1 with 40 records, 800 bytes."
    )
