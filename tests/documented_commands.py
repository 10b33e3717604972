"""The commands of `segmentlog` in the documents, run where a page says that they run.

Run ``python -m tests.documented_commands --write docs/cli.md`` after a change of what a command prints. What a page shows
and still matches stays as it is, so that placeholders (``<free>``) need to be written once.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.conformance.archives import unpack_case
from tests.executed_document import Block, Shell, assert_shown, blocks_of

ROOT = Path(__file__).parent.parent
# What the pages call the working directory.
PLACE = "/backup"
_COMMAND = re.compile("^segmentlog ", re.MULTILINE)
_SIZE = re.compile(r"[\d,.]+ (?:bytes|KiB|MiB|GiB|TiB)\b")
# The directories that the pages tell of, and the brokers' directories that they are.
CASES = {
    "dead-broker": "torn-tail",
    "copied-volume": "corrupt-middle",
    "coordinator": "internal",
    "hanging": "txn-ongoing",
}


def shell_in(folder: Path) -> Shell:
    """Return a shell in a folder that has the directories of the page, with the command on its path."""
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory(dir=folder) as unpacked:
            logs, _ = unpack_case(case, Path(unpacked))
            logs.rename(folder / name)
    (folder / "examples").symlink_to(ROOT / "examples")
    programs = folder / ".programs"
    programs.mkdir()
    (programs / "segmentlog").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m storage_core.cli "$@"\n')
    (programs / "segmentlog").chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }
    return Shell(folder, {PLACE: str(folder)}, environment)


def is_about_the_command(block: Block) -> bool:
    """Return whether a shell block has a line that runs `segmentlog`."""
    return block.language == "sh" and _COMMAND.search(block.text) is not None


def commands_of(page: Path) -> list[Block]:
    """Return the shell blocks of a page that are about the command."""
    return list(filter(is_about_the_command, blocks_of(page.read_text(encoding="utf-8"))))


def assert_prints(shell: Shell, block: Block) -> None:
    """Run a block and compare what it prints; sizes may differ, since those on a disk depend on its file system."""
    shown = None if block.shown is None else _SIZE.sub("1 KiB", block.shown)
    printed = _SIZE.sub("1 KiB", shell.run(block))
    assert_shown(printed, dataclasses.replace(block, shown=shown))
    assert shown or not printed, f"line {block.line}: the page does not show\n{printed}"


def rewritten(page: Path) -> str:
    """Return the text of a page with what its commands print now."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        shell = shell_in(Path(folder).resolve())
        for block in commands_of(page):
            # A block runs once: it may move or remove what it works on.
            printed = shell.run(block)
            if not _is_shown(printed, block):
                lines = "\n".join(line.rstrip() for line in printed.splitlines())
                before = f"```sh\n{block.text}```\n\n```text\n"
                assert text.count(before) == 1, f"{block.text!r} is not followed by its output once"
                text = text.replace(f"{before}{block.shown}", f"{before}{lines}\n")
    return text


def _is_shown(printed: str, block: Block) -> bool:
    try:
        assert_shown(printed, block)
    except AssertionError:
        return False
    return True


def main() -> None:
    """Write what the commands print into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    page = parser.parse_args().write
    page.write_text(rewritten(page), encoding="utf-8")


if __name__ == "__main__":
    main()
