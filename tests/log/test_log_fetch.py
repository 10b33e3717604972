"""Fetching bytes (157-161)."""

from __future__ import annotations

import pytest

from storage_core import LogConfig
from storage_core.errors import OptionError
from tests.log.logs import BATCH_BYTES, append, offsets, table, value
from tests.log.producing import data, transactional


def test_no_fetch_crosses_its_limit(log):
    append(log, 4)
    log.append_batches(transactional(4, producer=1) + data(5))
    log.update_high_watermark(5)

    def end(isolation):
        fetched = log.fetch(0, 1 << 20, isolation=isolation)
        return sum(BATCH_BYTES for _ in range(4)) - len(fetched.data)

    assert end("log_end") == -(len(data(4)) + len(data(5)))
    assert end("high_watermark") == -len(data(4))
    assert end("committed") == 0
    assert log.last_stable_offset == 4
    assert log.fetch(4, 100, isolation="committed").data == b""
    assert log.fetch(5, 100, isolation="committed").data == b""
    with pytest.raises(OptionError, match="isolation"):
        log.fetch(0, 1, isolation="read_committed")


def test_a_fetch_gives_whole_batches_unless_asked_otherwise(log):
    append(log, 25)
    assert len(log.fetch(3, 250).data) == 250
    assert log.fetch(3, 250).position_bytes == 300
    assert len(log.fetch(3, 1).data) == BATCH_BYTES
    cut = log.fetch(3, 1, min_one_message=False)
    assert (len(cut.data), cut.is_first_entry_incomplete) == (1, True)
    assert log.fetch(3, 0, min_one_message=False).data == b""
    # Never over the end of a segment.
    assert len(log.fetch(8, 1000).data) == 200
    assert log.fetch(25, 1000).data == b""
    with pytest.raises(OptionError, match="at least 0"):
        log.fetch(0, -1)


def test_a_fetch_inside_a_batch_gives_all_of_it(logs):
    log = logs.create("zipped", config=LogConfig(compression_type="zstd"))
    log.append(table(*map(value, range(50))))
    fetched = log.fetch(30, 1)
    assert fetched.base_offset == 0
    assert len(fetched.data) > 61
    assert offsets(log, 30) == list(range(30, 50))
