"""Files that share few descriptors, for tests."""

from __future__ import annotations


def open_files(filesystem, directory, count):
    return [filesystem.open_pooled(f"{directory}/{number}", create=True) for number in range(count)]
