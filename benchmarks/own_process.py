"""Runs a function in a fresh process and watches it from outside while it runs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from benchmarks.memory_sampling import ProcessWatch

_Result = TypeVar("_Result")


def run_watched(
    measures: Mapping[str, Callable[[int], int]], function: Callable[..., _Result], *arguments: object
) -> tuple[_Result, ProcessWatch]:
    """Call a function of a module in a new process, which may use every core; its result, and what was seen of it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        process_id = pool.submit(os.getpid).result()
        with ProcessWatch(lambda: [process_id], measures) as watch:
            result = pool.submit(function, *arguments).result()
    return result, watch
