"""Reading records (144, 159-161), also while the log grows."""

from __future__ import annotations

import threading

import pytest

from storage_core.errors import OptionError
from tests.log.logs import BATCH_BYTES, append, offsets, small, value, values


def test_options_of_a_read(log):
    append(log, 30)
    assert [batch.schema.names for batch in log.read(columns=["offset"])] == [["offset"]] * 3
    assert offsets(log, where="offset >= 27") == [27, 28, 29]
    assert offsets(log, max_bytes=1, columns=["offset"]) == list(range(10))
    assert offsets(log, max_bytes=0) == []
    with pytest.raises(OptionError, match="subscribe"):
        log.read(subscribe="orders")
    with pytest.raises(OptionError, match="columms"):
        log.read(columms=["offset"])
    with pytest.raises(OptionError, match="max_bytes"):
        log.read(max_bytes=-1)


def test_readers_see_a_growing_prefix_while_the_log_rolls(logs):
    log = logs.create("busy", config=small(segment_bytes=5 * BATCH_BYTES))
    wrong = []
    is_over = threading.Event()

    def read_on() -> None:
        seen = 0
        while not is_over.is_set():
            found = values(log, columns=["value"])
            if found != [value(number) for number in range(len(found))] or len(found) < seen:
                wrong.append(found)
            seen = len(found)

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    append(log, 100)
    is_over.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(log.segment_base_offsets) == 20
