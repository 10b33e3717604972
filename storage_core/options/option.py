"""Options: the name, value, default and meaning of each, and the field that it fills.

Parsing, the documentation, the flags of commands, errors and Spark's checks all come from the tuples of `Option`:
`storage_core.options.READ_OPTIONS`, and that of writes beside Spark's source. Kafka's topic-level keys, which writes take
too, are in `storage_core.config`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from storage_core.errors import OptionError, first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_SHOWN_NAMES = 40


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of value that an option takes.

    Attributes:
        text: What a value looks like, for the documentation.
        parse: Takes the option's name, a value and what the parsing depends on; returns the value of the field.
    """

    text: str
    parse: Callable[[str, Any, Any], object]


@dataclass(frozen=True, slots=True)
class Option:
    """Option of a read or a write.

    Attributes:
        field: The field that it fills; empty if it fills none of its own.
        kind: How its value is parsed, and what it looks like.
        default: The default as text; empty if there is none.
        only: ``batch`` or ``stream`` if it is for one of them only.
        views: The views that it is for; empty for all.
        doc: What it means, in one or two sentences.
    """

    name: str
    field: str
    kind: Kind
    default: str = ""
    aliases: tuple[str, ...] = ()
    only: Literal["", "batch", "stream"] = ""
    views: tuple[str, ...] = ()
    doc: str = ""

    def is_default(self, value: object) -> bool:
        """Return True if a value is the default as it is documented."""
        return str(value).strip().lower() == self.default.lower()


def default_values(options: Iterable[Option]) -> dict[str, Any]:
    """Return the default of each field that options fill; None if the first option of a field has none."""
    values: dict[str, Any] = {}
    for option in options:
        if option.field and option.field not in values:
            default = option.default
            values[option.field] = option.kind.parse(option.name, default, None) if default else None
    return values


def given_values(
    options: Iterable[Option], given: Mapping[str, object], context: Any = None
) -> dict[str, Any]:
    """Parse the values that are given, by the field that they fill.

    Of several options for one field, the last one that is given counts, and the others are not looked at.

    Args:
        options: Those that may be given.
        given: Values by documented name.
        context: What kinds that are not plain depend on.
    """
    chosen = {option.field: option for option in options if option.field and option.name in given}
    return {
        field: option.kind.parse(option.name, given[option.name], context) for field, option in chosen.items()
    }


def option_key(name: str) -> str:
    """Return the form in which names are compared: in lower case, without underscores and dots."""
    return name.lower().replace("_", "").replace(".", "")


def keyword_of(name: str) -> str:
    """Return a name in snake_case, as keywords have it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|\.", "_", name).lower()


def refuse_conflicting_names(given: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Return values by documented name.

    Args:
        given: The name that is given, the documented name, and the value, of each option.

    Raises:
        OptionError: An option is given under two names, and with two values.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, known, value in given:
        other = values.setdefault(known, value)
        if _comparable(other) != _comparable(value):
            raise OptionError(
                f"'{names[known]}' and '{name}' are the same option, but they are given as {other!r} and {value!r}. "
                "Give it once."
            )
        names.setdefault(known, name)
    return values


def _comparable(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def by_key(options: Iterable[Option]) -> dict[str, Option]:
    """Return each option by the key of each of its names."""
    return {option_key(name): option for option in options for name in (option.name, *option.aliases)}


def nearest_hint(given: str, known: Iterable[str]) -> str:
    """Suggest the known name nearest to ``given``, or list the known names.

    Returns:
        A sentence that begins with a blank, so that it can follow another one; empty if nothing is known.
    """
    names = {option_key(name): name for name in known}
    nearest = difflib.get_close_matches(option_key(given), names, n=1)
    if nearest:
        return f" Did you mean '{names[nearest[0]]}'?"
    if not names:
        return ""
    listed = sorted(names.values(), key=str.lower)
    return f" Known are: {first_of(listed, _SHOWN_NAMES)}."
