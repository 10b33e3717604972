r"""Java's regular expressions, translated to Python's.

Translated are quoted text (``\Q...\E``), named groups, POSIX and Unicode classes (``\p{Alpha}``), ``\h`` and ``\z``.
Nested character classes, which Python would silently read as something else, are refused.
"""

from __future__ import annotations

import re
import warnings

from storage_core.errors import OptionError

# As written within a character class. Topic names are ASCII, so Unicode classes need no more.
_CLASSES = {
    "lower": "a-z",
    "upper": "A-Z",
    "ascii": r"\x00-\x7f",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "punct": r"!-/:-@\[-`{-~",
    "graph": "!-~",
    "print": " -~",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "xdigit": "0-9a-fA-F",
    "space": r" \t\n\x0b\f\r",
    "l": "a-zA-Z",
    "ll": "a-z",
    "lu": "A-Z",
    "n": "0-9",
    "nd": "0-9",
    "letter": "a-zA-Z",
    "alphabetic": "a-zA-Z",
    "lowercase": "a-z",
    "uppercase": "A-Z",
    "javalowercase": "a-z",
    "javauppercase": "A-Z",
    "javaletter": "a-zA-Z",
    "javadigit": "0-9",
    "javaletterordigit": "a-zA-Z0-9",
    "latin": "a-zA-Z",
}
_PROPERTY = re.compile(r"\\([pP])(?:\{\^?([A-Za-z_=]+)\}|([A-Z]))")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_CODE_POINT = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}")
_NAMED_GROUP = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_NAMED_REFERENCE = re.compile(r"\\k<([A-Za-z][A-Za-z0-9]*)>")
_ESCAPES = {r"\z": r"\Z", r"\Z": r"(?=\n?\Z)", r"\h": r"[ \t]", r"\H": r"[^ \t]", r"\e": r"\x1b"}
_CLASS_ESCAPES = {r"\h": r" \t", r"\e": r"\x1b"}


class _UnsupportedPatternError(Exception):
    """Construct that has no translation; becomes an OptionError naming the option."""


def compile_java_pattern(option: str, text: str) -> re.Pattern[str]:
    """Compile a Java regular expression for Python's `re`.

    Raises:
        OptionError: The pattern is empty, malformed, or uses a construct that is not translated.
    """
    pattern = text.strip()
    if not pattern:
        raise OptionError(
            f"Pattern to subscribe is empty as specified value for option '{option}' is '{text}'"
        )
    try:
        with warnings.catch_warnings():
            # Python warns of sets that a later version may read as nested; the translation refuses them.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(_translate(pattern), re.ASCII)
    except (re.error, _UnsupportedPatternError, ValueError, OverflowError, RecursionError) as error:
        raise OptionError(
            f"{option} is {text!r}, which cannot be used as a regular expression: {error}. "
            "Use a simpler pattern, or subscribe with a list of topics."
        ) from None


def _translate(pattern: str) -> str:
    pieces = []
    position = 0
    in_class = False
    class_start = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            piece, position = _translate_escape(pattern, position, in_class=in_class)
        elif in_class:
            if character == "]" and position > class_start:
                in_class = False
            piece = _class_character(pattern, position)
            position += 1
        elif character == "[":
            in_class = True
            piece = "[^" if pattern.startswith("[^", position) else "["
            position += len(piece)
            class_start = position
        elif character == "(":
            piece, position = _translate_group(pattern, position)
        else:
            piece = character
            position += 1
        pieces.append(piece)
    return "".join(pieces)


def _class_character(pattern: str, position: int) -> str:
    if pattern[position] == "[":
        raise _UnsupportedPatternError(f"a character class inside another at position {position}")
    if pattern.startswith("&&", position):
        raise _UnsupportedPatternError(f"an intersection of character classes at position {position}")
    return pattern[position]


def _translate_group(pattern: str, position: int) -> tuple[str, int]:
    named = _NAMED_GROUP.match(pattern, position)
    if named:
        return f"(?P<{named.group(1)}>", named.end()
    if pattern.startswith(("(?P", "(?(", "(?#"), position):
        raise _UnsupportedPatternError(f"{pattern[position : position + 3]!r} is not Java")
    return "(", position + 1


def _translate_escape(pattern: str, position: int, *, in_class: bool) -> tuple[str, int]:
    quoted = _QUOTED.match(pattern, position)
    if quoted:
        return re.escape(quoted.group(1)), quoted.end()
    matched = _PROPERTY.match(pattern, position)
    if matched:
        return _translate_property(matched, in_class=in_class), matched.end()
    code_point = _CODE_POINT.match(pattern, position)
    if code_point:
        return re.escape(chr(int(code_point.group(1), 16))), code_point.end()
    reference = _NAMED_REFERENCE.match(pattern, position)
    if reference and not in_class:
        return f"(?P={reference.group(1)})", reference.end()
    escape = pattern[position : position + 2]
    if not in_class:
        return _ESCAPES.get(escape, escape), position + 2
    if escape in _ESCAPES and escape not in _CLASS_ESCAPES:
        raise _UnsupportedPatternError(f"'{escape}' inside a character class")
    return _CLASS_ESCAPES.get(escape, escape), position + 2


def _translate_property(matched: re.Match[str], *, in_class: bool) -> str:
    full_name = matched.group(2) or matched.group(3)
    name = full_name.lower().rpartition("=")[2]
    members = _CLASSES.get(name) or _CLASSES.get(name.removeprefix("is"))
    if members is None or "^" in matched.group():
        raise _UnsupportedPatternError(f"the class '{matched.group()}' is not known here")
    negated = matched.group(1) == "P"
    if in_class:
        if negated:
            raise _UnsupportedPatternError(f"'{matched.group()}' inside a character class")
        return members
    return f"[^{members}]" if negated else f"[{members}]"
