"""The option ``where``: a condition in SQL, translated into predicate nodes.

sqlglot takes the text apart and knows which operator binds tighter; nothing that it finds means
anything unless it is named here. It is loaded when a condition is parsed, on the driver: tasks
get nodes.

Parentheses are taken out from the inside: what stands in a pair of them is parsed on its own and
is then one operand of what stands around it. So no depth of theirs can exhaust the parser's stack.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from storage_core.errors import OptionError
from storage_core.scan.predicate import And, Not, Or, Predicate
from storage_core.scan.predicate_depth import MAX_DEPTH, depth_of
from storage_core.scan.where_conditions import ConditionBuilder, Operand, Place
from storage_core.scan.where_lexemes import Lexeme, lexemes_of
from storage_core.scan.where_order import check_order, list_items

if TYPE_CHECKING:
    import datetime as dt

    from sqlglot.dialects.dialect import Dialect

    from storage_core.scan.predicate import Operator

__all__ = ["MAX_TEXT_BYTES", "parse_where"]

MAX_TEXT_BYTES: Final = 8 << 10

_COMPARISONS: Final[dict[str, Operator]] = {
    "EQ": "=",
    "NEQ": "!=",
    "GT": ">",
    "GTE": ">=",
    "LT": "<",
    "LTE": "<=",
}
# By class, the parts that sqlglot may give an expression. Anything else would go unheard.
_PARTS: Final[dict[str, set[str]]] = {
    **{name: {"this", "expression"} for name in ("And", "Or", *_COMPARISONS, "NullSafeEQ", "Is")},
    "Like": {"this", "expression", "negate"},
    "Not": {"this"},
    "In": {"this", "expressions"},
    "Between": {"this", "low", "high"},
    "Column": {"this"},
    "Null": set(),
}


def parse_where(text: str, zone: dt.tzinfo, now_ms: int | None = None) -> Predicate:
    """Translate a condition.

    Args:
        text: As in ``offset >= 100 AND key = 'k1'``, of at most `MAX_TEXT_BYTES` in UTF-8.
        zone: The zone of timestamps that name none.
        now_ms: What relative timestamps are relative to; the clock if None.

    Raises:
        OptionError: It is none, or too long or too deep, or sqlglot is not installed.
    """
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_TEXT_BYTES:
        raise OptionError(
            f"Expected a condition of at most {MAX_TEXT_BYTES} bytes in where, found one of {size_bytes} that "
            f"begins with {text[:40]!r} at character 1. Pass a Predicate to read_table, or filter afterwards."
        )
    try:
        from sqlglot.dialects.dialect import Dialect  # noqa: PLC0415  (see above)
    except ImportError as error:
        raise OptionError(
            "A condition in text needs sqlglot, which is not installed. Install it with: "
            "pip install 'spark-segmentlog[spark]' (or 'spark-segmentlog[cli]')."
        ) from error
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    return _Translation(text, Dialect.get_or_raise("spark"), ConditionBuilder(zone, now_ms)).predicate()


@dataclass(slots=True)
class _Group:
    """What stands in a pair of parentheses, so far; the outermost group has none."""

    opening: Lexeme | None = None
    is_list: bool = False
    lexemes: list[Lexeme] = field(default_factory=list)


class _Translation:
    """Translates one text."""

    def __init__(self, text: str, dialect: Dialect, builder: ConditionBuilder) -> None:
        self._text = text
        self._dialect = dialect
        self._builder = builder
        self._operands: list[Operand] = []

    def predicate(self) -> Predicate:
        groups = [_Group()]
        for lexeme in lexemes_of(self._text, self._dialect):
            if lexeme.word == "(":
                before = groups[-1].lexemes[-1].word if groups[-1].lexemes else ""
                groups.append(_Group(lexeme, is_list=before == "IN"))
            elif lexeme.word == ")":
                group = groups.pop()
                if group.opening is None:
                    raise lexeme.place.error("no parenthesis was opened for this one to close.")
                groups[-1].lexemes.append(self._closed(group, group.opening, lexeme.place))
            else:
                groups[-1].lexemes.append(lexeme)
        last = groups[-1]
        if last.opening is not None:
            raise last.opening.place.error("expected the parenthesis that begins here to be closed.")
        end = Place(self._text, len(self._text), len(self._text))
        return self._builder.condition(self._reduced(last.lexemes, end))

    def _closed(self, group: _Group, opening: Lexeme, closing: Place) -> Lexeme:
        """Make one lexeme of a group."""
        place = opening.place.to(closing)
        if group.is_list:
            return Lexeme(
                "list", place, opening.token, Operand("list", list_items(group.lexemes, place), place)
            )
        operand = self._reduced(group.lexemes, closing)
        return Lexeme("operand", place, opening.token, dataclasses.replace(operand, place=place))

    def _reduced(self, lexemes: list[Lexeme], end: Place) -> Operand:
        """Make one operand of what stands in a group."""
        if len(lexemes) == 1 and lexemes[0].operand is not None:
            return lexemes[0].operand
        checked = check_order(lexemes, end)
        condition = self._condition(self._parsed(checked))
        place = lexemes[0].place.to(lexemes[-1].place)
        if depth_of(condition) > MAX_DEPTH:
            raise place.error(f"expected a condition of at most {MAX_DEPTH} levels.")
        return Operand("condition", condition, place)

    def _parsed(self, lexemes: list[Lexeme]) -> Any:
        """What sqlglot makes of lexemes, each operand being a column ``x<number>`` to it."""
        from sqlglot import expressions  # noqa: PLC0415  (see above)
        from sqlglot.errors import ParseError  # noqa: PLC0415

        words = [token for lexeme in lexemes for token in self._tokens(lexeme)]
        parser = self._dialect.parser(error_message_context=len(self._text))
        try:
            (parsed,) = parser.parse_into(expressions.Condition, words, self._text)
        except ParseError as error:
            found = error.errors[0] if error.errors else {}
            start = len(found.get("start_context") or "")
            end = start + len(found.get("highlight") or "")
            raise Place(self._text, start, end).error("it does not fit what stands before it.") from None
        return parsed

    def _tokens(self, lexeme: Lexeme) -> list[Any]:
        import sqlglot.tokens  # noqa: PLC0415  (see above)

        tokens: Any = sqlglot.tokens
        if lexeme.operand is None:
            return [lexeme.token]
        kinds = tokens.TokenType
        name = f"x{len(self._operands)}"
        self._operands.append(lexeme.operand)
        start, end = lexeme.place.start, lexeme.place.end - 1
        operand = tokens.Token(kinds.VAR, name, 1, 1, start, end, [])
        if lexeme.word != "list":
            return [operand]
        return [
            tokens.Token(kinds.L_PAREN, "(", 1, 1, start, start, []),
            operand,
            tokens.Token(kinds.R_PAREN, ")", 1, 1, end, end, []),
        ]

    def _condition(self, node: Any) -> Predicate:
        name = self._checked_name(node)
        if name in ("And", "Or"):
            return self._junction(node)
        if name == "Not":
            return Not(self._condition(node.this))
        if name == "Column":
            return self._builder.condition(self._operand(node))
        return self._test(name, node)

    def _test(self, name: str, node: Any) -> Predicate:
        """A condition with operators that are neither AND, OR nor NOT."""
        tested = self._operand(node.this)
        parts = {part: node.args.get(part) for part in ("expression", "low", "high")}
        others = {part: self._operand(content) for part, content in parts.items() if content and name != "Is"}
        if name in _COMPARISONS:
            return self._builder.comparison(tested, _COMPARISONS[name], others["expression"])
        match name:
            case "NullSafeEQ":
                return self._builder.null_safe_equality(tested, others["expression"])
            case "Is" if self._checked_name(node.expression) == "Null":
                return self._builder.is_null(tested)
            case "In":
                return self._builder.membership(tested, self._operand(node.expressions[0]).value)
            case "Between":
                return self._builder.between(tested, others["low"], others["high"])
            case "Like":
                like = self._builder.like(tested, others["expression"])
                # Versions of sqlglot differ in how they say NOT LIKE.
                return Not(like) if node.args.get("negate") else like
        raise self._place_of(node).error("it is not available in a condition.")

    def _junction(self, node: Any) -> Predicate:
        """Flatten a chain of ANDs, or of ORs, which sqlglot nests to the left."""
        children: list[Predicate] = []
        kind = And if type(node).__name__ == "And" else Or
        pending = [node]
        while pending:
            part = pending.pop()
            if type(part) is type(node):
                self._checked_name(part)
                pending += [part.expression, part.this]
                continue
            child = self._condition(part)
            children += child.children if isinstance(child, kind) and child.children else (child,)
        return kind(tuple(children))

    def _operand(self, node: Any) -> Operand:
        if self._checked_name(node) != "Column":
            raise self._place_of(node).error("expected a column or a literal here.")
        return self._operands[int(node.name[1:])]

    def _checked_name(self, node: Any) -> str:
        """The name of an expression's class, if it is one of those that mean something here."""
        name = type(node).__name__
        parts = {part for part, content in node.args.items() if content}
        if name not in _PARTS or not parts <= _PARTS[name]:
            raise self._place_of(node).error("it is not available in a condition.")
        return name

    def _place_of(self, node: Any) -> Place:
        """From the first to the last operand in an expression."""
        found: list[Place] = []
        pending = [node]
        while pending:
            part = pending.pop()
            if isinstance(part, list):
                pending += part
            elif type(part).__name__ == "Column":
                found.append(self._operands[int(part.name[1:])].place)
            elif hasattr(part, "args"):
                pending += part.args.values()
        if not found:
            return Place(self._text, 0, len(self._text))
        return Place(self._text, min(place.start for place in found), max(place.end for place in found))
