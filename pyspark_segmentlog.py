"""Through this module Spark finds the format ``segmentlog`` without being told.

On the first use of a format that is not built in, Spark imports every top-level module whose
name starts with ``pyspark_`` and registers its ``DefaultSource``. One module that raises there
makes Spark give up the look-up of all of them, so this one never does: where the package
cannot be imported, it says so in one log line and offers no source.
"""

from __future__ import annotations

__all__: list[str] = []

try:
    from spark_segmentlog.data_source import SegmentLogDataSource as DefaultSource
except Exception as error:  # noqa: BLE001  (see above: whatever it is, it must not get out)
    import logging

    logging.getLogger(__name__).warning("The format segmentlog is not available: %s", error)
else:
    __all__ += ["DefaultSource"]
