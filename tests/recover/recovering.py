"""Damaged copies of a partition, and what another program makes of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import storage_core
from storage_core import LogDirectory
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.recover.recover import recover
from storage_core.recover.recover_in_place import recover_in_place
from tests.interop.damaged_logs import DAMAGED_LOGS, Checkpointed
from tests.interop.placing import read_checkpoint

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "data"
# Five segments, which hold transactions too.
TOPIC, PARTITION = "orders", 0
PARTITION_DIRECTORY = f"{TOPIC}-{PARTITION}"


def run(source, target, policy="kafka", **arguments):
    """Recover into a new directory."""
    options = options_of([str(source)], arguments.pop("options", {}))
    return recover(FileSystem(), options, None if target is None else str(target), policy=policy, **arguments)


def run_in_place(source, aside, policy="kafka"):
    return recover_in_place(FileSystem(), options_of([str(source)], {}), str(aside), policy=policy)


def damaged_root(path, way):
    """Return a root with one damaged partition, as after a kill; `way` is a key of `DAMAGED_LOGS`."""
    path.mkdir()
    shutil.copytree(EXAMPLES / PARTITION_DIRECTORY, path / PARTITION_DIRECTORY)
    shutil.copy(EXAMPLES / "meta.properties", path)
    checkpointed = DAMAGED_LOGS[way](path / PARTITION_DIRECTORY) or Checkpointed()
    if checkpointed.recovery_point is not None:
        write_checkpoint(path / "recovery-point-offset-checkpoint", checkpointed.recovery_point)
    if checkpointed.log_start is not None:
        write_checkpoint(path / "log-start-offset-checkpoint", checkpointed.log_start)
    return path


def write_checkpoint(path, offset):
    path.write_text(f"0\n1\n{TOPIC} {PARTITION} {offset}\n")


def recovered_by_open(source, path):
    """Return a copy of a root, recovered by opening it as a broker would."""
    shutil.copytree(source, path)
    with LogDirectory.open(path, recovery="kafka", broker_directory=True):
        pass
    return path


def rows(root, **options):
    options = {"mode": "FAILFAST", "include_headers": True, **options}
    return storage_core.read_table(str(root), **options)


def logs_of(root):
    """Return the content of every log file that is not empty."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*.log"))
        if path.stat().st_size
    }


def ends_of(root):
    """Log start and log end of each partition."""
    with LogDirectory.open(root, read_only=True) as logs:
        return {(log.topic, log.partition): (log.log_start_offset, log.log_end_offset) for log in logs.logs()}


def checkpoints_of(root):
    names = (
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    )
    return {name: read_checkpoint(root / name) for name in names}


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
