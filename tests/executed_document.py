"""The code blocks of a document: run in order, and compared with the output that the document shows.

A ``sh`` block runs in bash, a ``python`` block in this process, as in one shell: later blocks see what earlier ones export
and define. A ``text`` block shows the output of the block before it: ``<words>`` match anything without a space, and the
width of spaces does not matter. A ``log`` block shows lines of a broker's log, in which ``…`` matches anything. A ``py``
block needs a library that is no dependency of this repository: it is compiled, and not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"<[^<>]+>")
_BLOCK_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        language: Its info string.
        text: Its content, without the indentation of an enclosing list.
        line: The line of the document on which it begins.
        section: The nearest heading above it.
        shown: The output that the document shows below it; None if none is shown.
    """

    language: str
    text: str
    line: int
    section: str
    shown: str | None = None


def blocks_of(document: str) -> list[Block]:
    """Return the blocks that are to be run, in order, each with the output that is shown for it.

    Raises:
        AssertionError: A block is in an unknown language, or shows the output of no block.
    """
    headings = [(found.start(), found[1]) for found in _HEADING.finditer(document)]
    blocks: list[Block] = []
    for found in _FENCE.finditer(document):
        indent, language, text = found.groups()
        line = document.count("\n", 0, found.start()) + 1
        text = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        if language in {"log", "py"}:
            continue
        if language == "text":
            assert blocks, f"line {line}: the output of which block?"
            assert blocks[-1].shown is None, f"line {line}: the output of that block is shown already"
            before = blocks.pop()
            blocks.append(Block(before.language, before.text, before.line, before.section, text))
            continue
        assert language in {"sh", "python"}, f"line {line}: expected sh or python, found {language}"
        section = next((name for start, name in reversed(headings) if start < found.start()), "")
        blocks.append(Block(language, text, line, section))
    return blocks


def unrun_code_of(document: str) -> list[str]:
    """Return the ``py`` blocks of a document, without the indentation of an enclosing list."""
    return [
        re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        for found in _FENCE.finditer(document)
        if found[2] == "py"
    ]


class Shell:
    """Where the blocks of a document run.

    Args:
        directory: The working directory of shell commands.
        places: What the document calls the machine's paths and addresses, and what they are here.
        environment: Of shell commands, at the beginning.
        names: The names that Python blocks know at the beginning, in addition to ``os``.
    """

    def __init__(
        self,
        directory: Path,
        places: Mapping[str, str],
        environment: Mapping[str, str],
        names: Mapping[str, object] | None = None,
    ) -> None:
        self._directory = directory
        self._places = dict(places)
        self._environment = dict(environment)
        self._names: dict[str, Any] = {"__name__": "__main__", "os": os, **(names or {})}

    def run(self, block: Block) -> str:
        """Run a block.

        Returns:
            What it printed, in the document's words for paths and addresses.

        Raises:
            AssertionError: It failed.
        """
        text = block.text
        for theirs, ours in self._places.items():
            text = text.replace(theirs, ours)
        printed = self._run_python(text, block.line) if block.language == "python" else self._run_shell(text)
        for theirs, ours in self._places.items():
            printed = printed.replace(ours, theirs)
        return printed

    def _run_shell(self, text: str) -> str:
        kept = self._directory / ".environment"
        # A failing command ends the block, as it would stop a reader who copies it.
        script = f"set -euo pipefail\n{text}\nenv -0 > {kept}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_BLOCK_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        entries = kept.read_text().split("\0")
        self._environment = dict(each.split("=", 1) for each in entries if each)
        return done.stdout

    def _run_python(self, text: str, line: int) -> str:
        printed = io.StringIO()
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * line + text, "<document>", "exec"), self._names)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return printed.getvalue()


def assert_shown(printed: str, block: Block) -> None:
    """Compare what a block printed with what the document shows."""
    if block.shown is None:
        return
    shown = [" ".join(line.split()) for line in block.shown.strip().splitlines()]
    pattern = "".join(_pattern_of(line) + r"\n" for line in shown)
    lines = "".join(" ".join(line.split()) + "\n" for line in printed.strip().splitlines())
    assert re.fullmatch(pattern, lines), (
        f"line {block.line}: the document shows\n{block.shown}\nbut printed was\n{printed}"
    )


def logged_lines_of(document: str, section: str) -> list[str]:
    """Return the lines of the ``log`` blocks below a heading that begins with these words."""
    _, heading, text = document.partition(f"\n### {section}")
    assert heading, f"the document has no section {section!r}"
    blocks = _FENCE.finditer(re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0])
    lines = [line for block in blocks if block[2] == "log" for line in block[3].splitlines()]
    assert lines, f"the section {section!r} shows no lines of a log"
    return lines


def assert_logged(log: str, lines: Iterable[str]) -> None:
    """Look for each of these lines of the document in a broker's log."""
    for line in lines:
        pattern = ".*".join(_pattern_of(part) for part in line.split("…"))
        assert re.search(pattern, log), f"the broker did not log: {line}"


def _pattern_of(line: str) -> str:
    parts = _PLACEHOLDER.split(line)
    return r"\S+".join(re.escape(part) for part in parts)
