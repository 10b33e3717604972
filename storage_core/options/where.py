"""Parse the option ``where``: a condition in SQL, into predicate nodes.

One regular expression splits the text into parts: keywords, symbols and operands. Parentheses are parsed from
the inside: when one closes, its content becomes a single operand of the text around it. So the parser does
not recurse, and only the depth of the predicate is limited, not that of the parentheses.

A column is compared with literals of its own type only. Where Spark would cast between a number and a string,
this is an error: the cast may fail for some rows only, or compare other values than the user meant.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from storage_core.errors import OptionError
from storage_core.options.option import nearest_hint
from storage_core.options.predicate import (
    ALWAYS,
    COMPARE,
    INT64_LIMIT,
    MAX_DEPTH,
    NEVER,
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    depth_of,
    is_beyond_int64,
)
from storage_core.options.values import ParsedTime, parse_sql_time

MAX_TEXT_BYTES: Final = 8 << 10

_Comparison: TypeAlias = Operator | Literal["<=>"]
_Parsed: TypeAlias = tuple[Predicate, int]  # With its depth.

_MOST_DIGITS: Final = 30  # No column holds more; of a number with more, only the sign counts.
_LONGEST_SHOWN: Final = 80
# The literals that a column is compared with.
_COLUMNS: Final = {
    "topic": "a text ('orders')",
    "partition": "a whole number",
    "offset": "a whole number",
    "timestamp": "a time ('2026-01-01T00:00:00Z', '2026-01-01', '-10 minutes')",
    "key": "a text ('k1') or bytes (X'6b31')",
    "value": "a text ('v1') or bytes (X'7631')",
}
# The names of operands in errors.
_OPERANDS: Final = {
    "column": "another column", "text": "a text", "time": "a timestamp", "number": "a number", "bytes": "bytes",
    "null": "NULL", "condition": "a condition",
}  # fmt: skip
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS"})
_CONSTANTS: Final = {
    "NULL": ("null", Unknown()),
    "TRUE": ("condition", ALWAYS),
    "FALSE": ("condition", NEVER),
}
_COMPARISONS: Final[dict[str, _Comparison]] = {
    "=": "=", "==": "=", "<=>": "<=>", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_FLIPPED: Final[dict[Operator, Operator]] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATABLE: Final = frozenset({"IN", "BETWEEN", "LIKE"})
_TESTS: Final = _NEGATABLE | {"NOT", "IS", *_COMPARISONS}

# Quantifiers are possessive, so that text that does not match fails without backtracking.
_STRING: Final = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_STRINGS: Final = rf"{_STRING}(?:\s*+{_STRING})*+"
_RAW: Final = r"""(?:'[^']*+'|"[^"]*+")"""
_PART: Final = re.compile(
    rf"""
      (?P<blank>\s++)
    | (?P<comment>--[^\r\n]*+|/\*(?:.*?\*/|.*+))
    | (?P<glued>[rRxX]{_RAW}(?=[rRxX]?['"`]))
    | (?P<bytes>[xX](?P<quote>['"])(?P<hex>[0-9a-fA-F]*+)(?P=quote))
    | (?P<no_bytes>[xX]{_RAW})
    | (?P<text>[rR]{_RAW}(?:\s++{_STRINGS})?+|{_STRINGS})
    | (?P<time>(?i:TIMESTAMP|(?P<cast>CAST\s*+\())\s*+(?P<moment>{_STRINGS})(?(cast)(?i:\s*+AS\s++TIMESTAMP\s*+\))))
    | (?P<quoted>(?:`[^`]*+`)++)
    | (?:[rRxX](?=['"]))?(?P<open>['"`].*+)
    | (?P<number>(?P<signs>(?:\+\s*+|-(?!-)\s*+)*+)(?P<digits>\d(?:[eE][+-]|[\w.])*+))
    | (?P<sign>[+-])(?!>)[\s+-]*+
    | (?P<word>(?![nN]{_STRING})[^\s!-/:-@\[-^`{{-~]++)
    | (?P<symbol><=>|[=<!>]=|<>|=(?!>)|[<>!(),])
    | (?P<other>[nN]{_STRING}|[=-]>|::|\|\||&&|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REFUSED: Final = {
    "comment": "comments are not available in a condition.",
    "glued": "expected a blank after it.",
    "no_bytes": "expected hexadecimal digits in X'...'.",
    "open": "expected the quote that begins here to end.",
    "sign": "arithmetic is not available in a condition; a sign comes before a number.",
    "other": "it is not available in a condition.",
}
_BEFORE_VALUE: Final = re.compile(r"([=<>,]|\b(LIKE|BETWEEN|IN\s*\())\s*\Z", re.IGNORECASE)
_LITERAL: Final = re.compile(rf"[rR]{_RAW}|{_STRING}", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|([\s\S]))")
# By what follows the backslash; before "%" and "_" it stays, for LIKE to see it.
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class Condition(NamedTuple):
    """Condition that was parsed, and what its text says of times.

    Attributes:
        is_relative: Whether it names a time relative to the present.
        has_zones: Whether each of its times is the same in every zone.
    """

    predicate: Predicate
    is_relative: bool = False
    has_zones: bool = True


def parse_where(
    text: str,
    zone: dt.tzinfo,
    now_ms: int,
    other_names: Mapping[str, str] = MappingProxyType({}),
    *,
    has_content: bool = True,
) -> Condition:
    """Parse a condition.

    Args:
        text: As in ``offset >= 100 AND key = 'k1'``, of at most `MAX_TEXT_BYTES` in UTF-8.
        zone: The zone of timestamps that name none.
        now_ms: What relative timestamps are relative to.
        other_names: Names in lower case that mean one of the columns.
        has_content: Whether errors list the columns ``key`` and ``value``, which only records have.

    Raises:
        OptionError: The text is no condition, or is too long or too deep.
    """
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_TEXT_BYTES:
        raise OptionError(
            f"Expected a condition of at most {MAX_TEXT_BYTES} bytes in where, found one of {size_bytes} that "
            f"begins with {text[:40]!r} at character 1. Pass a Predicate to read_table, or filter afterwards."
        )
    source = _Source(text, zone, now_ms, other_names, has_content)
    openings: list[_Part] = []
    groups: list[list[_Part]] = [[]]
    for part in _parts(source):
        if part.kind == "(":
            openings.append(part)
            groups.append([])
        elif part.kind != ")":
            groups[-1].append(part)
        elif not openings:
            raise part.error("no parenthesis was opened for this one to close.")
        else:
            inside, whole = groups.pop(), replace(openings.pop(), end=part.end)
            if groups[-1] and groups[-1][-1].kind == "IN":
                operand = replace(whole, kind="list", value=_items(inside, whole))
            else:
                operand = replace(_Group(inside, part).operand(), start=whole.start, end=whole.end)
            groups[-1].append(operand)
    if openings:
        raise openings[-1].error("expected the parenthesis that begins here to be closed.")
    predicate = _condition(_Group(groups[0], _Part(source, len(text), len(text))).operand())
    return Condition(
        predicate, any(time.is_relative for time in source.times), all(time.has_zone for time in source.times)
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """Text of a condition, and what it is parsed with.

    Attributes:
        zone: The zone of times that name none.
        now_ms: What relative times are relative to.
        other_names: Further names of columns.
        times: Collects the times that were found.
    """

    text: str
    zone: dt.tzinfo
    now_ms: int
    other_names: Mapping[str, str] = field(default_factory=dict)
    has_content: bool = True
    times: list[ParsedTime] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Part:
    """Keyword, symbol or operand, and its place in the text.

    Attributes:
        kind: The keyword in upper case, the symbol, a key of `_OPERANDS`, or ``list`` for what follows IN.
        value: The column's name, the literal's value, the predicate, or the list's items.
        depth: Of a predicate, how many levels it has.
    """

    source: _Source
    start: int
    end: int
    kind: str = ""
    value: Any = None
    depth: int = 1

    @property
    def raw(self) -> str:
        """Its text, with the parentheses around it."""
        return self.source.text[self.start : self.end]

    def error(self, message: str) -> OptionError:
        """Return the error that this part makes the condition invalid."""
        found = self.raw if len(self.raw) <= _LONGEST_SHOWN else f"{self.raw[:_LONGEST_SHOWN]}..."
        where = f"at character {self.start + 1}, {f'`{found}`' if found else 'its end'}"
        return OptionError(f"The condition in where is not understood {where}: {message}")

    def unexpected(self, expected: str) -> OptionError:
        """Return the error that something else was expected here."""
        if self.kind == "ESCAPE":
            return self.error("expected LIKE 'pattern' ESCAPE 'character'.")
        return self.error(f"expected {expected} {'before it' if self.kind == 'end' else 'here'}.")


def _parts(source: _Source) -> list[_Part]:
    parts: list[_Part] = []
    found = list(_PART.finditer(source.text))
    # Report a quote that does not end first: it is why parts before it look wrong.
    for matched in found[-1:] if found and found[-1]["open"] else found:
        part = _Part(source, *matched.span(str(matched.lastgroup)), str(matched.lastgroup))
        if matched["signs"] and parts and parts[-1].kind in (")", *_OPERANDS):
            part = replace(part, kind="sign", end=part.start + 1)
        if part.kind in _REFUSED:
            raise part.error(_REFUSED[part.kind])
        if part.kind != "blank":
            kind, value = _meaning(part, matched)
            parts.append(replace(part, kind=kind, value=value))
    return parts


def _meaning(part: _Part, matched: re.Match[str]) -> tuple[str, Any]:
    """Return the kind and the value of a part."""
    word = part.raw.upper()
    match part.kind:
        case "text":
            return "text", _text(part)
        case "time":
            return "time", _text(replace(part, start=matched.start("moment"), end=matched.end("moment")))
        case "bytes":
            # As in Spark, half a byte is its lower half.
            return "bytes", bytes.fromhex("0" * (len(matched["hex"]) % 2) + matched["hex"])
        case "number":
            integer = re.fullmatch("([0-9]+)[lL]?", matched["digits"])
            if integer is None:
                raise replace(part, start=matched.start("digits")).error("expected a whole number.")
            digits = integer[1].lstrip("0")
            value = int(digits or "0") if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
            return "number", -value if matched["signs"].count("-") % 2 else value
    if word in _KEYWORDS or part.kind == "symbol":
        return "NOT" if word == "!" else word, None
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    name = (part.raw[1:-1] if part.kind == "quoted" else part.raw).lower()
    name = part.source.other_names.get(name, name)
    if name in _COLUMNS:
        return "column", name
    raise part.error(_why_unknown(part))


def _why_unknown(part: _Part) -> str:
    word, source = part.raw, part.source
    is_called = source.text[part.end :].lstrip().startswith("(")
    if word.upper() == "CAST" and is_called:
        return "only CAST('...' AS TIMESTAMP) is available in a condition."
    if word[0] != "`" and not re.fullmatch(r"[^\W\d]\w*", word):
        return _REFUSED["other"]
    if word.upper() in ("SELECT", "EXISTS"):
        return "subqueries are not available in a condition."
    if is_called:
        return (
            "functions are not available in a condition: use filter on the rows that were read. "
            "Timestamps may be relative ('-10 minutes')."
        )
    columns = [name for name in _COLUMNS if source.has_content or name not in ("key", "value")]
    name = word.strip("`")
    hint = nearest_hint(name, columns)
    message = f"expected one of the columns {', '.join(columns)}.{hint if 'Did you' in hint else ''}"
    if _BEFORE_VALUE.search(source.text, 0, part.start):
        message += f" Text needs single quotes, for example '{name:.{_LONGEST_SHOWN}}'."
    return message


def _text(part: _Part) -> str:
    """Return the text of adjacent string literals, by Spark's rules."""
    raw, text = part.raw, ""
    try:
        for literal in _LITERAL.finditer(raw):
            content, quote = literal[0][1:-1], literal[0][0]
            if quote in "rR":
                text += content[1:]
            else:
                # A doubled quote ends one literal and begins the next; the text has one quote.
                is_doubled = literal.start() > 0 and raw[literal.start() - 1] == quote
                text += quote * is_doubled + _ESCAPE.sub(_unescaped, content)
        # As in Java, two escapes may be a surrogate pair.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except (ValueError, OverflowError):
        message = "expected a text of Unicode characters, found half of a pair or no character."
        raise part.error(message) from None


def _unescaped(matched: re.Match[str]) -> str:
    short_code, long_code, octal_code, other = matched.groups()
    if other is not None:
        return _ESCAPED.get(other, other)
    return chr(int(octal_code, 8) if octal_code else int(short_code or long_code, 16))


def _items(parts: Sequence[_Part], whole: _Part) -> tuple[_Part, ...]:
    for number, part in enumerate(parts):
        if part.kind not in ({","} if number % 2 else _OPERANDS):
            raise part.error(f"expected a {'comma' if number % 2 else 'value'} here.")
    if len(parts) % 2 == 0:
        raise whole.error("expected values, with commas between them.")
    return tuple(parts[::2])


class _Group:
    """Parses the parts between two parentheses, or the whole text; inner parentheses are single parts already."""

    def __init__(self, parts: Sequence[_Part], end: _Part) -> None:
        self._parts = [*parts, replace(end, kind="end")]
        self._next = 0

    def operand(self) -> _Part:
        """Parse the group into one operand: a condition, or the only operand in it."""
        first, last = self._parts[0], self._parts[-2:][0]
        if first is last and first.kind in _OPERANDS:
            return first
        predicate, depth = self._chain(Or, lambda: self._chain(And, self._negation))
        if depth > MAX_DEPTH:
            raise replace(first, end=last.end).error(f"expected a condition of at most {MAX_DEPTH} levels.")
        return replace(first, kind="condition", value=predicate, depth=depth)

    def _chain(self, kind: type[And | Or], link: Callable[[], _Parsed]) -> _Parsed:
        """Links joined by AND, or by OR, as one node; parentheses with the same word are merged into it."""
        links = [link()]
        while self._accept(kind.__name__.upper()):
            links.append(link())
        if len(links) == 1:
            return links[0]
        children: list[Predicate] = []
        depths = [1]
        for predicate, depth in links:
            parts = predicate.children if isinstance(predicate, kind) else ()
            children += parts or (predicate,)
            depths.append(depth if parts else depth + 1)
        return kind(tuple(children)), max(depths)

    def _negation(self) -> _Parsed:
        is_negated = False
        while self._accept("NOT"):
            # Two cancel out, for unknown as well.
            is_negated = not is_negated
        predicate, depth = self._test()
        return (Not(predicate), depth + 1) if is_negated else (predicate, depth)

    def _test(self) -> _Parsed:
        tested = self._operand("a condition")
        predicate, word = None, ""
        while word not in ("IN", "IS") and self._kind in _TESTS:
            last = self._parts[self._next - 1]
            is_negated = self._accept("NOT")
            if is_negated and self._kind not in _NEGATABLE:
                raise self._take().unexpected("IN, BETWEEN or LIKE")
            if predicate is not None:
                raise replace(tested, end=last.end).error("expected a column or a literal here.")
            word = self._take().kind
            predicate = self._tested(tested, word)
            predicate = Not(predicate) if is_negated else predicate
        if self._kind not in ("AND", "OR", "end"):
            raise self._take().unexpected("AND or OR" if word in ("IN", "IS") else "AND, OR or a comparison")
        return (_condition(tested), tested.depth) if predicate is None else (predicate, depth_of(predicate))

    def _tested(self, tested: _Part, word: str) -> Predicate:
        match word:
            case "IN":
                items = self._take()
                if items.kind != "list":
                    raise items.unexpected("a list of values in parentheses")
                return _membership(tested, items.value)
            case "IS":
                is_not = self._accept("NOT")
                null = self._take()
                if null.kind != "null" or null.raw.startswith("("):
                    raise null.unexpected("NULL" if is_not else "NULL or NOT NULL")
                return Not(_is_null(tested)) if is_not else _is_null(tested)
            case "BETWEEN":
                low = self._operand("a value")
                if not self._accept("AND"):
                    misfit = low if self._kind == "end" else self._take()
                    raise misfit.error("it does not fit the text before it.")
                if tested.kind != "null":
                    _column(tested, "BETWEEN")
                high = self._operand("a value")
                return And((_comparison(tested, ">=", low), _comparison(tested, "<=", high)))
            case "LIKE":
                return _like(tested, self._operand("a pattern"), self._escape())
        other = self._operand("a column or a value to compare with")
        return _comparison(tested, _COMPARISONS[word], other)

    def _escape(self) -> str:
        if self._kind != "ESCAPE":
            return "\\"
        escape, literal = self._take(), self._take()
        if literal.kind != "text" or literal.raw.startswith("("):
            raise escape.unexpected("")
        if len(literal.value) != 1:
            raise literal.error("expected one character after ESCAPE.")
        return str(literal.value)

    @property
    def _kind(self) -> str:
        return self._parts[self._next].kind

    def _take(self) -> _Part:
        self._next += 1
        return self._parts[self._next - 1]

    def _accept(self, kind: str) -> bool:
        self._next += (is_next := self._kind == kind)
        return is_next

    def _operand(self, expected: str) -> _Part:
        part = self._take()
        if part.kind not in _OPERANDS:
            raise part.unexpected(expected)
        return part


def _condition(operand: _Part) -> Predicate:
    """Return the predicate of an operand that must be a whole condition, alone or beside AND, OR or NOT."""
    if operand.kind not in ("condition", "null"):
        what = "the column alone" if operand.kind == "column" else "a literal alone"
        raise operand.error(f"expected a condition (offset >= 100), found {what}.")
    return cast("Predicate", operand.value)


def _comparison(left: _Part, comparison: _Comparison, right: _Part) -> Predicate:
    for operand in (left, right):
        if operand.kind == "condition":
            raise operand.error("expected a column or a literal to compare with, found a condition.")
    kinds = left.kind, right.kind
    if kinds == ("column", "column"):
        raise replace(left, end=right.end).error("expected a literal on one side, found two columns.")
    if "null" in kinds:
        return _is_null(left if right.kind == "null" else right) if comparison == "<=>" else Unknown()
    if comparison == "<=>":
        equal = _comparison(left, "=", right)
        column = left if left.kind == "column" else right
        return And((Not(IsNull(column.value)), equal)) if "column" in kinds else equal
    if right.kind == "column":
        left, comparison, right = right, _FLIPPED[comparison], left
    if left.kind == "column":
        value = _value(left.value, right)
        if not is_beyond_int64(value):
            return Comparison(left.value, comparison, value)
        # No 64-bit integer is as large, or as small: the result is the same for all but nulls.
        return Comparison(left.value, ">=" if COMPARE[comparison](0, value) else "<", -INT64_LIMIT)
    if left.kind != right.kind or left.kind == "time":
        raise replace(left, end=right.end).error("expected a column on one side, found two literals.")
    return ALWAYS if COMPARE[comparison](left.value, right.value) else NEVER


def _is_null(operand: _Part) -> Predicate:
    if operand.kind == "condition":
        raise operand.error("expected a column before IS NULL, found a condition.")
    if operand.kind == "column":
        return IsNull(operand.value)
    return ALWAYS if operand.kind == "null" else NEVER


def _membership(operand: _Part, items: Sequence[_Part]) -> Predicate:
    if operand.kind == "null":
        return Unknown()
    column = _column(operand, "IN")
    values = [_value(column, item) for item in items if item.kind != "null"]
    fitting = In(column, tuple(value for value in values if not is_beyond_int64(value)))
    # With a NULL in the list, a value that equals none of the others is unknown.
    return fitting if len(values) == len(items) else Or((fitting, Unknown()))


def _like(operand: _Part, pattern: _Part, escape: str) -> Predicate:
    if "null" in (operand.kind, pattern.kind):
        return Unknown()
    column = _column(operand, "LIKE")
    if column not in ("topic", "key", "value"):
        raise operand.error("expected topic, key or value before LIKE.")
    if pattern.kind != "text":
        raise pattern.error("expected a pattern in quotes after LIKE ('abc%').")
    escaped = re.escape(escape)
    rest = re.sub(rf"(?:{escaped}[%_{escaped}]|[^%_{escaped}])*+", "", pattern.value, count=1)
    if rest.startswith(escape):
        raise pattern.error(
            f"expected %, _ or the escape character itself after the escape character {escape!r} in a LIKE pattern, "
            f"found {pattern.value!r}."
        )
    if rest.strip("%"):
        raise pattern.error(
            f"expected a LIKE pattern without wildcards, or with % at its end ('abc%'), found {pattern.value!r}."
        )
    text = re.sub(f"{escaped}(.)", r"\1", pattern.value.removesuffix(rest), flags=re.DOTALL)
    value = text if column == "topic" else text.encode()
    return StartsWith(column, value) if rest else Comparison(column, "=", value)


def _column(operand: _Part, word: str) -> str:
    if operand.kind != "column":
        raise operand.error(f"expected a column before {word}.")
    return str(operand.value)


def _value(column: str, literal: _Part) -> Any:
    """Convert a literal to a value of a column."""
    match column, literal.kind:
        case ("topic", "text") | ("partition" | "offset", "number") | ("key" | "value", "bytes"):
            return literal.value
        case ("key" | "value", "text"):
            return literal.value.encode()
        case ("timestamp", "text" | "time"):
            try:
                found = parse_sql_time(literal.value, literal.source.zone, literal.source.now_ms)
            except OptionError as error:
                raise literal.error(str(error)) from None
            if found is None:
                raise literal.error(f"expected {_COLUMNS[column]}.")
            literal.source.times.append(found)
            return found.value
    raise literal.error(f"expected {_COLUMNS[column]} for {column}, found {_OPERANDS[literal.kind]}.")
