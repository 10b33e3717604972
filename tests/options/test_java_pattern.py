from __future__ import annotations

import pytest

from storage_core.errors import OptionError
from storage_core.options.java_pattern import compile_java_pattern

TOPICS = ("logs", "my-logs", "orders.v1", "orders-v1", "Orders_2", "a.b", "axb", "123")


def found(pattern):
    return [topic for topic in TOPICS if compile_java_pattern("subscribePattern", pattern).search(topic)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("log", ["logs", "my-logs"]),
        ("^log", ["logs"]),
        ("  ^log.*$  ", ["logs"]),
        ("orders", ["orders.v1", "orders-v1"]),
        ("(?i)^orders", ["orders.v1", "orders-v1", "Orders_2"]),
        ("a.b", ["a.b", "axb"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"^\Qa.", ["a.b"]),
        (r"[\Q.-\E]v1", ["orders.v1", "orders-v1"]),
        (r"^\p{Digit}+$", ["123"]),
        (r"^\p{Lower}{4}\z", ["logs"]),
        (r"\p{Lu}", ["Orders_2"]),
        (r"\p{javaUpperCase}|\pN{3}", ["Orders_2", "123"]),
        (r"^\P{Alpha}+$", ["123"]),
        (r"^[\p{Lower}.]+$", ["logs", "a.b", "axb"]),
        (r"\p{Punct}", ["my-logs", "orders.v1", "orders-v1", "Orders_2", "a.b"]),
        (r"\p{IsAlphabetic}{6}", ["orders.v1", "orders-v1", "Orders_2"]),
        (r"^(?<first>a).(?!\k<first>)b$", ["a.b", "axb"]),
        (r"o(?<r>r)de\k<r>s", ["orders.v1", "orders-v1"]),
        (r"^\w++$", ["logs", "Orders_2", "axb", "123"]),
        (r"^(?>a|ax)b", []),
        (r"\x{78}", ["axb"]),
        (r"^[^]a-z]", ["Orders_2", "123"]),
        (r"[&|~]|x", ["axb"]),
        (r"\[|123\Z", ["123"]),
        (r"[\[\h]|axb", ["axb"]),
        ("nothing", []),
    ],
)
def test_patterns_as_java_reads_them(pattern, expected):
    assert found(pattern) == expected


@pytest.mark.parametrize("pattern", ["", "   "])
def test_an_empty_pattern(pattern):
    with pytest.raises(
        OptionError, match="Pattern to subscribe is empty as specified value for option 'subscribePattern'"
    ):
        compile_java_pattern("subscribePattern", pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "*",
        "[a",
        "a{2,1}",
        "\\",
        "[a[b]]",
        "[a-z&&[^b]]",
        "(?P<n>a)",
        "(?#comment)",
        r"\p{IsGreek}",
        r"\p{^Alpha}",
        r"[\P{Alpha}]",
        r"[\z]",
        r"\x{110000}",
        "a{99999999999999999999}",
    ],
)
def test_patterns_that_cannot_be_used_are_refused(pattern):
    with pytest.raises(OptionError, match=r"subscribePattern is .* cannot be used as a regular expression"):
        compile_java_pattern("subscribePattern", pattern)
