"""The Spark data source ``segmentlog``: directories of Apache Kafka log segments as tables.

    spark_segmentlog.register(spark)
    spark.read.format("segmentlog").load("/var/lib/kafka/data")

Spark also finds the source without this call, through the module `pyspark_segmentlog`.
Importing this package is cheap: readers and decoders are imported when they are used.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

try:
    import pyspark.sql.datasource  # noqa: F401  (new in PySpark 4.0)
except ImportError as error:
    raise ImportError(
        "spark_segmentlog needs PySpark 4.0 or newer. Install it with: pip install 'spark-segmentlog[spark]'"
    ) from error

from pyspark.errors import PySparkException

from spark_segmentlog.data_source import SegmentLogDataSource
from spark_segmentlog.progress import Lag, lag
from spark_segmentlog.workers import end_unheard
from storage_core import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Lag", "SegmentLogDataSource", "__version__", "lag", "register"]

_logger = logging.getLogger(__name__)

# Here, because each worker that looks the source up, plans, reads or writes imports this package first.
end_unheard()


def register(spark: SparkSession) -> None:
    """Register the format ``segmentlog`` with a session.

    Needed only if Spark's look-up of data sources fails, for example because another ``pyspark_*``
    package on the path cannot be imported. Calling it twice does no harm.
    """
    if f".whl{os.sep}" in __file__:
        _logger.warning(
            "segmentlog was imported from the file of a wheel. Spark's workers do not look into files that end in .whl: "
            "install it for them, or rename it to .zip before it goes to --py-files or addPyFile."
        )
    try:
        spark.dataSource.register(SegmentLogDataSource)
    except PySparkException as error:
        # Spark 4.0 refuses a name that it knows, be it of the source that it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        _logger.info("Spark has a data source with the name segmentlog already, and keeps it.")
