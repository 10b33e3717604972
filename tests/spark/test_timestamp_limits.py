"""The limits of timestamps that a write is given hold for each row, as in a broker; Kafka's defaults do not."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from storage_core.errors import InvalidTimestampError
from tests.spark.writers import batch, rows, stage, write, writer_of

HOUR_MS = 3_600_000


def rows_at(*shifts_ms):
    now_ms = time.time_ns() // 1_000_000
    return batch(
        value=pa.array([b"v"] * len(shifts_ms)),
        topic=pa.array(["a", "b"] * len(shifts_ms))[: len(shifts_ms)],
        timestamp=pa.array(
            [None if each is None else (now_ms + each) * 1000 for each in shifts_ms],
            pa.timestamp("us", "UTC"),
        ),
    )


@pytest.mark.parametrize(
    ("options", "allowed", "refused"),
    [
        ({"message__timestamp__before__max__ms": HOUR_MS}, [0, None, -HOUR_MS // 2, 10**12], -2 * HOUR_MS),
        ({"message__timestamp__after__max__ms": HOUR_MS}, [0, None, HOUR_MS // 2, -(10**12)], 2 * HOUR_MS),
        (
            {"message__timestamp__after__max__ms": 10_000, "message__timestamp__before__max__ms": 10_000},
            [0, None],
            20_000,
        ),
    ],
    ids=str,
)
def test_a_row_beyond_a_limit(tmp_path, options, allowed, refused):
    writer = writer_of(tmp_path / "logs", "value", "topic", "timestamp", **options)
    write(writer, [rows_at(*allowed)])
    assert rows(tmp_path / "logs").num_rows == len(allowed)
    writer = writer_of(tmp_path / "logs", "value", "topic", "timestamp", **options)
    # The second one is of topic b.
    wrong = rows_at(0, refused)
    timestamp_ms = wrong.column("timestamp").cast(pa.int64())[1].as_py() // 1000
    with pytest.raises(
        InvalidTimestampError, match=rf"a row for b-0: Expected a timestamp .* found {timestamp_ms}"
    ):
        stage(writer, [wrong])
    writer.abort([])
    assert rows(tmp_path / "logs").num_rows == len(allowed)


def test_without_limits_all_timestamps_are_kept(tmp_path):
    write(writer_of(tmp_path / "logs", "value", "topic", "timestamp"), [rows_at(0, -(10**12), 10**13)])
    assert rows(tmp_path / "logs").num_rows == 3
