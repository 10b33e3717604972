"""Lazy imports of the names that a package exports (PEP 562).

Spark starts a Python process for every ``load()``, which asks for the columns and ends. It needs the options, but
neither numpy nor pyarrow, whose imports take ten times as long as all else that it does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_imports(name: str, *modules: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        name: The package's name; its ``__all__`` says what it exports.
        modules: Where to find what it does not import itself, in the order in which they are searched.
    """
    package = sys.modules[name]

    def get_attribute(attribute: str) -> object:
        if attribute in package.__all__:
            for module in map(import_module, modules):
                if hasattr(module, attribute):
                    found = getattr(module, attribute)
                    setattr(package, attribute, found)
                    return found
        if find_spec(f"{name}.{attribute}") is not None:
            # A module of the package, as after an import of everything.
            return import_module(f"{name}.{attribute}")
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}", name=attribute, obj=package)

    def list_attributes() -> list[str]:
        return sorted({*vars(package), *package.__all__})

    return get_attribute, list_attributes
