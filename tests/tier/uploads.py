"""Segments as the plugins of tiered storage upload them, written from their formats.

Independent of what reads them: its own zstd, its own RSA-OAEP, its own chunk index.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import secrets

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.scan.conftest import batch, record

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
TIME_MS = 1_700_000_000_000
KINDS = ("plain", "zstd", "aes", "zstd-aes")
PARTS = {
    "offset": "index",
    "timestamp": "timeindex",
    "producerSnapshot": "snapshot",
    "leaderEpoch": "leader_epoch_checkpoint",
    "transaction": "txnindex",
}


@dataclasses.dataclass(frozen=True)
class Upload:
    """A segment. `files` has its log and its indexes by suffix; `epochs` are those of the log up to its end."""

    base_offset: int
    end_offset: int
    files: dict[str, bytes]
    epochs: tuple[tuple[int, int], ...] = ((0, 0),)
    uploaded_ms: int = 1_700_000_000_000
    segment_id: str = ""

    @property
    def stem(self):
        number = base64.urlsafe_b64encode(hashlib.md5(repr(self).encode()).digest())[:22].decode()
        return f"{self.base_offset:020d}-{self.segment_id or number}"

    @property
    def max_timestamp_ms(self):
        """The last entry of the time index, or what `upload` makes."""
        entry = self.files["timeindex"][-12:-4]
        return int.from_bytes(entry, "big") if entry else TIME_MS + self.end_offset - 1

    @property
    def own_epochs(self):
        """The epochs of the segment's offsets: that of the first one begins with the segment."""
        before = [epoch for epoch, start in self.epochs if start <= self.base_offset][-1:]
        inside = {epoch: start for epoch, start in self.epochs if self.base_offset < start < self.end_offset}
        return {**dict.fromkeys(before, self.base_offset), **inside}


def upload(start, end, *, epochs=((0, 0),), value=b"v", epoch=0, size=10, **others):
    """Return a segment of batches that say who wrote them, each record a millisecond later, without index entries."""
    log = b"".join(
        batch(
            base,
            [
                record(delta, delta, None, b"%s%d" % (value, base + delta))
                for delta in range(min(size, end - base))
            ],
            last_offset_delta=min(size, end - base) - 1,
            timestamps_ms=(TIME_MS + base, TIME_MS + min(base + size, end) - 1),
            leader_epoch=epoch,
        )
        for base in range(start, end, size)
    )
    return Upload(start, end, {"log": log, "index": b"", "timeindex": b""}, tuple(epochs), **others)


def uploads_of(partition_path, end_offset):
    """Yield the segments of a partition's directory. An active segment without records is not uploaded."""
    epochs = partition_path / "leader-epoch-checkpoint"
    lines = epochs.read_text().splitlines()[2:] if epochs.exists() else ["0 0"]
    bases = sorted(int(path.stem) for path in partition_path.glob("*.log"))
    for base, end in zip(bases, [*bases[1:], end_offset], strict=True):
        files = {
            suffix: (partition_path / f"{number:020d}.{suffix}").read_bytes()
            for suffix, number in (
                ("log", base),
                ("index", base),
                ("timeindex", base),
                ("txnindex", base),
                ("snapshot", end),
            )
            if (partition_path / f"{number:020d}.{suffix}").exists()
        }
        if files["log"]:
            epochs = [tuple(map(int, line.split())) for line in lines]
            yield Upload(base, end, files, tuple(each for each in epochs if each[1] < end))


def put_local(root, each, *, topic="orders", partition=0, topic_id=TOPIC_ID):
    """Write a segment as Kafka's LocalTieredStorage does."""
    directory = root / f"{topic}-{partition}-{topic_id}"
    directory.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{epoch} {start}\n" for epoch, start in each.epochs)
    files = {**each.files, "leader_epoch_checkpoint": f"0\n{len(each.epochs)}\n{lines}".encode()}
    for suffix, data in files.items():
        (directory / f"{each.stem}.{suffix}").write_bytes(data)
    return directory / f"{each.stem}.log"


def put_aiven(
    root,
    each,
    kind="plain",
    *,
    topic="orders",
    partition=0,
    topic_id=TOPIC_ID,
    prefix="",
    chunk_bytes=1000,
    public_key=None,
    key_id="key1",
    change=lambda _: None,
):
    """Write a segment as Aiven's plugin does; `change` may spoil the manifest."""
    directory = root / f"{prefix}{topic}-{topic_id}" / str(partition)
    directory.mkdir(parents=True, exist_ok=True)
    data_key, aad = secrets.token_bytes(32), secrets.token_bytes(32)

    def encrypt(data):
        if "aes" not in kind or not data:
            return data
        vector = os.urandom(12)
        return vector + AESGCM(data_key).encrypt(vector, data, aad)

    log = each.files["log"]
    chunks = [log[at : at + chunk_bytes] for at in range(0, len(log), chunk_bytes)]
    if "zstd" in kind:
        chunks = [zstandard.ZstdCompressor().compress(chunk) for chunk in chunks]
    chunks = [encrypt(chunk) for chunk in chunks]
    lines = "".join(f"{epoch} {start}\n" for epoch, start in each.epochs)
    files = {**each.files, "leader_epoch_checkpoint": f"0\n{len(each.epochs)}\n{lines}".encode()}
    indexes, places = b"", {}
    for name, suffix in PARTS.items():
        data = encrypt(files[suffix]) if suffix in files else None
        places[name] = None if data is None else {"position": len(indexes), "size": len(data)}
        indexes += data or b""
    manifest = {
        "version": "1",
        "chunkIndex": {"originalChunkSize": chunk_bytes, "originalFileSize": len(log)}
        | chunk_index([len(chunk) for chunk in chunks], is_fixed="zstd" not in kind),
        "segmentIndexes": places,
        "compression": "zstd" in kind,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": topic_id,
                    "topicPartition": {"topic": topic, "partition": partition},
                },
                "id": each.stem[21:],
            },
            "startOffset": each.base_offset,
            "endOffset": each.end_offset - 1,
            "maxTimestampMs": each.max_timestamp_ms,
            "brokerId": 1,
            "eventTimestampMs": each.uploaded_ms,
            "segmentLeaderEpochs": {str(epoch): start for epoch, start in each.own_epochs.items()},
            "txnIdxEmpty": "txnindex" not in files,
        },
    }
    if "aes" in kind:
        wrapped = base64.b64encode(wrap(public_key, data_key)).decode()
        manifest["encryption"] = {"dataKey": f"{key_id}:{wrapped}", "aad": base64.b64encode(aad).decode()}
    change(manifest)
    (directory / f"{each.stem}.log").write_bytes(b"".join(chunks))
    (directory / f"{each.stem}.indexes").write_bytes(indexes)
    (directory / f"{each.stem}.rsm-manifest").write_text(json.dumps(manifest))
    return directory / f"{each.stem}.log"


def chunk_index(sizes, *, is_fixed):
    """Return the part of a chunk index that tells the lengths of transformed chunks."""
    if is_fixed:
        return {
            "type": "fixed",
            "transformedChunkSize": sizes[0] if sizes else 0,
            "finalTransformedChunkSize": sizes[-1] if sizes else 0,
        }
    frame = zstandard.ZstdCompressor().compress(chunk_sizes(sizes))
    return {"type": "variable", "transformedChunks": base64.b64encode(frame).decode()}


def chunk_sizes(sizes):
    """Return the layout of a variable chunk index."""
    data = len(sizes).to_bytes(4, "big")
    if len(sizes) > 1:
        base = min(sizes[:-1])
        width = max(1, -(-(max(sizes[:-1]) - base).bit_length() // 8))
        data += base.to_bytes(4, "big") + bytes([width])
        data += b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return data + b"".join(size.to_bytes(4, "big") for size in sizes[-1:])


def wrap(public_key, data_key):
    """RSA-OAEP with SHA3-512 (RFC 8017, 7.1.1)."""
    numbers = public_key.public_numbers()
    size = (numbers.n.bit_length() + 7) // 8
    block = hashlib.sha3_512().digest() + bytes(size - len(data_key) - 130) + b"\x01" + data_key
    seed = secrets.token_bytes(64)
    masked_block = _xor(block, _mgf(seed, len(block)))
    masked_seed = _xor(seed, _mgf(masked_block, 64))
    number = int.from_bytes(b"\0" + masked_seed + masked_block, "big")
    return pow(number, numbers.e, numbers.n).to_bytes(size, "big")


def _mgf(seed, size):
    data = b"".join(
        hashlib.sha3_512(seed + number.to_bytes(4, "big")).digest() for number in range(size // 64 + 1)
    )
    return data[:size]


def _xor(first, second):
    return bytes(one ^ two for one, two in zip(first, second, strict=True))
