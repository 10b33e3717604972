"""Spark jobs that write into a log directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame


def save(frame: DataFrame, root: Path, mode: str = "append", **options: object) -> None:
    """Write a frame into a log directory. Options have ``__`` for ``.``."""
    writer = frame.write.format("segmentlog").mode(mode)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save(str(root))


def error_of_save(frame: DataFrame, root: Path, **options: object) -> str:
    """Return the error message of a `save` that is refused."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        save(frame, root, **options)
    return str(raised.value)
