"""Hypothesis strategies: logs of messages of format v0 and v1, and of batches of format v2 among them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.record.encoding import LOG_APPEND_TIME, NONE
from tests.record.legacy_encoding import CODECS, Message, Wrapper
from tests.record.strategies import batches, byte_strings, offset_steps, timestamps_ms

EVERY_CODEC = tuple(CODECS.values())


def plain(magics=(0, 1)):
    """Return a message, its offset counted from the entry before."""
    return st.builds(
        Message,
        offset=offset_steps,
        timestamp_ms=timestamps_ms,
        key=byte_strings,
        value=byte_strings,
        magic=st.sampled_from(magics),
        attributes=st.sampled_from([0, 0, LOG_APPEND_TIME]),
    )


@st.composite
def wrappers(draw, magics=(0, 1), codecs=EVERY_CODEC, max_messages=8, *, mixed=True):
    """Draw a wrapper, its first offset counted from the entry before; mostly without gaps, around its own format."""
    magic = draw(st.sampled_from(magics))
    inner_magics = draw(st.sampled_from([(magic,)] * 3 + [(1 - magic,), (0, 1)])) if mixed else (magic,)
    codec = draw(st.sampled_from([codec for codec in codecs if codec != NONE]))
    found = draw(st.lists(plain(inner_magics), min_size=1, max_size=max_messages))
    found *= draw(st.sampled_from([1] * 8 + [70]))
    has_gaps = draw(st.booleans())
    messages, offset = [], 0
    for message in found:
        offset += message.offset if has_gaps or not messages else 1
        messages.append(replace(message, offset=offset, attributes=0))
    first = draw(st.sampled_from([0, 0, 7, 2**40]))
    return Wrapper(
        tuple(messages),
        codec,
        magic,
        timestamp_ms=draw(st.none() | timestamps_ms),
        attributes=draw(st.sampled_from([0, 0, LOG_APPEND_TIME])),
        inner_offsets=tuple(first + message.offset for message in messages) if magic else None,
    )


@st.composite
def legacy_logs(draw, magics=(0, 1), codecs=EVERY_CODEC, max_entries=8, *, current=False, mixed=True):
    """Entries one after the other; with ``current``, also batches of format v2, with ``mixed``, wrappers around both formats."""
    kinds = [plain(magics)]
    if set(codecs) != {NONE}:
        kinds.append(wrappers(magics, codecs, mixed=mixed))
    if current:
        kinds.append(batches(max_records=4))
    found = draw(st.lists(st.one_of(kinds), min_size=1, max_size=max_entries))
    repeat = draw(st.sampled_from([1] * 6 + [2, 60]))
    if sum(len(rows_of_entry(entry)) for entry in found) * repeat > 2_000:
        repeat = 1
    # At offset 0, a wrapper of v1 would be one whose offset was never set.
    offset = draw(st.sampled_from([1, 1, 1000, 2**40, 2**62]))
    placed = []
    for entry in found * repeat:
        placed.append(placed_at(entry, offset))
        offset = last_offset_of(placed[-1]) + 1
    return placed


def placed_at(entry, offset):
    """Return the entry at an offset, or as far after it as it specifies."""
    if isinstance(entry, Message):
        return replace(entry, offset=offset + entry.offset - 1)
    if isinstance(entry, Wrapper):
        shift = offset - 1
        moved = tuple(replace(message, offset=message.offset + shift) for message in entry.messages)
        inner_offsets = entry.inner_offsets
        if inner_offsets:
            # A wrapper is never below what its set says.
            excess = max(inner_offsets[0] - moved[0].offset, 0)
            inner_offsets = tuple(offset - excess for offset in inner_offsets)
        return replace(entry, messages=moved, inner_offsets=inner_offsets)
    return entry.at(offset)


def last_offset_of(entry):
    return entry.offset if isinstance(entry, Message) else entry.last_offset


def rows_of_entry(entry):
    return [entry.row] if isinstance(entry, Message) else list(entry.rows)
