"""HTML out of Python values, in which every text is escaped unless it was made by these functions.

Elements have no inline styles and no event handlers, and no link or address ever comes out of data.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final, TypeAlias

from storage_core.errors import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOID: Final = frozenset({"br", "link", "meta"})


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


Content: TypeAlias = "Html | str | int | Iterable[Content] | None"
_Attribute: TypeAlias = "str | int | float | bool | None"


def element(_name: str, *content: Content, **attributes: _Attribute) -> Html:
    """An element. Content that is not HTML is escaped; None gives nothing.

    A final underscore of an attribute's name is left out, the others become hyphens: ``class_``, ``data_value``. False
    and None leave the attribute out, True gives it without a value.
    """
    opening = "".join(_attribute(name, value) for name, value in attributes.items())
    if _name in _VOID:
        return Html(f"<{_name}{opening}>")
    return Html(f"<{_name}{opening}>{joined(content)}</{_name}>")


def joined(content: Content) -> Html:
    """Several pieces of content as one."""
    if content is None:
        return Html("")
    if isinstance(content, Html):
        return content
    if isinstance(content, (str, int)):
        return escaped(str(content))
    return Html("".join(joined(each) for each in content))


def escaped(text: str) -> Html:
    """A text as HTML: quotes and angle brackets as entities, and what cannot be seen as escapes of Python."""
    return Html(html.escape(visible(text)))


def _attribute(name: str, value: _Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.removesuffix("_").replace("_", "-")
    if name == "viewbox":
        name = "viewBox"
    elif name == "preserveaspectratio":
        name = "preserveAspectRatio"
    return f" {name}" if value is True else f' {name}="{escaped(str(value))}"'
