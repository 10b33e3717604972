"""How deep a predicate may be, so that whoever walks down one may do so by recursion."""

from __future__ import annotations

from typing import Final, cast

from storage_core.errors import OptionError
from storage_core.scan.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Unknown,
)

__all__ = ["MAX_DEPTH", "checked_predicate", "depth_of"]

MAX_DEPTH: Final = 64


def checked_predicate(value: object) -> Predicate:
    """Take a predicate that somebody else has built, if it is one.

    Raises:
        OptionError: It is something else, holds something else, or is deeper than `MAX_DEPTH`.
    """
    pending: list[tuple[object, int]] = [(value, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise OptionError(f"Expected a condition of at most {MAX_DEPTH} levels, found a deeper one.")
        match node:
            case And(children) | Or(children):
                pending += [(child, depth + 1) for child in children]
            case Not(child):
                pending.append((child, depth + 1))
            case Comparison() | In() | IsNull() | StartsWith() | Unknown():
                pass
            case _:
                raise OptionError(
                    f"Expected the text of a condition or a Predicate, found {node!r} of type {type(node).__name__}."
                )
    return cast("Predicate", value)


def depth_of(predicate: Predicate) -> int:
    """How many nodes stand above each other at the most. Takes any depth."""
    deepest = 0
    pending: list[tuple[Predicate, int]] = [(predicate, 1)]
    while pending:
        node, depth = pending.pop()
        deepest = max(deepest, depth)
        match node:
            case And(children) | Or(children):
                pending += [(child, depth + 1) for child in children]
            case Not(child):
                pending.append((child, depth + 1))
    return deepest
