"""Key files, a log with everything that rows depend on, and reads through the view."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import storage_core
from storage_core import LogDirectory
from storage_core.filesystem import FileSystem
from storage_core.tier import TierFileSystem
from tests.log.logs import Clock


@pytest.fixture(scope="session")
def private_key():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def public_key(private_key):
    return private_key.public_key()


@pytest.fixture(scope="session")
def key_file(private_key, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "private.pem"
    path.write_bytes(
        private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(path)


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """Return a log directory with several epochs, transactions, headers, tombstones and compressed batches."""
    root = tmp_path_factory.mktemp("source")
    clock = Clock()
    with LogDirectory.open(root, clock=clock) as logs:
        log = logs.get_or_create("orders", 0)
        for segment in range(4):
            clock.time_ms = 1_700_000_000_000 + segment * 1000
            log.append(_records(segment, 0), leader_epoch=segment // 2)
            with log.transaction(1) as transaction:
                transaction.append(_records(segment, 1))
            aborted = log.transaction(2)
            aborted.append(_records(segment, 2))
            log.append(_records(segment, 3))
            aborted.abort()
            log.flush()
            log.roll()
    return root


def _records(segment, number):
    count = 40
    return pa.table(
        {
            "key": [b"k%d" % (each % 7) for each in range(count)],
            "value": [
                None if each % 11 == 0 else b"%d.%d." % (segment, number) + b"v" * (each * 3)
                for each in range(count)
            ],
            "timestamp": [1_700_000_000_000 + segment * 1000 + number * 100 + each for each in range(count)],
            "headers": [
                [("h", b"%d" % each), ("empty", None)] if each % 5 == 0 else None for each in range(count)
            ],
        },
        schema=pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("timestamp", pa.int64()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )


def read(root, key_file=None, **options):
    """Read a tier into a table."""
    return storage_core.read_table(str(root), filesystem=TierFileSystem(FileSystem(), key_file), **options)


def values_of(root, **options):
    """Return the offsets and values that a read of a tier returns."""
    table = read(root, **options)
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
