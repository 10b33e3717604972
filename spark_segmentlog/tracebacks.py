"""Spark prints the whole traceback of a Python data source above the message.

The errors of this package explain themselves, so their tracebacks are dropped and Spark prints a few lines. Any other
exception is a bug, and keeps its traceback; but for those of a worker whose last words Spark does not read.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from storage_core.errors import SegmentLogError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_logger = logging.getLogger(__name__)


def without_frames(error: SegmentLogError) -> SegmentLogError:
    """Drop the traceback of an error; it goes to the log at level DEBUG."""
    _logger.debug("Traceback that Spark will not show: %s", error, exc_info=error)
    return error.with_traceback(None)


def raises_without_frames(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a method that Spark calls drop the frames of this package's errors."""

    @functools.wraps(method)
    def called_by_spark(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except SegmentLogError as error:
            raise without_frames(error) from None

    return called_by_spark


def end_unheard() -> None:
    """Let this process end without a word where Spark stops reading, if it is a worker of Spark's daemon.

    Spark closes the socket of a task that a LIMIT ends early, of a plan that fails, and at times of a look-up of the data
    source. Then the worker's last flush fails, and the daemon (``pyspark/daemon.py``) prints why before it ends the worker.
    """
    if main_module() == "pyspark.daemon" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, _end_after_task)


def _end_after_task(_signal: int, frame: FrameType | None) -> None:
    # While a task runs, frames of PySpark are on the stack, and a broken pipe is whatever the task makes of it.
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("pyspark."):
        frame = frame.f_back
    if frame is None:
        os._exit(0)


def main_module() -> str | None:
    """Return the name of the module that this process runs (``python -m``); None if it runs something else."""
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if specification is None else specification.name
