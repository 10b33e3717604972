"""SQL's string literals and LIKE patterns, by Spark's rules."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LikePatternError", "like_prefix", "unescape_string"]

# By what follows the backslash; before "%" and "_" it stays, for LIKE to see it.
_ESCAPED: Final = {
    "0": "\0",
    "b": "\b",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "Z": "\x1a",
    "%": "\\%",
    "_": "\\_",
}
_ESCAPE: Final = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL | re.ASCII
)
_ANY_LENGTH, _ANY_CHARACTER = "%", "_"


class LikePatternError(ValueError):
    """A LIKE pattern that is none, or asks for more than a prefix."""


def unescape_string(literal: str) -> str:
    """What a string literal stands for.

    Args:
        literal: With its quotes, and an ``r`` in front if it is a raw one.

    Raises:
        ValueError: It holds half of a surrogate pair, or no character at all.
    """
    if literal[0] in "rR":
        return _checked(literal[2:-1])
    quote, content = literal[0], literal[1:-1]
    return _checked(_ESCAPE.sub(_escaped, content.replace(2 * quote, quote)))


def _escaped(matched: re.Match[str]) -> str:
    short_code, long_code, octal_code, other = matched.groups()
    if other is not None:
        return _ESCAPED.get(other, other)
    return chr(int(octal_code, 8) if octal_code else int(short_code or long_code, 16))


def _checked(text: str) -> str:
    # As in Java, two escapes may make up one character.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def like_prefix(pattern: str, escape: str = "\\") -> tuple[str, bool]:
    """What a LIKE pattern asks for.

    Args:
        pattern: The pattern.
        escape: The character that takes the meaning from a wildcard behind it.

    Returns:
        A text, and whether more may follow it.

    Raises:
        LikePatternError: There are wildcards other than ``%`` at the end, or the escape character
            stands before something that needs none.
    """
    letters: list[str] = []
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if letter == escape:
            position += 1
            if pattern[position : position + 1] not in (_ANY_LENGTH, _ANY_CHARACTER, escape):
                raise LikePatternError(
                    f"expected %, _ or the escape character itself behind the escape character {escape!r} in a "
                    f"LIKE pattern, found {pattern!r}."
                )
            letter = pattern[position]
        elif letter == _ANY_LENGTH and not pattern[position:].strip(_ANY_LENGTH):
            return "".join(letters), True
        elif letter in (_ANY_LENGTH, _ANY_CHARACTER):
            raise LikePatternError(
                f"expected a LIKE pattern without wildcards, or with % at its end ('abc%'), found {pattern!r}."
            )
        letters.append(letter)
        position += 1
    return "".join(letters), False
