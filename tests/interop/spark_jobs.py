"""Spark jobs that write: a session with several attempts per task, and `save`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark_settings import session_of_this_process

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def spark_session(scratch: Path) -> AbstractContextManager[SparkSession]:
    """A session with two cores and four attempts per task; it ends with the block."""
    return session_of_this_process(scratch, attempts=4)


def save(frame: DataFrame, root: Path, mode: str = "append", **options: object) -> None:
    """Write a frame into a log directory. Options have ``__`` for ``.``."""
    writer = frame.write.format("segmentlog").mode(mode)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save(str(root))


def error_of_save(frame: DataFrame, root: Path, **options: object) -> str:
    """The error message of a `save` that is refused."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        save(frame, root, **options)
    return str(raised.value)
