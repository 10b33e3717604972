"""The public names of the packages, and the parameters, members and parents that programs rely on.

Run ``python -m tests.exported_members --write tests/exported_members.txt`` after a change that is meant, and review
the difference.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from pathlib import Path
from typing import Any

from storage_core import FileSystem

MODULES = (
    "storage_core",
    "storage_core.errors",
    "storage_core.filesystem",
    "storage_core.scan",
    "storage_core.partitioning",
    "storage_core.views",
    "storage_core.log",
    "spark_segmentlog",
    "pyspark_segmentlog",
)
# Programs hand a FileSystem on; its methods are for the packages above it.
_NAMES_ONLY = "storage_core.filesystem"
_PACKAGES = ("storage_core", "spark_segmentlog", "pyspark_segmentlog")


def exported_members() -> str:
    """Return the public names, one per line. A class is described where it is named first."""
    described: set[type] = {FileSystem}
    lines = []
    for name in MODULES:
        module = importlib.import_module(name)
        lines.append(f"# {name}")
        for exported in module.__all__:
            member = getattr(module, exported)
            if inspect.isfunction(member):
                lines.append(exported + _parameters(member))
            elif isinstance(member, type) and member not in described and name != _NAMES_ONLY:
                described.add(member)
                lines += _class(exported, member)
            else:
                lines.append(exported)
        lines.append("")
    return "\n".join(lines)


def _class(name: str, kind: type) -> list[str]:
    parents = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    lines = [f"{name}({parents})" if parents else name]
    parameters: tuple[str, ...] = ()
    constructor = vars(kind).get("__init__")
    if constructor is not None and _is_of_packages(constructor):
        lines.append(f"    __init__{_parameters(constructor)}")
        parameters = tuple(inspect.signature(constructor).parameters)
    # The fields of a dataclass are the parameters of its `__init__`.
    for member in sorted(set(dir(kind)).difference(parameters)):
        owner = next((base for base in kind.__mro__ if member in vars(base)), object)
        if member.startswith("_") or not _is_of_packages(owner):
            continue
        function = getattr(vars(owner)[member], "__func__", vars(owner)[member])
        lines.append(f"    {member}{_parameters(function) if inspect.isfunction(function) else ''}")
    return lines


def _is_of_packages(member: Any) -> bool:
    return member.__module__.partition(".")[0] in _PACKAGES


class _Default:
    def __repr__(self) -> str:
        return "..."


def _parameters(function: Any) -> str:
    """Return the parameters of a function without their types, and those defaults that are plain values."""
    signature = inspect.signature(function)
    shown = (bool, int, float, str, type(None), type(inspect.Parameter.empty))
    parameters = [
        each.replace(
            annotation=each.empty, default=each.default if isinstance(each.default, shown) else _Default()
        )
        for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def main() -> None:
    """Write the names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    parser.parse_args().write.write_text(exported_members(), encoding="utf-8")


if __name__ == "__main__":
    main()
