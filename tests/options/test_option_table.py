from __future__ import annotations

import dataclasses

import pytest

from storage_core.errors import OptionError
from storage_core.options import READ_OPTIONS, ReadOptions, TriggerLimits
from storage_core.options.option import nearest_hint, option_key
from storage_core.options.read_options import find_option


def test_no_name_stands_for_two_options():
    names = [option_key(name) for spec in READ_OPTIONS for name in (spec.name, *spec.aliases)]
    assert len(names) == len(set(names))


def test_every_option_is_documented():
    for spec in READ_OPTIONS:
        assert spec.doc.endswith(".")
        assert spec.kind.text
        assert "|" not in spec.doc + spec.kind.text


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


@pytest.mark.parametrize(("values", "is_of_streams"), [(ReadOptions, False), (TriggerLimits, True)])
def test_every_field_is_filled_by_an_option(values, is_of_streams):
    filled = {option.field for option in READ_OPTIONS if (option.only == "stream") == is_of_streams}
    assert {field.name for field in dataclasses.fields(values)} - {"assumes_zone"} == filled - {"zone"}
