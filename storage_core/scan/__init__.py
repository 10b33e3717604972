"""The one read path: options → plan → spans → batches."""

from typing import TYPE_CHECKING

from storage_core.lazy_imports import lazy_imports
from storage_core.options import ReadOptions, parse_read_options
from storage_core.options.predicate import Predicate

if TYPE_CHECKING:
    from storage_core.scan.explanation import ScanExplanation, explain
    from storage_core.scan.plan import ScanPlan, plan_scan
    from storage_core.scan.read import read_task
    from storage_core.scan.spans import LogSpan, ReadSettings, ScanTask, project, record_schema

__all__ = [
    "LogSpan",
    "Predicate",
    "ReadOptions",
    "ReadSettings",
    "ScanExplanation",
    "ScanPlan",
    "ScanTask",
    "explain",
    "parse_read_options",
    "plan_scan",
    "project",
    "read_task",
    "record_schema",
]

# No module may have the name of a lazy import: importing the module would hide it.
__getattr__, __dir__ = lazy_imports(
    __name__,
    "storage_core.scan.spans",
    "storage_core.scan.plan",
    "storage_core.scan.read",
    "storage_core.scan.explanation",
)
