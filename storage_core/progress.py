"""How much of a long read is done: shown, or told to a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console


Progress: TypeAlias = bool | Callable[[int], None]
"""True to show it; or takes how many bytes were done since its last call."""


class _Planned(Protocol):
    @property
    def planned_bytes(self) -> int: ...


@contextlib.contextmanager
def advancing(progress: Progress, plan: _Planned) -> Iterator[Callable[[int], None]]:
    """Show the progress of a read on standard error, if asked for, while the block runs.

    Yields:
        A function that takes how many bytes were done since its last call.
    """
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda _: None
    else:
        try:
            from rich.console import Console  # noqa: PLC0415
        except ImportError:
            raise OptionError("progress=True needs rich: install it, or pass a function.") from None
        with progress_bar("reading", plan.planned_bytes, Console(stderr=True)) as advance:
            yield advance


@contextlib.contextmanager
def progress_bar(description: str, total: int | None, console: Console) -> Iterator[Callable[[int], None]]:
    """Show progress in bytes, with rate and time left, while the block runs.

    Yields:
        A function that takes how many bytes were done since its last call.
    """
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown_progress:
        task = shown_progress.add_task(description, total=total)
        yield lambda count: shown_progress.advance(task, count)
