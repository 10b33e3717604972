"""Partitions of many equal batches, written as bytes: what requests are counted on."""

from __future__ import annotations

import struct

from crc32c import crc32c

from tests.scan.conftest import batch, record

RECORDS = 4
"""In a batch of 4 KiB."""
START_MS = 1_700_000_000_000


def write_partition(root, partition=0, segments=1000, batches=15, start_ms=START_MS):
    """Segments of 62 KB with their indexes, as a broker closes them. A record's timestamp is its offset, after a start."""
    path = root / f"events-{partition}"
    path.mkdir(parents=True)
    records = [record(number, number, None, b"v" * 1000) for number in range(RECORDS)]
    template = bytearray(batch(0, records, last_offset_delta=RECORDS - 1, timestamps_ms=(0, RECORDS - 1)))
    offset = 0
    for _ in range(segments):
        base_offset, log, index, times = offset, bytearray(), bytearray(), bytearray()
        for number in range(batches):
            last_offset, first_ms = offset + RECORDS - 1, start_ms + offset
            template[:8] = struct.pack(">q", offset)
            template[27:43] = struct.pack(">qq", first_ms, first_ms + RECORDS - 1)
            template[17:21] = struct.pack(">I", crc32c(bytes(template[21:])))
            if number:
                index += struct.pack(">ii", last_offset - base_offset, number * len(template))
                times += struct.pack(">qi", first_ms + RECORDS - 1, last_offset - base_offset)
            log += template
            offset += RECORDS
        for suffix, data in (("log", log), ("index", index), ("timeindex", times)):
            (path / f"{base_offset:020d}.{suffix}").write_bytes(data)
    (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (path / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
