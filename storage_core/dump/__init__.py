"""What ``kafka-dump-log.sh`` 4.1 prints of files, byte for byte, and the same records as JSON."""

from __future__ import annotations

from storage_core.dump.dump_log import LogDump
from storage_core.dump.log_text import DumpOptions, RecordFormat

__all__ = ["DumpOptions", "LogDump", "RecordFormat"]
