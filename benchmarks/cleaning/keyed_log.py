"""The log that is cleaned: records of random keys, of which about a tenth stay; its copies; what is left of it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.log_files import describe_log_files
from benchmarks.records import FIRST_TIMESTAMP_MS, KEY_SIZE_BYTES, make_values

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from storage_core import LogConfig

TOPIC = "events"
RECORD_BYTES = 100
SEGMENT_BYTES = 64 << 20

_BATCH_SIZE_BYTES = 16_384
_RECORDS_OF_A_KEY = 10
_RECORDS_AT_ONCE = 500_000
_SEED = 20250601
# What a broker keeps of a partition that is replaced: it holds the topic's id.
_PARTITION_METADATA = "partition.metadata"


@dataclass(frozen=True, slots=True)
class Survivors:
    """What a log holds: how many records, and one digest of all their offsets, keys and values."""

    records: int
    digest: str


def config_of(compression: str) -> LogConfig:
    """Return the configuration of the log."""
    from storage_core import LogConfig

    return LogConfig(
        cleanup_policy=("compact",),
        segment_bytes=SEGMENT_BYTES,
        batch_size=_BATCH_SIZE_BYTES,
        compression_type=compression,
    )


def make_log(root: Path, size_bytes: int, compression: str) -> int:
    """Make a log directory with one log of this volume of keys and values; return the number of records.

    One more record is in the active segment, which is never cleaned.
    """
    from storage_core import LogDirectory

    count = size_bytes // RECORD_BYTES
    with LogDirectory.open(root, config=config_of(compression)) as logs:
        log = logs.create(TOPIC)
        for records in _records(count):
            log.append(records)
        log.roll()
        log.append(next(_records(1)))
    return count


def copy_partition(source: Path, target: Path) -> None:
    """Replace the content of a directory with the files of a partition.

    Closed segments are never written to, only renamed and deleted: a second name for them is a copy.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.name != _PARTITION_METADATA:
            path.unlink()
    names = sorted(path.name for path in source.iterdir())
    active = max(name for name in names if name.endswith(".log"))
    for name in names:
        if name.endswith(".log") and name != active:
            os.link(source / name, target / name)
        elif name != _PARTITION_METADATA or not (target / name).exists():
            shutil.copy2(source / name, target / name)


def survivors_of(root: Path, topic: str) -> Survivors:
    """Return what is left in the first partition of a topic. The headers on disk are counted besides.

    Raises:
        RuntimeError: The headers promise another number of records.
    """
    from storage_core import LogDirectory

    # Batches end elsewhere in each log, so every column has a digest that does not see where.
    digests = [hashlib.sha256() for _ in range(5)]
    count = 0
    with LogDirectory.open(root, read_only=True) as logs:
        for batch in logs.get(topic).read():
            count += batch.num_rows
            digests[0].update(batch["offset"].to_numpy(zero_copy_only=False).tobytes())
            for column, (lengths, contents) in zip(
                ("key", "value"), (digests[1:3], digests[3:5]), strict=True
            ):
                _update(batch[column], lengths, contents)
    written = describe_log_files(sorted((root / f"{topic}-0").glob("*.log")))["records"]
    if written != count:
        raise RuntimeError(
            f"Expected the {written} records that the headers in {root} promise, found {count}."
        )
    together = hashlib.sha256(b"".join(digest.digest() for digest in digests))
    return Survivors(count, together.hexdigest())


def _update(column: pa.Array, lengths: hashlib._Hash, contents: hashlib._Hash) -> None:
    import pyarrow.compute as pc

    sizes = pc.fill_null(pc.binary_length(column), -1)
    lengths.update(sizes.cast("int64").to_numpy(zero_copy_only=False).tobytes())
    contents.update(b"".join(column.drop_null().to_pylist()))


def _records(count: int) -> Iterator[pa.Table]:
    import numpy as np
    import pyarrow as pa

    chance = np.random.default_rng(_SEED)
    pool = pa.array(make_values(RECORD_BYTES - KEY_SIZE_BYTES, RECORD_BYTES - KEY_SIZE_BYTES), pa.binary())
    keys = max(count // _RECORDS_OF_A_KEY, 1)
    for start in range(0, count, _RECORDS_AT_ONCE):
        numbers = np.arange(start, min(start + _RECORDS_AT_ONCE, count))
        yield pa.table(
            {
                "key": _keys(chance.integers(0, keys, len(numbers))),
                "value": pool.take(pa.array(numbers % len(pool))),
                "timestamp": pa.array(FIRST_TIMESTAMP_MS + numbers),
            }
        )


def _keys(numbers: np.ndarray) -> pa.Array:
    """Return the numbers as ten digits each, in no order."""
    import numpy as np
    import pyarrow as pa

    scattered = numbers * 2_654_435_761 % 10**KEY_SIZE_BYTES
    digits = np.empty((len(numbers), KEY_SIZE_BYTES), dtype=np.uint8)
    for place in range(KEY_SIZE_BYTES - 1, -1, -1):
        scattered, digits[:, place] = np.divmod(scattered, 10)
    offsets = np.arange(0, digits.size + 1, KEY_SIZE_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer((digits + ord("0")).tobytes())]
    )
