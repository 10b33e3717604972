"""Predicates that were built elsewhere: what is one, and how deep it may be."""

from __future__ import annotations

import pytest

from storage_core.errors import OptionError
from storage_core.scan.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith, Unknown
from storage_core.scan.predicate_depth import checked_predicate, depth_of


def test_the_depth_is_that_of_the_longest_branch():
    leaf = Comparison("offset", "=", 1)
    assert depth_of(leaf) == depth_of(And(())) == 1
    assert depth_of(And((leaf, Not(Or((leaf, leaf)))))) == 4


def nested(levels):
    predicate = Comparison("offset", "=", 1)
    for _ in range(levels - 1):
        predicate = Not(predicate)
    return predicate


def test_a_predicate_that_was_built_elsewhere_is_taken_as_it_is():
    predicate = Or((nested(63), IsNull("key"), In("topic", ("a",)), StartsWith("key", b"a"), Unknown()))
    assert checked_predicate(predicate) is predicate


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (nested(65), "at most 64 levels"),
        (nested(100_000), "at most 64 levels"),
        (5, "the text of a condition or a Predicate, found 5 of type int"),
        (And((nested(1), "offset = 5")), "found 'offset = 5' of type str"),
        (Not(None), "found None"),
        (True, "found True"),
    ],
)
def test_what_is_no_predicate_is_refused(value, message):
    with pytest.raises(OptionError, match=message):
        checked_predicate(value)
