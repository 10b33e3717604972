"""The real file system, which tells of each call before it happens, in the thread that makes it.

Whatever else a test wants to happen just then, in this thread or in another one, it does there::

    filesystem = ObservedFileSystem()
    filesystem.observe = lambda call: ...
"""

from __future__ import annotations

from collections.abc import Callable

from storage_core.filesystem import FileSystem, OpenFile, WritableFile

__all__ = ["ObservedFileSystem"]

_OF_THE_FILE_SYSTEM = (
    "list_directory",
    "status",
    "open",
    "open_for_writing",
    "rename",
    "link",
    "delete",
    "make_directory",
    "delete_directory",
    "set_modified_ms",
    "flush_directory",
)


class ObservedFileSystem(FileSystem):
    """Attributes:
    observe: Told of each call, as text, before it happens.
    """

    def __init__(self, observe: Callable[[str], None] | None = None, *, max_open_files: int = 512) -> None:
        super().__init__(max_open_files=max_open_files)
        self.observe = observe

    def tell(self, name: str, path: str) -> None:
        if self.observe is not None:
            self.observe(f"{name} {path}")


def _observed(name: str):
    real = getattr(FileSystem, name)

    def call(self: ObservedFileSystem, path: str, *arguments, **options):
        self.tell(name, path)
        found = real(self, path, *arguments, **options)
        if isinstance(found, OpenFile):
            found.__class__ = _ObservedOpenFile
            found.filesystem = self
        elif isinstance(found, WritableFile):
            found.__class__ = _ObservedWritableFile
            found.filesystem = self
        return found

    call.__name__ = name
    return call


for _name in _OF_THE_FILE_SYSTEM:
    setattr(ObservedFileSystem, _name, _observed(_name))


class _ObservedOpenFile(OpenFile):
    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        self.filesystem.tell("read", self.path)
        return super().read_at(size_bytes, position_bytes)

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        self.filesystem.tell("read", self.path)
        return super().read_into(buffer, position_bytes)

    def size_bytes(self) -> int:
        self.filesystem.tell("size", self.path)
        return super().size_bytes()


class _ObservedWritableFile(WritableFile):
    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        self.filesystem.tell("read", self.path)
        return super().read_at(size_bytes, position_bytes)

    def size_bytes(self) -> int:
        self.filesystem.tell("size", self.path)
        return super().size_bytes()

    def write_at(self, pieces, position_bytes: int) -> None:
        self.filesystem.tell("write", self.path)
        super().write_at(pieces, position_bytes)

    def truncate(self, size_bytes: int) -> None:
        self.filesystem.tell("truncate", self.path)
        super().truncate(size_bytes)

    def flush(self) -> None:
        self.filesystem.tell("flush", self.path)
        super().flush()
