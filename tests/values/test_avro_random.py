"""Random schemas, values and damage: both decoders agree with each other and with fastavro, and damage changes no sound row."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from fastavro.read import SchemaResolutionError as FastavroResolutionError
from hypothesis import example, given
from hypothesis import strategies as st

from storage_core.values import avro
from storage_core.values.avro import avro_decoder
from storage_core.values.decoding import SchemaSource
from tests.examples import examples
from tests.values.canonical import canonical, payloads
from tests.values.random_avro import Peer, RandomSchema, damaged, evolved

_ROWS = 100
_CAMPAIGN = range(20_000)
_CAMPAIGN_PART = 500


class Case:
    """A schema, perhaps a later one to read it with, and values of which some are damaged."""

    def __init__(self, seed):
        rnd = random.Random(seed)
        self.is_evolved = rnd.random() < 0.5
        made = RandomSchema(rnd, rnd.choice([1, 2, 3, 4]), is_evolving=self.is_evolved)
        self.writer = made.schema
        self.reader = evolved(rnd, made.schema) if self.is_evolved else made.schema
        self.is_damaged = [rnd.random() < 0.2 for _ in range(_ROWS)]
        values = [made.value(made.schema) for _ in range(_ROWS)]
        self.values = [
            damaged(rnd, value) if hurt else value
            for value, hurt in zip(values, self.is_damaged, strict=True)
        ]
        self.decoder = avro_decoder(
            SchemaSource(json.dumps(self.writer)), SchemaSource(json.dumps(self.reader))
        )
        self.peer = Peer(self.writer, self.reader)

    def decode(self, values, *, is_plain):
        """Decode values by one of the two decoders; return them, and the errors by row."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(avro, "_PLAIN_BYTES", 1 << 40)
            patch.setattr(avro, "_PLAIN_ROWS", 1 << 40 if is_plain else 0)
            decoded = self.decoder.decode(payloads(values))
        decoded.array.validate(full=True)
        return canonical(decoded.array), {error.row: error for error in decoded.errors}

    def check(self):
        """Check all rows, and return how many were of which kind."""
        by_column, errors = self.decode(self.values, is_plain=False)
        plain, plain_errors = self.decode(self.values, is_plain=True)
        assert errors == plain_errors
        assert by_column == plain
        sound = [row for row, hurt in enumerate(self.is_damaged) if not hurt]
        alone, _ = self.decode([self.values[row] for row in sound], is_plain=False)
        assert alone == [by_column[row] for row in sound]
        return Counter(self._check_row(row, by_column[row], errors.get(row)) for row in range(_ROWS))

    def _check_row(self, row, value, error):
        is_damaged = self.is_damaged[row]
        if error is not None:
            # A later schema may have no place for a sound value.
            assert is_damaged or error.reason == "unresolvable"
            if not is_damaged:
                with pytest.raises((ValueError, FastavroResolutionError)):
                    self.peer.read(self.values[row])
            return error.reason if is_damaged else "sound, but unresolvable"
        try:
            expected = self.peer.read(self.values[row])
        except (EOFError, IndexError, ValueError):
            # What is skipped is checked by other rules: text, indexes of symbols, the sizes of blocks.
            assert is_damaged
            assert self.is_evolved
            return "read by us alone"
        if self.peer.with_objects(value) != expected:
            # fastavro skips a block of items by its size.
            assert is_damaged
            assert self.is_evolved
            self._check_as_written(row)
            return "read by us alone"
        return "damaged, but read" if is_damaged else "sound"

    def _check_as_written(self, row):
        """Check a value that both read differently with the later schema: they agree where nothing of it is skipped."""
        source, peer = SchemaSource(json.dumps(self.writer)), Peer(self.writer, self.writer)
        decoded = avro_decoder(source).decode(payloads([self.values[row]]))
        try:
            expected = peer.read(self.values[row])
        except (EOFError, IndexError, ValueError):
            assert decoded.errors
        else:
            assert [peer.with_objects(value) for value in canonical(decoded.array)] == [expected]


@examples(30, deadline=None)
@example(61095)  # a skipped number of more than 64 bits
@example(61369)  # several texts with empty items
@example(9000588)  # a block that is skipped, and has a wrong size
@given(st.integers(0, (1 << 32) - 1))
def test_random_values_of_random_schemas(seed):
    assert Case(seed).check().total() == _ROWS


def test_random_values_are_of_all_kinds():
    counts = sum((Case(seed).check() for seed in range(30)), Counter())
    assert counts["sound"] > 1500
    assert counts["malformed"] > 100
    assert counts["damaged, but read"] > 50


@pytest.mark.soak
@pytest.mark.parametrize("first", _CAMPAIGN[::_CAMPAIGN_PART])
def test_campaign_of_random_schemas(first):
    for seed in range(first, first + _CAMPAIGN_PART):
        Case(seed).check()
