#!/usr/bin/env python3
"""Make the archives of the conformance suite: ``python tests/conformance/pack.py DIRECTORY``.

DIRECTORY is one case, or a folder of cases. A case is a folder with ``logs/`` (a broker's
log directory) and ``expected.json`` or ``expected.json.gz``; it is named after its folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.archives import ARCHIVE_SUFFIX, CASES_FOLDER, pack_case


def main(arguments: list[str] | None = None) -> int:
    """Pack what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="one case, or a folder of cases")
    parser.add_argument("--output", type=Path, default=CASES_FOLDER, help="where the archives go")
    options = parser.parse_args(arguments)

    candidates = [options.directory, *sorted(options.directory.iterdir())]
    cases = [path for path in candidates if (path / "logs").is_dir() and list(path.glob("expected.json*"))]
    if not cases:
        print(
            f"{options.directory}: expected folders with logs/ and expected.json, found none", file=sys.stderr
        )
        return 2
    for case in cases:
        archive = options.output / f"{case.resolve().name}{ARCHIVE_SUFFIX}"
        pack_case(case, archive)
        print(f"{archive.name}: {archive.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
