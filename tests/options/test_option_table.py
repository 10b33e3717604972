from __future__ import annotations

import pytest

from storage_core.errors import OptionError
from storage_core.options.option import (
    READ_OPTIONS,
    TRIGGER_OPTIONS,
    find_option,
    nearest_hint,
    option_key,
)


def test_no_name_stands_for_two_options():
    names = [option_key(name) for spec in READ_OPTIONS for name in (spec.name, *spec.aliases)]
    assert len(names) == len(set(names))


def test_every_option_is_documented():
    for spec in READ_OPTIONS:
        assert spec.doc.endswith(".")
        assert spec.kind
        assert "|" not in spec.doc + spec.kind
        assert spec.applies_to in ("any", "batch", "stream")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("startingTimestamp", "startingTimestamp"),
        ("startingtimestamp", "startingTimestamp"),
        ("STARTINGTIMESTAMP", "startingTimestamp"),
        ("starting_timestamp", "startingTimestamp"),
        ("kafka.isolation.level", "isolationLevel"),
        ("isolation_level", "isolationLevel"),
        ("paths", "path"),
        ("starting_offsets_by_timestamp_strategy", "startingOffsetsByTimestampStrategy"),
    ],
)
def test_names_in_any_form(name, expected):
    assert find_option(name).name == expected


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(
        OptionError, match=r"^Unknown option 'startingOfset'\. Did you mean 'startingOffsets'\?$"
    ):
        find_option("startingOfset")
    with pytest.raises(
        OptionError,
        match=r"^Unknown option 'zzz'\. Known are: asOf, assign, columnNameOfCorruptRecord, columns, ",
    ):
        find_option("zzz")


def test_hints():
    assert nearest_hint("ordres", ["orders", "payments"]) == " Did you mean 'orders'?"
    assert nearest_hint("x", ["orders", "Payments"]) == " Known are: orders, Payments."
    assert not nearest_hint("x", [])
    assert nearest_hint("x", [f"topic-{number:03}" for number in range(50)]).endswith(
        "topic-039, and 10 more."
    )


def test_trigger_options_are_those_of_streams():
    assert {
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxBytesPerTrigger",
    } == TRIGGER_OPTIONS
