"""What every Spark of the tests is started with: quick to start, and as small as a few rows need.

Drivers in processes of their own import this, too: nothing of the tests' own tools is imported with it.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# A JVM that lives for minutes spends more on optimising its code than it gains; and one collector's thread does.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A busy machine may take longer than 15 seconds until the JVM and a worker are connected.
AUTH_SOCKET_TIMEOUT_S = "300"
SPARK_SETTINGS = {
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.python.authenticate.socketTimeout": f"{AUTH_SOCKET_TIMEOUT_S}s",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_UNSEEN = ("spark.sql.shuffle.partitions", "spark.ui.enabled", "spark.ui.showConsoleProgress")
_REPOSITORY = Path(__file__).resolve().parents[1]


def environment_of_a_user() -> dict[str, str]:
    """Return the variables for examples in their own processes: settings from conf/, and workers of this Python.

    What a user does not see is as small as in the other tests.
    """
    small = (f"--conf {name}={SPARK_SETTINGS[name]}" for name in _UNSEEN)
    return {
        **{name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "SPARK_REMOTE"}},
        "JDK_JAVA_OPTIONS": _JAVA_OPTIONS,
        "PYSPARK_SUBMIT_ARGS": " ".join([*small, "pyspark-shell"]),
        "PYTHONPATH": str(_REPOSITORY),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_AUTH_SOCKET_TIMEOUT": AUTH_SOCKET_TIMEOUT_S,
        "SPARK_CONF_DIR": str(_REPOSITORY / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def session_of_this_process(scratch: Path, attempts: int) -> Iterator[SparkSession]:
    """Yield a classic session with two cores, which ends with the block.

    The JVM beneath it lives as long as this process does: the next session takes it over.

    Args:
        scratch: Takes what Spark writes.
        attempts: How often a task is tried.
    """
    import pytest
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # PySpark warns about versions of packages that nothing here uses.
        warnings.simplefilter("ignore")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        # The workers import the packages from the source tree, installed or not.
        path = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        patch.setenv("SPARK_AUTH_SOCKET_TIMEOUT", AUTH_SOCKET_TIMEOUT_S)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master(f"local[2,{attempts}]").appName("segmentlog tests")
        for name, value in SPARK_SETTINGS.items():
            builder = builder.config(name, value)
        session = (
            builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.local.dir", str(scratch))
            .getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()
