"""Keep the last value of each key in one log, and the last hour in another.

    python examples/compacted_log.py

Nothing is deleted unless a program asks for it. This one does, and sets the clock as well.
"""

import tempfile

import pyarrow as pa

from storage_core import CleanerConfig, Log, LogConfig, LogDirectory

MINUTE_MS = 60_000
START_MS = 1_767_225_600_000

PRICES = LogConfig(cleanup_policy="compact", delete_retention_ms=30 * MINUTE_MS)
# Retention deletes whole segments: short ones go sooner.
CLICKS = LogConfig(cleanup_policy="delete", retention_ms=60 * MINUTE_MS, segment_ms=25 * MINUTE_MS)


def record(key: str, value: str | None, timestamp_ms: int) -> pa.Table:
    """Return one record; a record without a value deletes its key."""
    return pa.table(
        {
            "key": pa.array([key.encode()], pa.binary()),
            "value": pa.array([None if value is None else value.encode()], pa.binary()),
            "timestamp": pa.array([timestamp_ms], pa.timestamp("ms", tz="UTC")),
        }
    )


def contents(log: Log) -> str:
    """List what the log holds, offset by offset."""
    rows = [row for batch in log.read(columns=["offset", "key", "value"]) for row in batch.to_pylist()]
    return ", ".join(
        f"{row['offset']}: {row['key'].decode()}={'-' if row['value'] is None else row['value'].decode()}"
        for row in rows
    )


def keep_the_last_of_each_key(logs: LogDirectory) -> None:
    """Compact: superseded values go at once, tombstones some time after the values that they delete."""
    prices = logs.create("prices", config=PRICES)
    for key, value in [("tea", "3"), ("milk", "1"), ("tea", "4"), ("rum", "9"), ("rum", None), ("tea", "5")]:
        prices.append(record(key, value, START_MS))
    prices.roll()  # the active segment is never cleaned
    print(f"prices before: {contents(prices)}")
    done = prices.clean(now_ms=START_MS)
    print(f"prices, cleaned: {contents(prices)}")
    print(f"{done.records_before} records were looked at, {done.records_after} are left")

    # A reader that lags by less than delete.retention.ms has seen by now that rum is gone.
    prices.append(record("milk", "2", START_MS + 31 * MINUTE_MS))
    prices.roll()
    prices.clean(now_ms=START_MS + 31 * MINUTE_MS)
    print(f"prices, half an hour later: {contents(prices)}")


def keep_the_last_hour(logs: LogDirectory) -> None:
    """Delete the segments whose records are all too old."""
    clicks = logs.create("clicks", config=CLICKS)
    for number in range(10):
        clicks.append(record("page", str(number), START_MS + number * 10 * MINUTE_MS))
    deleted = clicks.apply_retention(now_ms=START_MS + 130 * MINUTE_MS)
    print(f"clicks: {len(deleted)} segments deleted, the log starts at offset {clicks.log_start_offset}")
    print(f"clicks of the last hour and of their segments: {contents(clicks)}")


def main() -> None:
    """Run both logs."""
    with tempfile.TemporaryDirectory() as path, LogDirectory.open(path) as logs:
        keep_the_last_of_each_key(logs)
        keep_the_last_hour(logs)
        # A long-running program leaves all of this to start_housekeeping().
        logs.start_housekeeping(cleaner=CleanerConfig(dedupe_buffer_size=16 << 20))


if __name__ == "__main__":
    main()
