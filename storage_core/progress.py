"""How much of a long read is done: shown, or told to a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console


Progress: TypeAlias = bool | Callable[[int], None]
"""True to show it; or takes how many bytes were done since its last call."""


@contextlib.contextmanager
def advancing(
    progress: Progress, total_bytes: int | None, description: str = "reading", console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Show progress with rate and time left while the block runs, if asked for: on standard error, or another console.

    Yields:
        A function that takes how many bytes were done since its last call.
    """
    if callable(progress) or not progress:
        yield progress if callable(progress) else lambda _: None
        return
    try:
        import rich.progress as shown  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415
    except ImportError:
        raise OptionError("progress=True needs rich: install it, or pass a function.") from None
    columns = (
        shown.TextColumn("{task.description}", markup=False),
        shown.BarColumn(),
        shown.DownloadColumn(binary_units=True),
        shown.TransferSpeedColumn(),
        shown.TimeRemainingColumn(),
    )
    with shown.Progress(*columns, console=console or Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total_bytes)
        yield lambda count: bar.advance(task, count)
