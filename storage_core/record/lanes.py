"""Walk the records of large batches from many places at once.

Where a record begins is known only from the one before, so a large batch would have to be
walked record by record. But a place where a record seems to begin is easy to find: its length
is followed by attributes that are always zero, and leads to another such place, and on. From
such places all lanes step forward together. A place that was wrong does no harm: its lane does
not meet the next one, or the proof by column fails, and the batch is walked plainly.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_core.record.varint import words_of

__all__ = ["STEPS", "walk_in_lanes"]

# Distance between the places where lanes are to begin: some hundred records.
_LANE_BYTES: Final = 1 << 14
# Where no beginning is found for so long, lanes would not be much shorter than the batch.
_LONGEST_LANE_BYTES: Final = 1 << 17
# With fewer lanes, a numpy step costs more than the plain loop's.
_FEWEST_LANES: Final = 24
# A beginning is looked for in this many bytes: records larger than that are too few to matter.
_SEARCH_BYTES: Final = 1 << 9
# So many lanes are begun at once: more would be no quicker.
_LANES_AT_ONCE: Final = 256
# So many records in a row have to look right.
_PROBE_RECORDS: Final = 4
# The shortest record: length, attributes, four varints and no bytes, header count.
_SMALLEST_STEP_BYTES: Final = 7
# Set in the first byte of a length that takes two.
_CONTINUES: Final = 0x80

_Int64Array = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


def _step_table() -> npt.NDArray[np.int64]:
    """Per pair of bytes at a length field: the distance to the next length field.

    Lengths of three bytes and more have no entry: their distance leads out of any buffer.
    """
    pair = np.arange(1 << 16)
    first, second = pair & 0xFF, pair >> 8
    one_byte = 1 + (first >> 1)
    two_bytes = 2 + (((first & 0x7F) | (second << 7)) >> 1)
    return np.where(first < _CONTINUES, one_byte, np.where(second < _CONTINUES, two_bytes, 1 << 40))


STEPS: Final = _step_table()


def walk_in_lanes(buffer: _Bytes, starts: _Int64Array, ends: _Int64Array) -> _Int64Array | None:
    """Where the length field of each record stands, over some batches; None if lanes do not help.

    Args:
        buffer: The uncompressed records of the batches, padded.
        starts: Per batch, where its records begin.
        ends: Per batch, where they end.

    Raises:
        IndexError: A length leads out of the buffer.
    """
    counts = np.maximum((ends - starts - _SEARCH_BYTES) // _LANE_BYTES, 0)
    if counts.sum() < _FEWEST_LANES:
        return None
    lane_starts, lane_ends = _lanes(buffer, starts, ends, counts)
    longest_bytes = int((lane_ends - lane_starts).max())
    if longest_bytes > _LONGEST_LANE_BYTES:
        return None
    word_at = words_of(buffer)
    places = []
    # A lane that went astray in zeros would find a record at each of them.
    places_left = int((ends - starts).sum()) // _SMALLEST_STEP_BYTES
    positions = lane_starts
    for _ in range(longest_bytes // _SMALLEST_STEP_BYTES + 1):
        places.append(positions)
        places_left -= len(positions)
        if places_left < 0:
            return None
        positions = positions + STEPS[word_at[positions] & 0xFFFF]
        is_inside = positions < lane_ends
        if is_inside.all():
            continue
        if not np.array_equal(positions[~is_inside], lane_ends[~is_inside]):
            return None
        positions, lane_ends = positions[is_inside], lane_ends[is_inside]
        if not len(positions):
            return np.sort(np.concatenate(places))
    return None


def _lanes(
    buffer: _Bytes, starts: _Int64Array, ends: _Int64Array, counts: _Int64Array
) -> tuple[_Int64Array, _Int64Array]:
    """Where lanes begin and end: with each batch, and about every 16 KiB where a record seems to begin."""
    batches = np.repeat(np.arange(len(starts)), counts)
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    splits = starts[batches] + (numbers + 1) * _LANE_BYTES
    split_ends = ends[batches]
    # Not all at once: where values are zeros, every byte is looked at.
    pieces = [
        _lane_starts(
            buffer, splits[first : first + _LANES_AT_ONCE], split_ends[first : first + _LANES_AT_ONCE]
        )
        for first in range(0, len(splits), _LANES_AT_ONCE)
    ]
    found = np.concatenate([lanes + number * _LANES_AT_ONCE for number, (lanes, _) in enumerate(pieces)])
    lane_starts = np.concatenate([starts, *(begins for _, begins in pieces)])
    order = np.argsort(lane_starts)
    lane_starts = lane_starts[order]
    # A lane ends where the next one begins, or with its batch.
    batch_ends = np.concatenate([ends, ends[batches[found]]])[order]
    return lane_starts, np.minimum(np.append(lane_starts[1:], batch_ends[-1]), batch_ends)


def _lane_starts(buffer: _Bytes, splits: _Int64Array, ends: _Int64Array) -> tuple[_Int64Array, _Int64Array]:
    """Behind which of some places a record seems to begin, and where."""
    # Attributes are zero. In front of them is the last byte of the length.
    looked_at = np.lib.stride_tricks.sliding_window_view(buffer, _SEARCH_BYTES)[splits]
    lanes, distances = np.nonzero(looked_at == 0)
    attributes = splits[lanes] + distances
    candidates = attributes - 1 - (buffer[attributes - 2] >= _CONTINUES)
    begins = _begins_record(buffer, candidates, ends[lanes])
    found, first_of_lane = np.unique(lanes[begins], return_index=True)
    return found, candidates[begins][first_of_lane]


def _begins_record(buffer: _Bytes, candidates: _Int64Array, ends: _Int64Array) -> npt.NDArray[np.bool_]:
    """Whether a record seems to begin at each place, and the next ones behind it."""
    word_at = words_of(buffer)
    seems_right = np.ones(len(candidates), np.bool_)
    positions = candidates
    for _ in range(_PROBE_RECORDS):
        words = word_at[np.minimum(positions, ends)]
        steps = STEPS[words & 0xFFFF]
        attributes = (words >> (8 + ((words & _CONTINUES) >> 4))) & 0xFF
        positions = positions + steps
        seems_right &= (attributes == 0) & (steps >= _SMALLEST_STEP_BYTES) & (words & 1 == 0)
        seems_right &= positions <= ends
    return seems_right
