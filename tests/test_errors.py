"""The errors: their tree, their messages, and their way from a worker to the driver."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.errors import (
    CorruptRecordError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
)
from tests.error_tables import described_in, renewed

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
CLASSES = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, SegmentLogError)
]


def drawn_tree():
    """Return the tree in the module's docstring: name of the base by name of the class, in order."""
    bases = {}
    above = []
    for line in errors.__doc__.splitlines():
        matched = re.match(r"    ([│├└─ ]*)(\w+Error)\b(.*)", line)
        if matched:
            depth = len(matched.group(1)) // 4
            above[depth:] = [matched.group(2)]
            bases[matched.group(2)] = above[depth - 1] if depth else None
            assert not depth or matched.group(3).strip(), f"{matched.group(2)} is not described"
    return bases


def test_the_tree_in_the_docstring_is_the_real_one():
    def base(kind):
        return next((each.__name__ for each in kind.__bases__ if issubclass(each, SegmentLogError)), None)

    real = {kind.__name__: base(kind) for kind in CLASSES}
    assert drawn_tree() == real
    assert list(drawn_tree()) == list(real)


def test_every_error_is_exported_and_described():
    assert sorted(errors.__all__) == errors.__all__
    assert set(errors.__all__) == {kind.__name__ for kind in CLASSES} | {"RecordError"}
    for kind in CLASSES:
        assert kind.__doc__, kind


def test_the_page_has_every_error_once_with_its_docstring():
    page = PAGE.read_text(encoding="utf-8")
    names = described_in(page)
    assert sorted(names) == sorted(kind.__name__ for kind in CLASSES)
    # A class comes after the one that it is a kind of, whose branch it is on.
    assert all(names.index(name) > names.index(base) for name, base in drawn_tree().items() if base)
    assert renewed(page) == page, "run python -m tests.error_tables --write docs/errors.md"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "Expected one, found two."),
        ({"path": "/logs/a-0"}, "Expected one, found two. [/logs/a-0]"),
        ({"path": "/l", "position_bytes": 7}, "Expected one, found two. [/l, byte 7]"),
        (
            {"path": "/l", "position_bytes": 7, "end_position_bytes": 10},
            "Expected one, found two. [/l, bytes 7 to 9]",
        ),
        (
            {"path": "/l", "position_bytes": 7, "end_position_bytes": 8},
            "Expected one, found two. [/l, byte 7]",
        ),
        ({"path": "/l", "offset": 5}, "Expected one, found two. [/l, offset 5]"),
        ({"path": "/l", "offset": 5, "last_offset": 5}, "Expected one, found two. [/l, offset 5]"),
        ({"path": "/l", "offset": 5, "last_offset": 9}, "Expected one, found two. [/l, offsets 5 to 9]"),
        (
            {
                "path": "/l",
                "position_bytes": 0,
                "end_position_bytes": 100,
                "offset": 0,
                "last_offset": 9,
            },
            "Expected one, found two. [/l, bytes 0 to 99, offsets 0 to 9]",
        ),
        ({"position_bytes": 0}, "Expected one, found two. [byte 0]"),
        ({"offset": 0}, "Expected one, found two. [offset 0]"),
    ],
)
def test_a_message_says_where(fields, expected):
    assert str(CorruptRecordError("Expected one, found two.", **fields)) == expected


@pytest.mark.parametrize("kind", CLASSES)
def test_nothing_is_lost_on_the_way_from_a_worker(kind):
    error = kind(
        "Expected one, found two.",
        path="/logs/a-0",
        position_bytes=7,
        end_position_bytes=10,
        offset=5,
        last_offset=9,
    )
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert vars(other) == vars(error)
        assert (
            str(other) == str(error) == "Expected one, found two. [/logs/a-0, bytes 7 to 9, offsets 5 to 9]"
        )
        assert other.args == error.args == ("Expected one, found two.",)


@pytest.mark.parametrize("quoted", ["a\nb", "\r\n", "\0", "\ud800", "\x1b[31m", "\u2028", "x" * 100_000])
def test_a_message_is_one_line_that_can_be_printed_whatever_it_quotes(quoted):
    for error in (
        OptionError(f"mode is {quoted}. Use FAILFAST."),
        LogDirectoryError("Found none.", path=quoted),
    ):
        text = str(error)
        assert text.isprintable()
        assert text.encode()
        assert len(text) < 5000
    assert str(OptionError(f"mode is {quoted}. Use FAILFAST.")).endswith(". Use FAILFAST.")
    assert str(OptionError("Größe ist '€'.")) == "Größe ist '€'."
