"""Keys and values of the data sets: the same bytes in every run.

A value is one line of a web shop's event log: field names and a few words, which compress well,
around a random token, which does not. zstd brings such batches to about half their size.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence

KEY_SIZE_BYTES = 10

# 2025-06-01T00:00:00Z. Record i of a partition is i milliseconds younger.
FIRST_TIMESTAMP_MS = 1_748_736_000_000

# Values repeat after this many records: far beyond one batch, so no batch holds one twice.
_POOL_SIZE = 100_000
_SEED = 20250601
_TOKEN_SHARE = 0.45
_TOKEN_ALPHABET = string.ascii_letters + string.digits + "+/"
_WORDS = (
    "view", "cart", "search", "checkout", "order", "payment", "refund", "product", "catalog", "summer",
    "winter", "shoes", "shirt", "jacket", "mobile", "desktop", "mail", "campaign", "banner",
    "returning", "guest", "voucher", "delivery", "express", "standard", "gift", "wish", "list",
)  # fmt: skip


def key_of(partition: int, index: int) -> bytes:
    """Return the key of one record: ten digits in no order."""
    return b"%010d" % ((index * 4 + partition) * 2_654_435_761 % 10**KEY_SIZE_BYTES)


def make_values(smallest_bytes: int, largest_bytes: int) -> list[bytes]:
    """Return the pool of values for sizes from ``smallest_bytes`` to ``largest_bytes``, evenly spread."""
    # Not for secrets: the same numbers in every run are the point.
    chance = random.Random(_SEED)
    return [_make_value(chance, chance.randint(smallest_bytes, largest_bytes)) for _ in range(_POOL_SIZE)]


def values_of_partition(pool: Sequence[bytes], partition: int, start: int, count: int) -> Iterator[bytes]:
    """Yield the values of ``count`` records from record ``start``; each partition starts elsewhere in the pool."""
    shift = partition * len(pool) // 4 + start
    for index in range(shift, shift + count):
        yield pool[index % len(pool)]


def _make_value(chance: random.Random, size_bytes: int) -> bytes:
    token = "".join(chance.choices(_TOKEN_ALPHABET, k=int(size_bytes * _TOKEN_SHARE)))
    head = f'{{"ms":{chance.randint(1, 999)},"event":"{chance.choice(_WORDS)}","token":"{token}","text":"'
    words = " ".join(chance.choices(_WORDS, k=size_bytes // 4))
    return (head + words)[: size_bytes - 2].encode() + b'"}'
