"""Spark jobs that write: a session whose tasks get several attempts, and `save`."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["error_of_save", "save", "spark_session"]

_REPOSITORY = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def spark_session(scratch: Path) -> Iterator[SparkSession]:
    """A session with two cores and four attempts for every task, which ends with the block."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # PySpark warns about versions of packages that nothing here uses.
        warnings.simplefilter("ignore")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2,4]")
            .appName("segmentlog interop")
            .config("spark.driver.memory", "1g")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.local.dir", str(scratch))
            .getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()


def save(frame: DataFrame, root: Path, mode: str = "append", **options: object) -> None:
    """Write a frame into a log directory. Options have ``__`` for ``.``."""
    writer = frame.write.format("segmentlog").mode(mode)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save(str(root))


def error_of_save(frame: DataFrame, root: Path, **options: object) -> str:
    """What `save` says when it refuses."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        save(frame, root, **options)
    return str(raised.value)
