"""Segments that a broker 4.1.0 uploaded, with `LocalTieredStorage` and with Aiven's plugin 1.0.0, as a consumer read them.

The archive has the topic of the brokers' transactions: all of it as zstd-aes, and its end in the other modes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from tests.tier.conftest import read

MODES = ("plain", "zstd", "aes", "zstd-aes", "zstd-heuristic", "local")


@pytest.fixture(scope="module")
def uploads(tmp_path_factory):
    root = tmp_path_factory.mktemp("brokers")
    with tarfile.open(Path(__file__).parent / "brokers.tar.xz") as archive:
        archive.extractall(root, filter="data")
    return root


@pytest.mark.cases(12, 12)
@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_those_that_a_consumer_read(uploads, mode, isolation):
    expected = json.loads((uploads / "expected.json").read_text())[mode][isolation]
    table = read(
        uploads / mode,
        str(uploads / "private.pem"),
        isolation_level=f"read_{isolation}",
        include_headers=True,
    )
    rows = [_row(row) for row in table.to_pylist()]
    offsets = [row[0] for row in rows]
    found = {"rows": len(rows), "offsets": offsets[:1] + offsets[-1:]}
    assert found | {"sha256": hashlib.sha256(json.dumps(rows).encode()).hexdigest()} == expected


def _row(row):
    headers = [[each["key"], _text(each["value"])] for each in row["headers"] or []]
    timestamp_ms = round(row["timestamp"].timestamp() * 1000)
    return [
        row["offset"],
        timestamp_ms,
        row["timestampType"],
        _text(row["key"]),
        _text(row["value"]),
        headers,
    ]


def _text(value):
    return None if value is None else base64.b64encode(value).decode()


def test_leader_epochs_and_aborted_transactions_are_found(uploads):
    for mode in MODES:
        options = {"key_file": str(uploads / "private.pem")}
        partition = read(uploads / mode, view="partitions", **options).to_pylist()[0]
        assert (partition["topic"], partition["partition"], partition["leaderEpoch"]) == ("txn", 0, 0)
        assert len(partition["topicId"]) == 22
        transactions = read(uploads / mode, view="transactions", **options)
        assert "aborted" in {str(each).lower() for each in transactions["state"].to_pylist()}
