"""The words of a condition in text: sqlglot finds them, and only those that a condition may have are let through.

Literals are understood here, from the text itself and by Spark's rules, and columns are looked
up, so that whatever is wrong with them is reported where it stands. To the parser, each of
them is just an operand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from storage_core.scan.option_table import nearest_hint
from storage_core.scan.residual import ALWAYS, NEVER
from storage_core.scan.sql_strings import unescape_string
from storage_core.scan.where_conditions import Operand, Place

if TYPE_CHECKING:
    from sqlglot.dialects.dialect import Dialect

__all__ = ["Lexeme", "lexemes_of"]

_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS"})
_SYMBOLS: Final = frozenset({"=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=", "!", "(", ")", ","})
_SIGNS: Final = ("-", "+")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_INTEGER: Final = re.compile(r"([0-9]+)[lL]?")
_HEX: Final = re.compile(r"""[xX](['"])([0-9a-fA-F]*)\1""")
# What stands in quotes: bytes, raw texts, texts, names.
_LITERAL: Final = re.compile(
    r"""\b[rRxX](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`""", re.DOTALL
)
_BALANCED: Final = re.compile(rf"""(?:{_LITERAL.pattern}|[^'"`])*""", re.DOTALL)
# No column holds more digits; of a number with more, only the sign counts.
_MOST_DIGITS: Final = 30


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A keyword, a symbol or an operand.

    Attributes:
        word: The keyword in upper case, the symbol, or ``operand``.
        place: Where it stands.
        token: What sqlglot made of it; for an operand, of its first part.
        operand: The operand.
    """

    word: str
    place: Place
    token: Any
    operand: Operand | None = None


def lexemes_of(text: str, dialect: Dialect) -> list[Lexeme]:
    """Split a condition into lexemes.

    Raises:
        OptionError: It holds something that a condition may not have.
    """
    reader = _Reader(text, _tokens(text, dialect))
    while reader.has_more:
        reader.take()
    return reader.lexemes


def _tokens(text: str, dialect: Dialect) -> list[Any]:
    from sqlglot.errors import TokenError  # noqa: PLC0415  (sqlglot is loaded where a condition is parsed)

    balanced = _BALANCED.match(text)
    end = balanced.end() if balanced else 0
    if end < len(text):
        raise Place(text, end, len(text)).error("expected the quote that begins here to end.")
    try:
        tokens = dialect.tokenize(_LITERAL.sub(_masked, text))
    except TokenError as error:
        raise Place(text, 0, len(text)).error(f"it cannot be split into words ({error}).") from error
    _require_nothing_between(text, tokens)
    return tokens


def _masked(literal: re.Match[str]) -> str:
    """Make X'...' and r'...' names of the same length: not every tokenizer takes all that Spark takes."""
    raw = literal.group()
    if raw[0] not in "rRxX":
        return raw
    place = Place(literal.string, *literal.span())
    if raw[0] in "xX" and not _HEX.fullmatch(raw):
        raise place.error("expected hexadecimal digits in X'...'.")
    if _LITERAL.match(literal.string, literal.end()):
        raise place.error("expected a blank behind it.")
    return f"`{'x' * (len(raw) - 2)}`"


def _require_nothing_between(text: str, tokens: list[Any]) -> None:
    """The tokenizer passes over comments; a condition has none."""
    position = 0
    for start, end in [*((token.start, token.end + 1) for token in tokens), (len(text), len(text))]:
        between = text[position:start]
        if between.strip():
            first = position + len(between) - len(between.lstrip())
            raise Place(text, first, first + len(between.strip())).error(
                "comments are not available in a condition."
            )
        position = max(position, end)


class _Reader:
    """Turns tokens into lexemes, one after the other."""

    def __init__(self, text: str, tokens: list[Any]) -> None:
        self.lexemes: list[Lexeme] = []
        self._text = text
        self._tokens = tokens
        self._next = 0

    @property
    def has_more(self) -> bool:
        return self._next < len(self._tokens)

    def take(self) -> None:
        """Read the next lexeme."""
        token = self._tokens[self._next]
        place = self._place_at(self._next)
        raw = self._raw_at(self._next)
        self._next += 1
        word = raw.upper()
        if raw[0] in "'\"" or (raw[0] in "rR" and raw[1:2] in ("'", '"')):
            self._add(token, self._string(place, raw))
        elif _HEX.fullmatch(raw):
            digits = raw[2:-1]
            # As in Spark, half a byte is its lower half.
            self._add(token, Operand("bytes", bytes.fromhex("0" * (len(digits) % 2) + digits), place))
        elif raw[0].isdigit():
            self._add(token, self._number(place, raw, 1))
        elif raw in _SIGNS:
            self._add(token, self._signed_number(place, raw))
        elif word in _KEYWORDS or raw in _SYMBOLS:
            self.lexemes.append(Lexeme("NOT" if raw == "!" else word, place, token))
        elif word in ("NULL", "TRUE", "FALSE"):
            value = {"NULL": None, "TRUE": ALWAYS, "FALSE": NEVER}[word]
            self._add(token, Operand("null" if value is None else "condition", value, place))
        elif word == "ESCAPE":
            self._set_escape(place)
        elif word == "TIMESTAMP" and self._raw_at(self._next)[:1] in ("'", '"'):
            self._add(token, self._typed_time(place))
        elif word == "CAST" and self._raw_at(self._next) == "(":
            self._add(token, self._cast_time(place))
        else:
            self._add(token, self._column(place, raw))

    def _add(self, token: Any, operand: Operand) -> None:
        self.lexemes.append(Lexeme("operand", operand.place, token, operand))

    def _raw_at(self, index: int) -> str:
        if index >= len(self._tokens):
            return ""
        token = self._tokens[index]
        return self._text[token.start : token.end + 1]

    def _place_at(self, index: int) -> Place:
        if index >= len(self._tokens):
            return Place(self._text, len(self._text), len(self._text))
        token = self._tokens[index]
        return Place(self._text, token.start, token.end + 1)

    def _string(self, place: Place, raw: str) -> Operand:
        """A string literal; as in Spark, those that follow each other are one, and a doubled quote is a quote."""
        parts = [self._unescaped(place, raw)]
        while (raw := self._raw_at(self._next))[:1] in ("'", '"') and raw:
            following = self._place_at(self._next)
            if following.start == place.end and self._text[place.end - 1] == raw[0]:
                parts.append(raw[0])
            parts.append(self._unescaped(following, raw))
            place = place.to(following)
            self._next += 1
        return Operand("text", "".join(parts), place)

    def _unescaped(self, place: Place, raw: str) -> str:
        try:
            return unescape_string(raw)
        except (ValueError, OverflowError):
            raise place.error(
                "expected a text of Unicode characters, found half of a pair or no character."
            ) from None

    def _number(self, place: Place, raw: str, sign: int) -> Operand:
        # A suffix makes three tokens of one place.
        while self.has_more and self._tokens[self._next].start == place.end - len(raw):
            self._next += 1
        matched = _INTEGER.fullmatch(raw)
        if matched is None:
            raise place.error("expected a whole number.")
        digits = matched.group(1).lstrip("0")
        value = int(digits or "0") if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
        return Operand("number", sign * value, place)

    def _signed_number(self, place: Place, raw: str) -> Operand:
        is_negative = raw == "-"
        before = self.lexemes[-1].word if self.lexemes else ""
        while (raw := self._raw_at(self._next)) in _SIGNS:
            is_negative ^= raw == "-"
            self._next += 1
        if before in ("operand", ")") or not raw[:1].isdigit():
            raise place.error("arithmetic is not available in a condition; a sign stands before a number.")
        following = self._place_at(self._next)
        self._next += 1
        number = self._number(following, raw, -1 if is_negative else 1)
        return Operand("number", number.value, place.to(following))

    def _set_escape(self, place: Place) -> None:
        raw = self._raw_at(self._next)
        if len(self.lexemes) < 2 or self.lexemes[-2].word != "LIKE" or raw[:1] not in ("'", '"'):  # noqa: PLR2004  (LIKE and its pattern)
            raise place.error("expected LIKE 'pattern' ESCAPE 'character'.")
        following = self._place_at(self._next)
        self._next += 1
        escape = self._string(following, raw)
        like = self.lexemes.pop()
        if len(escape.value) != 1 or like.operand is None:
            raise escape.place.error("expected one character behind ESCAPE.")
        pattern = like.operand
        self._add(like.token, Operand(pattern.kind, pattern.value, place=pattern.place, escape=escape.value))

    def _typed_time(self, place: Place) -> Operand:
        following = self._place_at(self._next)
        self._next += 1
        literal = self._string(following, self._raw_at(self._next - 1))
        return Operand("time", literal.value, place.to(literal.place))

    def _cast_time(self, place: Place) -> Operand:
        """``CAST('...' AS TIMESTAMP)``."""
        self._next += 1
        raw = self._raw_at(self._next)
        if raw[:1] in ("'", '"'):
            literal = self._string(self._place_at(self._next), self._advanced())
            words = [self._raw_at(self._next + number).upper() for number in range(3)]
            end = self._place_at(self._next + 2)
            if words == ["AS", "TIMESTAMP", ")"]:
                self._next += 3
                return Operand("time", literal.value, place.to(end))
        raise place.error("only CAST('...' AS TIMESTAMP) is available in a condition.")

    def _advanced(self) -> str:
        self._next += 1
        return self._raw_at(self._next - 1)

    def _column(self, place: Place, raw: str) -> Operand:
        name = raw[1:-1] if raw[0] == "`" else raw
        for column in _COLUMNS:
            if name.lower() == column:
                return Operand("column", column, place)
        if raw[0] != "`" and not _WORD.fullmatch(raw):
            raise place.error("it is not available in a condition.")
        if raw.upper() in ("SELECT", "EXISTS"):
            raise place.error("subqueries are not available in a condition.")
        if self._raw_at(self._next) == "(":
            raise place.error(
                "functions are not available in a condition; timestamps may be relative ('-10 minutes')."
            )
        hint = nearest_hint(name, _COLUMNS)
        raise place.error(
            f"expected one of the columns {', '.join(_COLUMNS)}.{hint if 'Did you' in hint else ''}"
        )
