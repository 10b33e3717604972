"""The archives under ``cases/``: one log directory and its expected results each.

Packing and unpacking keep what a broker left: empty files, names that start with a dot
and, through the ``files`` table of ``expected.json``, every modification time. Time
look-ups depend on those: a segment without timestamps counts as old as its file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

CASES_FOLDER = Path(__file__).parent / "cases"
ARCHIVE_SUFFIX = ".tar.xz"


def case_names() -> list[str]:
    """Return every case that has an archive, in name order."""
    return sorted(path.name.removesuffix(ARCHIVE_SUFFIX) for path in CASES_FOLDER.glob(f"*{ARCHIVE_SUFFIX}"))


def unpack_case(name: str, target: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack one case into the new folder ``target``.

    Returns:
        The log directory and the parsed ``expected.json``.
    """
    with tarfile.open(CASES_FOLDER / f"{name}{ARCHIVE_SUFFIX}", "r:xz") as archive:
        archive.extractall(target, filter="data")
    expected: dict[str, Any] = json.loads((target / "expected.json").read_bytes())
    logs = target / "logs"
    restore_times(logs, expected["files"])
    return logs, expected


def restore_times(logs: Path, files: dict[str, list[int]]) -> None:
    """Give each file its modification time; a file that is missing or has another size is an error."""
    for relative_path, (size_bytes, modified_ms) in files.items():
        path = logs / relative_path
        if path.stat().st_size != size_bytes:
            raise ValueError(f"{path}: expected {size_bytes} bytes, found {path.stat().st_size}")
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def pack_case(source: Path, archive_path: Path) -> None:
    """Write ``source/logs`` and ``source/expected.json`` (or ``.json.gz``) as one archive.

    The same content always gives the same bytes: names are sorted, owners and times left out.
    """
    plain = source / "expected.json"
    expected = (
        plain.read_bytes() if plain.exists() else gzip.decompress(plain.with_suffix(".json.gz").read_bytes())
    )
    logs = source / "logs"
    with tarfile.open(archive_path, "w:xz", preset=9) as archive:
        _add(archive, "expected.json", expected)
        for path in sorted(logs.rglob("*")):
            name = f"logs/{path.relative_to(logs).as_posix()}"
            if path.is_dir() and not path.is_symlink():
                _add(archive, name, None)
            elif path.is_file() and not path.is_symlink():
                _add(archive, name, path.read_bytes())
            else:
                raise ValueError(f"{path}: expected only regular files and directories in a log directory")


def fingerprint(logs: Path) -> dict[str, tuple[int, str]]:
    """Modification time (ns) and SHA-256 of each file below ``logs``; directories count by name."""
    found = {}
    for path in sorted(logs.rglob("*")):
        if path.is_dir():
            found[path.relative_to(logs).as_posix() + "/"] = (0, "")
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[path.relative_to(logs).as_posix()] = (path.stat().st_mtime_ns, digest)
    return found


def _add(archive: tarfile.TarFile, name: str, content: bytes | None) -> None:
    """Add one file, or a directory where ``content`` is None."""
    member = tarfile.TarInfo(name)
    if content is None:
        member.type = tarfile.DIRTYPE
        member.mode = 0o755
    else:
        member.size = len(content)
        member.mode = 0o644
    archive.addfile(member, None if content is None else io.BytesIO(content))
