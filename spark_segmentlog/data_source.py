"""The class that Spark instantiates for ``format("segmentlog")``.

Spark creates it for every ``load()`` in a separate Python process, and sends pickled copies to the
processes that plan. So it holds only its options, and large or slow modules are imported where they are used.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_segmentlog.tracebacks import raises_without_frames
from storage_core.errors import OptionError, SegmentLogError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_segmentlog.reader import SegmentLogReader, ViewReader
    from spark_segmentlog.stream_reader import RefusedStreamReader, SegmentLogStreamReader
    from spark_segmentlog.stream_writer import SegmentLogStreamWriter
    from spark_segmentlog.writer import SegmentLogWriter


_logger = logging.getLogger(__name__)


class SegmentLogDataSource(DataSource):
    """Directories of Kafka log segments as a table, one row per record; or what else they hold, with ``view``."""

    @classmethod
    def name(cls) -> str:
        """Return the name to give to ``spark.read.format``."""
        return "segmentlog"

    @raises_without_frames
    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, or those that the options ask for."""
        from spark_segmentlog import options, schema  # noqa: PLC0415

        # Spark does not say here whether it is going to read a batch or a stream.
        parsed = options.read_options_of_any_query(self.options)
        # The reader plans the same again, and says what there is to say.
        return schema.source_schema(parsed, schema.planned_formats(parsed, is_quiet=True))

    @raises_without_frames
    def reader(self, schema: StructType) -> SegmentLogReader | ViewReader:
        """Create the reader of a batch query.

        Args:
            schema: The columns to read, in order: those of `schema`, or the user's own schema,
                in which case `schema` was not called.
        """
        from spark_segmentlog import options, reader  # noqa: PLC0415
        from spark_segmentlog import schema as schemas  # noqa: PLC0415
        from storage_core.options import RECORDS  # noqa: PLC0415

        read_options, formats = schemas.typed_options(schema, options.read_options(self.options))
        columns = schemas.projected_columns(schema, read_options, formats)
        # Logged here, because this is called once per plan whether or not `schema` was.
        for notice in options.read_notices(self.options, read_options):
            _logger.warning(notice)
        if read_options.view != RECORDS:
            return reader.ViewReader(read_options, columns)
        if read_options.filter_pushdown and reader.is_pushdown_offered():
            return reader.PushdownReader(read_options, columns, formats)
        return reader.SegmentLogReader(read_options, columns, formats)

    @raises_without_frames
    def writer(self, schema: StructType, overwrite: bool) -> SegmentLogWriter:
        """Create the writer of a batch, after all checks that need no rows.

        Args:
            schema: The columns of the DataFrame.
            overwrite: Whether its rows replace the existing ones.
        """
        from spark_segmentlog import write_options, write_plan, writer  # noqa: PLC0415

        parsed = write_options.write_options(self.options)
        from storage_core.filesystem import FileSystem  # noqa: PLC0415

        plan = write_plan.plan_write(FileSystem(), schema, parsed, is_overwrite=overwrite)
        ignored = write_options.ignored_write_options(self.options)
        if ignored:
            _logger.warning(
                "segmentlog writes files, in one batch: ignored %s, which concern brokers, streams, catalogs or reads.",
                ", ".join(ignored),
            )
        for name, like in plan.columns.look_alikes:
            _logger.warning(
                "segmentlog left out the column '%s' of the DataFrame, which looks like '%s'. Rename it if it is meant "
                "to be written, or drop it.",
                name,
                like,
            )
        return writer.SegmentLogWriter(plan)

    def streamReader(self, schema: StructType) -> SegmentLogStreamReader | RefusedStreamReader:  # noqa: N802
        """Create a reader of a streaming query.

        Args:
            schema: As for `reader`.
        """
        from spark_segmentlog import options, stream_reader  # noqa: PLC0415
        from spark_segmentlog import schema as schemas  # noqa: PLC0415

        try:
            stream_options = options.stream_options(self.options)
            read_options, formats = schemas.typed_options(schema, stream_options.read)
            columns = schemas.projected_columns(schema, read_options, formats)
        except SegmentLogError as error:
            return stream_reader.RefusedStreamReader(error)
        notices = options.read_notices(self.options, read_options, is_stream=True)
        stream_options = dataclasses.replace(stream_options, read=read_options)
        return stream_reader.SegmentLogStreamReader(stream_options, columns, notices, formats)

    @raises_without_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> SegmentLogStreamWriter:  # noqa: N802
        """Create a writer of a micro-batch: one for its tasks, and one for its commit.

        Args:
            schema: The columns of the DataFrame.
            overwrite: Whether the query has the output mode complete, which is not supported.
        """
        from spark_segmentlog import stream_writer, write_options, write_plan  # noqa: PLC0415

        if overwrite:
            raise OptionError(
                "The output mode complete writes all rows again in each batch, and a log only grows. Use "
                "writeStream.foreachBatch with the batch writer, mode overwrite, and the options txnAppId and "
                "txnVersion (the number of the batch)."
            )
        parsed, app_id = write_options.stream_write_options(self.options)
        from storage_core.filesystem import FileSystem  # noqa: PLC0415

        plan = write_plan.plan_write(FileSystem(), schema, parsed, is_overwrite=False)
        ignored = write_options.ignored_write_options(self.options, is_stream=True)
        return stream_writer.SegmentLogStreamWriter(plan, app_id, ignored)
