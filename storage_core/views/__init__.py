"""What a log directory holds beside its records, as tables."""

from typing import TYPE_CHECKING

from storage_core.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from storage_core.views.view import (
        VIEW_NAMES,
        View,
        ViewTask,
        count_records,
        find_view,
        plan_view,
        read_batches,
        read_table,
        read_view_task,
        view_schema,
    )

__all__ = [
    "VIEW_NAMES",
    "View",
    "ViewTask",
    "count_records",
    "find_view",
    "plan_view",
    "read_batches",
    "read_table",
    "read_view_task",
    "view_schema",
]

__getattr__, __dir__ = lazy_imports(__name__, "storage_core.views.view")
