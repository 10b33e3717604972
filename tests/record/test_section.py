from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from storage_core.record.section import PADDING_BYTES, WantedFields
from storage_core.record.varint import VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES


def test_all_but_the_headers_is_wanted_unless_said_otherwise():
    wanted = WantedFields()
    assert (wanted.timestamp, wanted.key, wanted.value, wanted.headers) == (True, True, True, False)


def test_what_is_wanted_can_be_told_apart_and_not_changed():
    assert len({WantedFields(), WantedFields(), WantedFields(key=False)}) == 2
    with pytest.raises(FrozenInstanceError):
        WantedFields().key = False


def test_the_padding_holds_a_timestamp_and_an_offset_of_any_length():
    # A record that ends before its fields is read on for so long before anything is compared.
    assert PADDING_BYTES >= 1 + VARLONG_LIMIT_BYTES + VARINT_LIMIT_BYTES
