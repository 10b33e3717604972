"""Log directories that hold a copy of one partition each, written from the format."""

from __future__ import annotations

import storage_core
from tests.scan.conftest import batch, record

META = "#\nnode.id=1\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
BATCH_RECORDS = 10


def batches(start, end, *, value=b"v", epoch=0, size=BATCH_RECORDS):
    """Batches of ten records with the offsets of a range, by base offset."""
    return {
        base: batch(
            base,
            [
                record(delta, 0, None, b"%s%d" % (value, base + delta))
                for delta in range(min(size, end - base))
            ],
            last_offset_delta=min(size, end - base) - 1,
            leader_epoch=epoch,
        )
        for base in range(start, end, size)
    }


def checkpoint(root, name, offset):
    (root / f"{name}-offset-checkpoint").write_text(f"0\n1\norders 0 {offset}\n")


def write_copy(root, segments, *, epochs=((0, 0),), topic_id=TOPIC_ID, start=None, end=None):
    """Write orders-0 of a log directory that was shut down cleanly.

    Args:
        root: The log directory.
        segments: By base offset, the batches of a segment, as `batches` makes them.
        epochs: Lines of the leader epoch checkpoint.
        topic_id: None for no file.
        start: The checkpointed log start offset.
        end: The checkpointed high watermark and recovery point.
    """
    partition = root / "orders-0"
    partition.mkdir(parents=True)
    for base_offset, content in segments.items():
        (partition / f"{base_offset:020d}.log").write_bytes(b"".join(content.values()))
    lines = "".join(f"{epoch} {offset}\n" for epoch, offset in epochs)
    (partition / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs)}\n{lines}")
    if topic_id is not None:
        (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    (root / "meta.properties").write_text(META)
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    if start is not None:
        checkpoint(root, "log-start", start)
    if end is not None:
        checkpoint(root, "replication", end)
        checkpoint(root, "recovery-point", end)
    return partition


def offsets_of(*paths, **options):
    """Return the offsets that a read of log directories returns."""
    return storage_core.read_table(*map(str, paths), **options)["offset"].to_pylist()
