"""Logs that are damaged at known places: which batches survive, and which ranges are lost, is known without reading them.

A segment is a list of pieces, one after the other: undamaged batches, and other bytes.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass, field

from tests.record.encoding import Batch, Record
from tests.record.legacy_encoding import Message, Wrapper

LENGTH, MAGIC = 8, 16
# Per magic: where the bytes that the CRC covers begin, and the position of the CRC.
COVERED_START = (16, 16, 21)
CRC_POSITION = (12, 12, 17)


@dataclass
class Piece:
    """Some bytes of a file; an undamaged batch if ``offsets`` says which records it holds.

    ``last_offset`` is that of the batch, which may be above its last record's.
    """

    data: bytes
    offsets: list[int] | None = None
    last_offset: int = -1
    lost_data: bytes | None = None
    # The content of a wrapper, itself a batch if it is not compressed.
    messages: tuple[bytes, ...] = ()

    @property
    def is_batch(self):
        return self.offsets is not None

    @property
    def magic(self):
        return self.data[MAGIC]

    def lose(self, data):
        """Replace the batch by these bytes."""
        self.data, self.offsets, self.lost_data = bytes(data), None, self.data


@dataclass(frozen=True)
class Lost:
    """A range of a file that is damaged; ends are exclusive."""

    base_offset: int
    start_byte: int
    end_byte: int
    start_offset: int
    end_offset: int

    def concerns(self, start, end):
        """Return whether it may hold offsets from ``start`` to below ``end``."""
        if self.start_offset == self.end_offset:
            return start <= self.start_offset < end
        return start < end and self.start_offset < end and start < self.end_offset


@dataclass
class DamagedSegment:
    base_offset: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def data(self):
        return b"".join(piece.data for piece in self.pieces)

    def batches(self):
        """Position and piece of every batch that is left, but for copies of those in front."""
        position, next_offset = 0, self.base_offset
        for piece in self.pieces:
            if piece.is_batch and piece.offsets[0] >= next_offset:
                yield position, piece
                next_offset = piece.last_offset + 1
            position += len(piece.data)

    def lost(self, end_offset):
        """Return the damaged ranges; ``end_offset`` is the next segment's base offset, None for the last segment."""
        found = []
        next_byte, next_offset = 0, self.base_offset
        for position, piece in self.batches():
            if position > next_byte:
                found.append(Lost(self.base_offset, next_byte, position, next_offset, piece.offsets[0]))
            next_byte, next_offset = position + len(piece.data), piece.last_offset + 1
        is_missing = end_offset is not None and next_offset < end_offset
        if end_offset is not None and (
            (is_missing and next_byte < len(self.data)) or self.data[next_byte:].strip(b"\0")
        ):
            found.append(Lost(self.base_offset, next_byte, len(self.data), next_offset, end_offset))
        return found


class DamagedLog:
    """A partition of some segments."""

    def __init__(self, base_offset=0):
        self.segments = [DamagedSegment(base_offset)]
        self.next_offset = base_offset
        self._indexes = {}

    # What it holds before it is damaged.

    def batch(self, count=3, value=b"v", *, codec=0, rest=0, **fields):
        """Append a batch of format v2; ``rest`` offsets after its records are empty."""
        records = tuple(Record(delta, self.next_offset + delta, None, value) for delta in range(count))
        made = Batch(records, self.next_offset, codec, last_offset_delta=count - 1 + rest, **fields)
        return self._append(
            made.encode(), [made.base_offset + delta for delta in range(count)], made.last_offset
        )

    def messages(self, magic, count=3, value=b"v", *, codec=0):
        """Append a wrapper of format v0 or v1, or without a codec as many plain messages."""
        offsets = list(range(self.next_offset, self.next_offset + count))
        made = [Message(offset, offset, None, value, magic) for offset in offsets]
        if not codec:
            for message, offset in zip(made, offsets, strict=True):
                self._append(message.encode(), [offset], offset)
            return self
        self._append(Wrapper(tuple(made), codec, magic).encode(), offsets, offsets[-1])
        self.segments[-1].pieces[-1].messages = tuple(message.encode() for message in made)
        return self

    def _append(self, data, offsets, last_offset):
        self.segments[-1].pieces.append(Piece(data, offsets, last_offset))
        self.next_offset = last_offset + 1
        return self

    def skip(self, count):
        self.next_offset += count
        return self

    def roll(self):
        self.segments.append(DamagedSegment(self.next_offset))
        return self

    def note_indexes(self, interval_bytes=300):
        """Index the segments as they are now, undamaged."""
        for segment in self.segments:
            entries, since = [], 0
            for position, piece in segment.batches():
                if since > interval_bytes:
                    entries.append((piece.last_offset - segment.base_offset, position))
                    since = 0
                since += len(piece.data)
            self._indexes[segment.base_offset] = b"".join(struct.pack(">ii", *entry) for entry in entries)
        return self

    # What is left of it.

    @property
    def offsets(self):
        """The offsets of all records that are left."""
        return [
            offset for segment in self.segments for _, piece in segment.batches() for offset in piece.offsets
        ]

    @property
    def log_end_offset(self):
        last = self.segments[-1]
        return max((piece.last_offset + 1 for _, piece in last.batches()), default=last.base_offset)

    @property
    def lost(self):
        ends = [segment.base_offset for segment in self.segments[1:]]
        return [
            lost
            for segment, end in zip(self.segments, [*ends, None], strict=True)
            for lost in segment.lost(end)
        ]

    def write(self, root, topic="events", partition=0):
        path = root / f"{topic}-{partition}"
        path.mkdir(parents=True, exist_ok=True)
        for segment in self.segments:
            stem = path / f"{segment.base_offset:020d}"
            stem.with_suffix(".log").write_bytes(segment.data)
            if segment.base_offset in self._indexes:
                stem.with_suffix(".index").write_bytes(self._indexes[segment.base_offset])
        return path


# -- Damage. Each takes a segment, the index of a piece, and a random number generator. --------


def flip(segment, index, rng):
    """Flip bits of what the CRC covers, of the CRC, the length or the magic; not of what nothing covers."""
    piece = segment.pieces[index]
    data = bytearray(piece.data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        covered = range(COVERED_START[piece.magic], len(data))
        crc = range(CRC_POSITION[piece.magic], CRC_POSITION[piece.magic] + 4)
        length = range(LENGTH, LENGTH + 4)
        place = rng.choice(rng.choice((covered, covered, crc, length, length, (MAGIC,))))
        data[place] ^= 1 << rng.randrange(8)
    if bytes(data) != piece.data:
        piece.lose(data)


def overwrite(segment, index, rng):
    """Write something else over the beginning, or the middle, or the end."""
    piece = segment.pieces[index]
    size = rng.choice((1, 4, 12, 30, 61, 200))
    start = rng.choice((0, 8, rng.randrange(len(piece.data))))
    garbage = rng.choice((bytes(size), b"\xff" * size, b"\2" * size, rng.randbytes(size)))
    data = piece.data[:start] + garbage[: len(piece.data) - start] + piece.data[start + size :]
    uncovered = 12 if piece.magic < 2 else 16
    # No CRC covers offset and leader epoch: a batch with others is another batch, not a damaged one.
    if data[uncovered:] != piece.data[uncovered:] or data[8:12] != piece.data[8:12]:
        piece.lose(data)


def cut(segment, index, rng):
    """Take out bytes from the middle of one piece to the middle of the same or a later one."""
    last = min(index + rng.choice((0, 0, 1, 2)), len(segment.pieces) - 1)
    first_piece, last_piece = segment.pieces[index], segment.pieces[last]
    start = rng.randrange(1, len(first_piece.data))
    # Not so few bytes that a whole batch is left, with another offset in front.
    end = rng.randrange(
        min(start + 1 if last == index else 22, len(last_piece.data)), len(last_piece.data) + 1
    )
    if last != index and end == len(last_piece.data):
        end -= 1
    data = first_piece.data[:start] + last_piece.data[end:]
    # Where equal bytes stood on both sides, nothing may be missing.
    rest_data = b"".join(piece.data for piece in segment.pieces[last + 1 :])
    if not (data + rest_data).startswith(first_piece.data) and not data.endswith(last_piece.data):
        segment.pieces[index : last + 1] = [
            Piece(
                data,
                lost_data=first_piece.data,
                messages=first_piece.messages + last_piece.messages,
            )
        ]


def insert(segment, index, rng):
    """Put bytes in front of a piece."""
    size = rng.choice((1, 10, 61, 300, 5000))
    garbage = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
    segment.pieces.insert(index, Piece(garbage))


def insert_inside(segment, index, rng):
    """Put bytes into the middle of a piece."""
    piece = segment.pieces[index]
    place = rng.randrange(1, len(piece.data))
    piece.lose(piece.data[:place] + rng.randbytes(rng.choice((1, 5, 100))) + piece.data[place:])


def repeat(segment, index, rng):
    """Repeat some pieces."""
    end = index + rng.choice((1, 2))
    segment.pieces[end:end] = [dataclasses.replace(piece) for piece in segment.pieces[index:end]]


def truncate(segment, index, rng):
    """Cut the file off within a piece."""
    piece = segment.pieces[index]
    piece.lose(piece.data[: rng.randrange(1, len(piece.data))])
    del segment.pieces[index + 1 :]


KINDS = (flip, flip, flip, overwrite, cut, insert, insert_inside, repeat, truncate)


def damage(log, rng, count):
    """Damage a log at ``count`` places."""
    # Copies are made last: of a batch that is damaged later, they would be the original.
    for kind in sorted((rng.choice(KINDS) for _ in range(count)), key=lambda kind: kind is repeat):
        segment = rng.choice(log.segments)
        batches = [index for index, piece in enumerate(segment.pieces) if piece.is_batch]
        if batches:
            kind(segment, rng.choice(batches), rng)
    for segment in log.segments:
        for index, piece in enumerate(segment.pieces):
            rest_data = b"".join(each.data for each in segment.pieces[index:])
            if piece.lost_data is not None and rest_data.startswith(piece.lost_data):
                # What was cut off, the next bytes happen to be.
                piece.data += b"\xff"
            for message in piece.messages if piece.lost_data is not None else ():
                # It would be read, now that nothing says that it belongs to a wrapper.
                piece.data = piece.data.replace(message, message[:-1] + bytes([message[-1] ^ 1]))
