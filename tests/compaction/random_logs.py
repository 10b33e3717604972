"""Logs as only chance makes them: what producers, transactions, older brokers and earlier passes may leave.

An action is a plain tuple; `LogWriter` makes batches of it that could be in a log: sequences go on, a producer
with an open transaction writes nothing outside of it, and offsets ascend.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.compaction.plain_batches import PlainBatch, PlainRecord

START_MS = 1_700_000_000_000
ABORT, COMMIT = 0, 1
CODECS = (0, 0, 0, 1, 2, 3, 4)

_KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"\0\0\0\1", b"a long key" * 9])
_VALUES = st.sampled_from([b"", b"1", b"2", b"value" * 30])
_TOMBSTONES = st.none()
_RECORDS = st.tuples(
    st.one_of(_KEYS, _KEYS, _KEYS, st.none()),
    st.one_of(_VALUES, _VALUES, _TOMBSTONES),
    st.integers(-50, 50),
    st.sampled_from([(), (), (("h", None), ("h", b"")), (("é", b"x" * 40),)]),
)
_MANY = st.lists(_RECORDS, min_size=1, max_size=5)
_PRODUCERS = st.integers(1, 3)
_GAPS = st.tuples(st.sampled_from([0, 0, 0, 1, 5]), st.lists(st.integers(0, 2), min_size=5, max_size=5))
_NO_GAPS = st.just((0, [0] * 5))
_ANY_GAPS = st.one_of(_NO_GAPS, _GAPS)
_HORIZONS = st.sampled_from([None, None, None, 0, 500, 1_500])

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), _MANY, st.sampled_from(CODECS), _ANY_GAPS, st.booleans(), _HORIZONS),
        st.tuples(st.just("produced"), _PRODUCERS, _MANY, st.sampled_from(CODECS), _ANY_GAPS),
        st.tuples(st.just("transactional"), _PRODUCERS, _MANY, st.sampled_from(CODECS), _ANY_GAPS),
        st.tuples(st.just("transactional"), _PRODUCERS, _MANY, st.just(0), _NO_GAPS),
        st.tuples(st.just("end"), _PRODUCERS, st.sampled_from([ABORT, COMMIT]), st.booleans(), _HORIZONS),
        st.tuples(st.just("end"), _PRODUCERS, st.sampled_from([ABORT, COMMIT]), st.booleans(), st.none()),
        st.tuples(st.just("emptied"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("emptied marker"), _PRODUCERS),
        st.tuples(
            st.just("messages"),
            st.integers(0, 1),
            _MANY,
            st.sampled_from([0, 0, 1, 2]),
            _ANY_GAPS,
            st.booleans(),
        ),
        st.tuples(st.just("leap"), st.sampled_from([1_000, 2**30, 2**31 - 2, 2**31 - 1, 2**31, 2**33])),
        st.tuples(st.just("roll")),
    ),
    min_size=1,
    max_size=14,
)
"""What happens to a log between two passes."""


@dataclass
class _Producer:
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


@dataclass
class LogWriter:
    """Makes batches of actions, each after the one before."""

    next_offset: int = 0
    now_ms: int = START_MS
    leader_epoch: int = 0
    producers: dict[int, _Producer] = field(default_factory=dict)

    def batches(self, action: tuple) -> list[PlainBatch]:
        """Return the batches of one action."""
        kind, *arguments = action
        made = getattr(self, "_" + kind.replace(" ", "_"))(*arguments)
        self.now_ms += 10
        return made

    def end_transactions(self, kind: int) -> list[PlainBatch]:
        """Markers for everything that is open."""
        open_ones = [number for number, producer in self.producers.items() if producer.is_open]
        return [batch for number in open_ones for batch in self._end(number, kind, False, None)]

    def _data(self, records, codec, gaps, is_append_time, horizon):
        return [
            self._batch(records, gaps, codec=codec, is_append_time=is_append_time, horizon=horizon),
        ]

    def _produced(self, number, records, codec, gaps):
        return [self._of_producer(number, records, codec, gaps, is_transactional=False)]

    def _transactional(self, number, records, codec, gaps):
        return [self._of_producer(number, records, codec, gaps, is_transactional=True)]

    def _of_producer(self, number, records, codec, gaps, *, is_transactional):
        producer = self.producers.setdefault(number, _Producer())
        producer.is_open |= is_transactional
        batch = self._batch(
            records,
            gaps,
            codec=codec,
            is_transactional=producer.is_open,
            producer_id=number,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
        )
        producer.sequence += batch.last_offset - batch.base_offset + 1
        return batch

    def _end(self, number, kind, raises_epoch, horizon):
        producer = self.producers.setdefault(number, _Producer())
        producer.is_open = False
        if raises_epoch:
            producer.epoch += 1
            producer.sequence = 0
        record = (struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 7), 0, ())
        return [
            self._batch(
                [record],
                (0, [0]),
                horizon=horizon,
                is_transactional=True,
                is_control=True,
                producer_id=number,
                producer_epoch=producer.epoch,
            )
        ]

    def _emptied(self, number, last_offset_delta):
        """Return what an earlier pass has left of a producer's last batch, or at the end of its round."""
        base_offset = self.next_offset
        self.next_offset += last_offset_delta + 1
        empty = PlainBatch(base_offset, base_offset + last_offset_delta, max_timestamp_ms=self.now_ms)
        if not number:
            return [empty]
        producer = self.producers.setdefault(number, _Producer())
        sequence = producer.sequence
        producer.sequence += last_offset_delta + 1
        of_producer = {
            "producer_id": number, "producer_epoch": producer.epoch, "base_sequence": sequence,
            "is_transactional": producer.is_open,
        }  # fmt: skip
        return [PlainBatch(**{**vars(empty), **of_producer})]

    def _emptied_marker(self, number):
        (marker,) = self._end(number, COMMIT, False, None) if self._is_idle(number) else (None,)
        if marker is None:
            return []
        return [PlainBatch(**{**vars(marker), "records": (), "base_timestamp_ms": -1})]

    def _is_idle(self, number):
        return number in self.producers and not self.producers[number].is_open

    def _messages(self, magic, records, codec, gaps, is_append_time):
        is_append_time &= magic == 1
        if not codec:
            return [self._message(magic, [record], 0, (0, [0]), is_append_time) for record in records]
        return [self._message(magic, records, codec, gaps, is_append_time)]

    def _message(self, magic, records, codec, gaps, is_append_time):
        made = self._batch(
            [(*record[:3], ()) for record in records], gaps, codec=codec, is_append_time=is_append_time
        )
        bare = tuple(
            PlainRecord(record.offset, record.timestamp_ms if magic else -1, record.key, record.value)
            for record in made.records
        )
        # A set of messages begins and ends with one.
        self.next_offset = bare[-1].offset + 1
        largest_ms = max(record.timestamp_ms for record in bare)
        return PlainBatch(
            bare[0].offset, bare[-1].offset, bare, -1, largest_ms, -1, codec, is_append_time, magic=magic
        )

    def _leap(self, count):
        """Return what an earlier pass may have left of many offsets: nothing."""
        self.next_offset += count
        return []

    def _roll(self):
        return []

    def _batch(self, records, gaps, *, horizon=None, is_append_time=False, **fields):
        base_offset = self.next_offset
        ahead, between = gaps
        made, offset = [], base_offset + ahead
        for (key, value, delta_ms, headers), gap in zip(records, between, strict=False):
            timestamp_ms = self.now_ms if is_append_time else self.now_ms + delta_ms
            encoded = tuple((name.encode(), content) for name, content in headers)
            made.append(PlainRecord(offset, timestamp_ms, key, value, encoded))
            offset += 1 + gap
        # After the last record there may be a gap, too.
        self.next_offset = offset
        first_ms = made[0].timestamp_ms
        return PlainBatch(
            base_offset,
            offset - 1,
            tuple(made),
            first_ms if horizon is None else self.now_ms + horizon,
            max(record.timestamp_ms for record in made),
            self.leader_epoch,
            is_append_time=is_append_time,
            has_delete_horizon=horizon is not None,
            **fields,
        )
