"""Runs a function in a fresh process that has one core, and brings back what it returns."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def run_on_one_core(
    function: Callable[_Parameters, _Result], *arguments: _Parameters.args, **options: _Parameters.kwargs
) -> _Result:
    """Call a function of a module in a new process, bound to one core before anything starts a thread."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_bind_to_one_core) as pool:
        return pool.submit(function, *arguments, **options).result()


def _bind_to_one_core() -> None:
    # macOS cannot bind a process; there the figures are those of a process that uses one core at a time.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
