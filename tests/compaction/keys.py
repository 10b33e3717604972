"""Keys side by side in one buffer, as a map of offsets takes them."""

from __future__ import annotations

import numpy as np

from storage_core.record.arrow_columns import Slices


def slices_of(keys):
    """Return a buffer with some keys, and the position of each."""
    lengths = np.array([len(key) for key in keys], np.int64)
    return np.frombuffer(b"".join(keys), np.uint8), Slices(np.cumsum(lengths) - lengths, lengths)


def put(offset_map, keys, offsets):
    """Put keys with their offsets into a map; how many it took."""
    return offset_map.put_many(*slices_of(keys), np.array(offsets, np.int64))


def get(offset_map, keys):
    """Return the offsets that a map has of keys."""
    return offset_map.get_many(*slices_of(keys)).tolist()
