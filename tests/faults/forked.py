"""Runs work in a forked child of this process."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

_MOST_SECONDS = 300


def in_child(work: Callable[[], Any]) -> Any:
    """Run a function in a forked child and return its result.

    Raises:
        AssertionError: The function raised an unexpected error, or hangs.
    """
    reading, writing = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        # The child must not run the tests' cleanup and report.
        try:
            os.close(reading)
            os.write(writing, pickle.dumps(_outcome(work)))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _answer(reading)
    finally:
        os.close(reading)
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(process_id, 0)


def _outcome(work: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, work()
    except BaseException:  # noqa: BLE001  (told to the parent)
        return False, traceback.format_exc()


def _answer(reading: int) -> Any:
    data = b""
    end = time.monotonic() + _MOST_SECONDS
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(reading, 1 << 16)
        if not piece:
            assert data, "the child ended without an answer"
            is_done, value = pickle.loads(data)
            assert is_done, f"in the child: {value}"
            return value
        data += piece
    raise AssertionError(f"the child had not finished after {_MOST_SECONDS} seconds")
