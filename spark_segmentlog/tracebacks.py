"""Spark prints the whole traceback of a Python data source above the message.

The errors of this package explain themselves, so their tracebacks are dropped and Spark prints a few lines. Any other
exception is a bug, and keeps its traceback.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from storage_core.errors import SegmentLogError

if TYPE_CHECKING:
    from collections.abc import Callable

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
