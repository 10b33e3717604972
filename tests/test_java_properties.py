"""Text of Java properties files, read as ``java.util.Properties.load`` reads it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.config import parse_java_properties


def parse(text):
    return dict(parse_java_properties(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Separators.
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb", {"a": "b"}),
        ("  a \t=\f b ", {"a": "b "}),
        ("a : b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a==b", {"a": "=b"}),
        ("a :=b", {"a": "=b"}),
        ("a b=c", {"a": "b=c"}),
        # Comments and blank lines.
        ("! comment\n# comment \\\na=b", {"a": "b"}),
        ("  # comment\n \t\n\f\na=b # no comment", {"a": "b # no comment"}),
        ("", {}),
        ("\n\r\n\r", {}),
        # Lines that go on.
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\r\n\tc", {"a": "bc"}),
        ("a=b\\\rc", {"a": "bc"}),
        ("a\\\n  b=c", {"ab": "c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\\\\\nc=d", {"a": "b\\c=d"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("\\\na=b", {"a": "b"}),
        ("\\\n\n a=b", {"a": "b"}),
        # Java takes a backslash alone for a line, unless another line follows.
        ("\\", {"": ""}),
        ("\\\n", {"": ""}),
        ("\\\n\n", {}),
        ("\\\n# comment", {}),
        # Escapes.
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a\\:b:c", {"a:b": "c"}),
        ("\\#a=b", {"#a": "b"}),
        ("a=\\u00e9\\t\\q", {"a": "é\tq"}),
        ("a=\\n\\r\\f", {"a": "\n\r\f"}),
        ("\\u0061=\\u0020b", {"a": " b"}),
        ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        ("a=\\\\u00e9", {"a": "\\u00e9"}),
        # Of two the later counts.
        ("a=1\ra=2\r\n", {"a": "2"}),
    ],
)
def test_reads_as_java_does(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["a=\\u", "a=\\u12", "a=\\u00g0", "a=\\u 123", "\\u=b"])
def test_refuses_a_malformed_escape_as_java_does(text):
    with pytest.raises(ValueError, match=r"Expected four hexadecimal digits after \\u, found '"):
        parse(text)


def test_an_escape_may_be_cut_by_the_end_of_a_line():
    assert parse("a=\\u00\\\ne9") == {"a": "é"}


@given(st.text("ab=: \t\\\n#!u0", max_size=40))
def test_any_text_is_parsed_to_its_end(text):
    with contextlib.suppress(ValueError):
        parse(text)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5))
def test_what_was_escaped_comes_back(properties):
    def escape(text):
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    text = "".join(f"{escape(key)}={escape(value)}\n" for key, value in properties.items())
    assert parse(text) == properties
