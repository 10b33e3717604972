"""What tasks need on the machines where they run: this package, its dependencies, and the log directory at its path.

Spark sends readers and writers pickled. They are restored by a function that is pickled with its code, so it can say what
is missing on a worker without this package.
"""

from __future__ import annotations

import os
import pickle
import socket
from typing import TYPE_CHECKING, Any

from storage_core.errors import LogDirectoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.filesystem import FileSystem


def reduce_for_workers(sent: object) -> tuple[Callable[..., object], tuple[Any, ...]]:
    """What ``__reduce__`` of a reader or writer returns."""
    # The state in bytes, because what it holds is restored before the function is called.
    return _restoring_function(), (type(sent).__module__, type(sent).__qualname__, pickle.dumps(vars(sent)))


def _restoring_function() -> Callable[..., object]:
    # cloudpickle sends functions within functions with their code, and others by their module's name. So it uses nothing
    # of this module.
    def restore(module: str, name: str, state: bytes) -> object:
        import importlib  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        try:
            found = getattr(importlib.import_module(module), name)
            restored = found.__new__(found)
            vars(restored).update(pickle.loads(state))  # noqa: S301  (what Spark has unpickled)
        except ImportError as error:
            raise ImportError(
                f"A worker on {socket.gethostname()} cannot import segmentlog: {error}. Its Python is {sys.executable}. "
                "Install spark-segmentlog in it, or send a packed environment (--archives) or segmentlog's zip "
                "(--py-files; numpy, pyarrow and crc32c must be installed). docs/deploy.md has the commands."
            ) from None
        return restored

    return restore


def require_directories(filesystem: FileSystem, paths: set[str], planned_on: str) -> None:
    """Check in a task that directories exist which existed where the job was planned.

    Args:
        filesystem: Of the task.
        paths: The directories.
        planned_on: The host where the job was planned. On that host, nothing is checked.

    Raises:
        LogDirectoryError: One of them is missing here.
    """
    host = socket.gethostname()
    if host == planned_on:
        return
    for path in sorted(paths):
        if filesystem.status(path, follow_symlinks=True) is None:
            raise LogDirectoryError(
                f"Expected this directory on {host}, as on {planned_on}, where the job was planned; found none. "
                "Executors on several hosts need storage that they share, mounted at the same path everywhere. "
                "Otherwise run the job on the host that has the disks: master local[*].",
                path=os.fspath(path),
            )
