"""Files of a log directory, and what must not be opened in their place."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from storage_core.filesystem import FileSystem


@pytest.fixture
def filesystem():
    return FileSystem()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"0123456789")
    return str(path)


def make_link(path, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    os.symlink(target, path)


def make_socket(path, tmp_path):
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    # The path of a socket may be no longer than some hundred bytes.
    os.chdir(tmp_path)
    try:
        server.bind(os.path.basename(path))
    finally:
        os.chdir(here)
        server.close()


@pytest.fixture(
    params=[
        lambda path, _: os.mkfifo(path),
        lambda path, _: os.mkdir(path),
        make_link,
        lambda path, _: os.symlink("nowhere", path),
        make_socket,
    ],
    ids=["FIFO", "directory", "link", "dangling link", "socket"],
)
def irregular_path(request, tmp_path):
    """Return the path of something other than a regular file, with the name of a log file."""
    path = str(tmp_path / "00000000000000000000.log")
    request.param(path, tmp_path)
    return path
