"""The log directory of a broker with a schema registry's topic, and what independent decoders read from it (README.md)."""

from __future__ import annotations

import functools
import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def unpack_typed_logs(target: Path) -> Path:
    """Unpack the log directory into a new folder, and return its path."""
    with tarfile.open(_FOLDER / "logs.tar.xz", "r:xz") as archive:
        archive.extractall(target, filter="data")
    return target / "logs"


@functools.cache
def expected_values() -> dict[str, Any]:
    """Return what independent decoders read from the log directory: `README.md` says in which form."""
    loaded: dict[str, Any] = json.loads(gzip.decompress((_FOLDER / "expected.json.gz").read_bytes()))
    return loaded
