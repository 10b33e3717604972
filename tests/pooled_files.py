"""Files that share few descriptors, for tests."""

from __future__ import annotations

import os

__all__ = ["open_count", "open_files"]


def open_count(directory):
    """How many descriptors this process has for files below a directory."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(name.startswith(f"{directory}/") for name in names)


def open_files(filesystem, directory, count):
    return [filesystem.open_pooled(f"{directory}/{number}", create=True) for number in range(count)]
