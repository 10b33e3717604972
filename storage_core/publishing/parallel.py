"""The same work on many things, several at a time: most of it waits for the disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["in_parallel"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# So many shares a thread: a share that takes long does not hold up the rest.
_SHARES = 8


def in_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item], most_threads: int) -> list[_Result]:
    """The results for all items, in their order. With an error, what was not begun yet is left out.

    Raises:
        BaseException: The first that the work has raised.
    """
    threads = min(most_threads, len(items))
    if threads <= 1:
        return [work(item) for item in items]
    size = -(-len(items) // (threads * _SHARES))
    shares = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(threads, thread_name_prefix="segmentlog-commit") as pool:
        futures = [pool.submit(lambda share: [work(item) for item in share], share) for share in shares]
        try:
            return [result for future in futures for result in future.result()]
        finally:
            for future in futures:
                future.cancel()
