"""The one read path: options → plan → spans → batches."""

from storage_core.scan.explain import ScanExplanation, explain, read_table
from storage_core.scan.options import ReadOptions, parse_read_options
from storage_core.scan.plan import ScanPlan, plan_scan
from storage_core.scan.predicate import Predicate
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
    "read_table",
    "read_task",
    "record_schema",
]
