"""What a log directory holds, beside its records: views as tables, and typed reports on what is sound and what is not.

Nothing here writes to a directory that it looks at, except what is asked to repair it in place.
"""

from typing import TYPE_CHECKING

from storage_core.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from storage_core.inspect.views import (
        VIEW_NAMES,
        View,
        ViewTask,
        find_view,
        plan_view,
        read_table,
        read_view_task,
        view_schema,
    )

__all__ = [
    "VIEW_NAMES",
    "View",
    "ViewTask",
    "find_view",
    "plan_view",
    "read_table",
    "read_view_task",
    "view_schema",
]

__getattr__, __dir__ = lazy_imports(__name__, "storage_core.inspect.views")
