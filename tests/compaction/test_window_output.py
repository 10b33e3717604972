from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.compaction.rewriting import WindowOutput
from tests.record.encoding import Batch, Record
from tests.record.sections import window_of

# What may become of a batch: as it is, another one, an empty one known from the start or found later, or nothing.
FATES = st.lists(
    st.sampled_from(["stays", "stays", "stays", "rewritten", "empty", "emptied", "gone"]),
    min_size=1,
    max_size=20,
)


def numbers(fates, *wanted):
    return np.array([number for number, fate in enumerate(fates) if fate in wanted], np.int64)


def source(number):
    return Batch((Record(0, number), Record(1, 3, b"key", b"v" * number)), 10 * number)


def emptied(number):
    return Batch((), 10 * number, last_offset_delta=1, max_timestamp_ms=max(3, number))


@given(FATES, st.sets(st.integers(1, 20)))
def test_batches_come_in_their_order_whatever_becomes_of_them(fates, cuts):
    batches = [source(number).encode() for number in range(len(fates))]
    window = window_of(b"".join(batches))
    other = [Batch((Record(1, 3, b"key", b"other"),), 10 * number).encode() for number in range(len(fates))]
    empty = [emptied(number).encode() for number in range(len(fates))]
    expected = {"stays": batches, "rewritten": other, "empty": empty, "emptied": empty}

    output = WindowOutput(window, numbers(fates, "empty"))
    first = 0
    for end in sorted({min(cut, len(fates)) for cut in cuts} | {len(fates)}):
        part = [fate if first <= number < end else "" for number, fate in enumerate(fates)]
        # In no order: each kind by itself.
        for fate, contents in (("emptied", empty), ("rewritten", other)):
            rows = numbers(part, fate)
            headers = window_of(b"".join(contents)).headers[rows]
            output.add_rewritten(rows, headers, [contents[row][61:] for row in rows.tolist()])
        output.add_unchanged(numbers(part, "stays"))
        taken = output.take(end)
        wanted = [expected[fate][number] for number, fate in enumerate(part) if fate in expected]
        if wanted:
            assert b"".join(map(bytes, taken.pieces)) == b"".join(wanted)
            assert taken.headers.tobytes() == b"".join(batch[:61] for batch in wanted)
            assert taken.size_bytes == sum(map(len, wanted))
        else:
            assert taken is None
        first = end


def test_neighbours_that_stay_are_one_piece():
    window = window_of(b"".join(source(number).encode() for number in range(6)))
    output = WindowOutput(window, np.zeros(0, np.int64))
    output.add_unchanged(np.array([0, 1, 2, 4, 5]))
    taken = output.take(6)
    assert [len(piece) for piece in taken.pieces] == [
        sum(len(source(number).encode()) for number in run) for run in ((0, 1, 2), (4, 5))
    ]
