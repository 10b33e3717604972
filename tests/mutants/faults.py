"""The planted faults, and the functions of the product that can show them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Fault(NamedTuple):
    """One change of the product's text that a test should notice."""

    name: str
    path: str
    old: str
    new: str
    breaks: str


class Function(NamedTuple):
    """A function of the product: its lines, and the first one of its body."""

    key: str
    first: int
    body: int
    last: int


def load_faults(only: list[str]) -> tuple[list[Fault], list[str]]:
    """Read the list, and find the text of each fault, in another file if it has moved.

    Returns:
        The faults, and what is wrong with those that cannot be planted.
    """
    listed = tomllib.loads((Path(__file__).parent / "faults.toml").read_text())
    faults = [Fault(name, path, **texts) for path, named in listed.items() for name, texts in named.items()]
    names = Counter(fault.name for fault in faults)
    found, problems = [], [f"{name}: listed twice" for name, count in names.items() if count > 1]
    for fault in faults:
        if only and fault.name not in only:
            continue
        counts = {path: count for path in product_files() if (count := text_of(path).count(fault.old))}
        paths = [fault.path] if fault.path in counts else list(counts)
        if sum(counts[path] for path in paths) == 1:
            found.append(fault._replace(path=paths[0]))
        else:
            problems.append(
                f"{fault.name}: {fault.path} has this {sum(counts.values())} times: {fault.old!r}"
            )
    return found, problems


@cache
def product_files() -> tuple[str, ...]:
    """List the modules of the product, relative to the repository."""
    files = [*ROOT.glob("storage_core/**/*.py"), *ROOT.glob("spark_segmentlog/*.py")]
    return tuple(sorted(str(file.relative_to(ROOT)) for file in files))


@cache
def text_of(path: str) -> str:
    """Read a file of the repository."""
    return (ROOT / path).read_text()


@cache
def functions_of(path: str) -> tuple[Function, ...]:
    """List the functions of a module, outer ones before those inside them."""
    return tuple(_functions_below(ast.parse(text_of(path)), f"{path}::"))


def _functions_below(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}{child.name}." if isinstance(child, (*_FUNCTIONS, ast.ClassDef)) else prefix
        if isinstance(child, _FUNCTIONS):
            body = child.body[ast.get_docstring(child) is not None :]
            if body and _first_line(body[0]) > child.lineno:
                yield Function(name[:-1], _first_line(child), _first_line(body[0]), child.end_lineno or 0)
        yield from _functions_below(child, name)


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def functions_that_show(fault: Fault) -> set[str]:
    """Find the functions that a test has to run to notice the fault.

    That is the one around it. For a constant or a field, they are all in modules that mention it.
    """
    before, _, after = text_of(fault.path).partition(fault.old)
    number = before.count("\n") + 1
    around = [each for each in functions_of(fault.path) if each.first <= number <= each.last]
    if around:
        return {around[-1].key}
    line = f"{before}{fault.old}{after}".split("\n")[number - 1]
    mentioned = re.compile(rf"\b{line.split()[0].rstrip(':')}\b")
    return {
        each.key for path in product_files() if mentioned.search(text_of(path)) for each in functions_of(path)
    }
