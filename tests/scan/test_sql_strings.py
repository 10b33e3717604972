"""String literals and LIKE patterns; what Spark makes of them was looked up in Spark 4.3."""

from __future__ import annotations

import pytest

from storage_core.scan.sql_strings import LikePatternError, like_prefix, unescape_string


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("''", ""),
        ("'abc'", "abc"),
        ('"abc"', "abc"),
        ("'it''s'", "it's"),
        ('"it\'s"', "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\\b'", "a\\b"),
        (r"'\n\t\r\b\0\Z'", "\n\t\r\b\0\x1a"),
        # For LIKE to see them.
        (r"'\%\_'", r"\%\_"),
        (r"'\q\ä\x41'", "qäx41"),
        (r"'\u0041\u00e4'", "Aä"),
        (r"'\u004'", "u004"),
        (r"'\U0001f600'", "\U0001f600"),
        (r"'\ud83d\ude00'", "\U0001f600"),
        (r"'\101\060'", "A0"),
        # Beyond ASCII an octal code is none.
        (r"'\344'", "344"),
        (r"'\08'", "\x008"),
        (r"r'a\nb'", r"a\nb"),
        (r'R"a\"', "a\\"),
        ("'a\nb'", "a\nb"),
    ],
)
def test_a_literal_stands_for_a_text(literal, text):
    assert unescape_string(literal) == text


@pytest.mark.parametrize("literal", [r"'\ud800'", r"'\ude00\ud83d'", r"'\Uffffffff'"])
def test_half_a_pair_and_no_character_are_refused(literal):
    with pytest.raises((ValueError, OverflowError)):
        unescape_string(literal)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ("", False)),
        ("abc", ("abc", False)),
        ("abc%", ("abc", True)),
        ("abc%%%", ("abc", True)),
        ("%", ("", True)),
        (r"a\%b%", ("a%b", True)),
        (r"a\_b", ("a_b", False)),
        (r"a\\%", ("a\\", True)),
        (r"a\\\%", ("a\\%", False)),
    ],
)
def test_a_pattern_is_a_text_or_a_prefix(pattern, expected):
    assert like_prefix(pattern) == expected


def test_the_escape_character_may_be_another():
    assert like_prefix("a/%/_//%", "/") == ("a%_/", True)
    assert like_prefix("a\\%", "/") == ("a\\", True)
    # Even a wildcard: then it is one no more.
    assert like_prefix("abc", "%") == ("abc", False)
    assert like_prefix("a%%b", "%") == ("a%b", False)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("%a", "without wildcards, or with % at its end"),
        ("a%b%", "without wildcards, or with % at its end"),
        ("a_", "without wildcards, or with % at its end"),
        (r"a\b", "behind the escape character"),
        ("a\\", "behind the escape character"),
    ],
)
def test_other_patterns_are_refused(pattern, message):
    with pytest.raises(LikePatternError, match=message):
        like_prefix(pattern)
