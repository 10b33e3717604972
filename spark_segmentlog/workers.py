"""The processes in which Spark runs Python, and what they need: this package, its dependencies, the log directory.

Spark sends readers and writers pickled. They are restored by a function that is pickled with its code, so it can say what
is missing on a worker without this package.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import pickle
import resource
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from storage_core.errors import LogDirectoryError, OptionError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from storage_core.filesystem import ReadableFileSystem


_SHARED_STORAGE: Final = (
    "Executors on several hosts need shared storage, mounted at the same path everywhere."
)

FREEZE_VARIABLE: Final = "SEGMENTLOG_GC_FREEZE"
"""Environment variable that is 0 where workers shall not freeze what they have loaded."""
# glibc's M_ARENA_MAX. Each arena, one for each thread, reserves 64 MiB of addresses.
_ARENA_MAX: Final = -8
_MEMORY_SETTING: Final = "spark.executor.pyspark.memory"


def end_unheard() -> None:
    """End this process silently when Spark stops reading, if it is a worker of Spark's daemon.

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


def address_space_bytes() -> int | None:
    """Return the size of the address space that Spark allows this worker; None without a limit."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes


@contextlib.contextmanager
def explained_memory_limit() -> Iterator[None]:
    """Make a task reserve few addresses where Spark limits them, and say so if they do not suffice.

    Raises:
        OptionError: They do not.
    """
    limit_bytes = address_space_bytes()
    if limit_bytes is not None:
        import pyarrow as pa  # noqa: PLC0415  (each look-up of the source imports this module)

        # Arrow's own pool reserves up to a gigabyte.
        pa.set_memory_pool(pa.system_memory_pool())
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_ARENA_MAX, 1)
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_explained = isinstance(error, MemoryError) or "start new thread" in str(error)
        if limit_bytes is None or not is_explained:
            raise
        raise OptionError(
            f"Expected a larger limit from {_MEMORY_SETTING}, found {limit_bytes >> 20} MiB of addresses for this task, in "
            f"which there was no room ({str(error) or type(error).__name__}). It counts addresses, of which Python, pyarrow "
            "and pandas take 400 MiB before the first row: set it to 1g for each task that an executor runs at a time, or "
            "more for records above 1 MB; or lower spark.sql.execution.arrow.maxRecordsPerBatch."
        ) from error


class SentToWorkers:
    """Base of the readers and writers, which Spark pickles on the host where it plans the job."""

    def __init__(self) -> None:
        self._planned_on = socket.gethostname()

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        # The state is pickled by itself: pickle restores arguments, and so imports this package, before it calls the
        # function.
        kind = type(self)
        return _restoring_function(), (kind.__module__, kind.__qualname__, pickle.dumps(vars(self)))


def _restoring_function() -> Callable[..., object]:
    # cloudpickle sends the code of a nested function, but only the name of a module's function. So this one is nested,
    # and uses nothing of this module.
    def restore(module: str, name: str, state: bytes) -> object:
        import gc  # noqa: PLC0415
        import importlib  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        # Imports leave no garbage, and looking for some in them takes 40 ms.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            found = getattr(importlib.import_module(module), name)
            restored = found.__new__(found)
            vars(restored).update(pickle.loads(state))  # noqa: S301  (what Spark has unpickled)
            importlib.import_module("spark_segmentlog.workers").prepare_once()
        except ImportError as error:
            raise ImportError(
                f"A worker on {socket.gethostname()} cannot import segmentlog: {error}. Its Python is {sys.executable}. "
                "Install spark-segmentlog in it, or send a packed environment (--archives) or segmentlog's zip "
                "(--py-files; numpy, pyarrow and crc32c must be installed). docs/deploy.md has the commands."
            ) from None
        finally:
            if is_collecting:
                gc.enable()
        return restored

    return restore


@functools.cache
def prepare_once() -> None:
    """Prepare this process, once, for all the tasks that it runs.

    What is loaded leaves the garbage collector's sight. Spark's worker daemon (``pyspark/daemon.py``) collects after each
    task, plan and commit, which takes 20 ms with numpy, pyarrow and pandas loaded. Frozen objects are still freed when
    nothing refers to them; cycles among them are not.
    """
    if os.environ.get(FREEZE_VARIABLE, "1") != "0":
        gc.freeze()


def require_directories(
    filesystem: ReadableFileSystem, paths: set[str], planned_on: str, *, may_be_empty: bool = False
) -> None:
    """Check in a task on another host that directories exist which existed where the job was planned.

    A mount point without its volume is empty.

    Raises:
        LogDirectoryError: One of them is missing here, or empty.
    """
    host = socket.gethostname()
    if host == planned_on:
        return
    for path in sorted(path for path in paths if not filesystem.traits_of(path).is_shared):
        found = _what_is_missing(filesystem, path, may_be_empty=may_be_empty)
        if found is not None:
            raise LogDirectoryError(
                f"Expected this directory on {host}, as on {planned_on}, where the job was planned; found {found}. "
                f"{_SHARED_STORAGE} Otherwise run the job on the host that has the disks: master local[*].",
                path=path,
            )


def _what_is_missing(filesystem: ReadableFileSystem, path: str, *, may_be_empty: bool) -> str | None:
    if filesystem.status(path, follow_symlinks=True) is None:
        return "none"
    with contextlib.suppress(UnreadableError):
        # A user may be allowed to traverse a directory, but not to list it.
        if not may_be_empty and not filesystem.list_directory(path):
            return "an empty one"
    return None


def require_shared_storage(filesystem: ReadableFileSystem, staged: Mapping[str, str]) -> None:
    """Check on the driver that the manifests that tasks staged on other hosts are here, given the host of each path.

    Raises:
        LogDirectoryError: One of them is missing here.
    """
    here = socket.gethostname()
    for path, host in staged.items():
        if host != here and filesystem.status(path) is None:
            raise LogDirectoryError(
                f"Expected the rows that a task staged on {host}, but {here} does not see them: the directory is local "
                f"to each host. {_SHARED_STORAGE}",
                path=path,
            )
