"""Spark's look-up of data sources finds the format ``segmentlog`` through this module.

On the first use of a format that is not built in, Spark imports every top-level module whose
name starts with ``pyspark_`` and registers its ``DefaultSource``. If one of them raises, Spark gives up
all of them. So this module never does: if the package cannot be imported, it logs that and has no source.
"""

from __future__ import annotations

__all__: list[str] = []

try:
    from spark_segmentlog.data_source import SegmentLogDataSource as DefaultSource
except Exception as error:  # noqa: BLE001  (see above: no exception may leave this module)
    import logging

    logging.getLogger(__name__).warning("The format segmentlog is not available: %s", error)
else:
    __all__ += ["DefaultSource"]
