"""The compacted topics, and what each one covers. Settings are Kafka's, with ``_`` for ``.``."""

from __future__ import annotations

from tests.interop.produced import CODECS

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS

TRANSACTIONS = "cleaned-transactions"
KEPT_TRANSACTIONS = "cleaned-kept-transactions"
# Ends in an open transaction.
OPEN = "cleaned-open-transaction"
IDEMPOTENT = "cleaned-idempotent"
# Overflows the offset map.
MANY_KEYS = "cleaned-many-keys"
LARGE = "cleaned-large-batches"
# The compaction lag protects its last records.
YOUNG = "cleaned-young"
# First written under the delete policy, with null keys.
ONCE_DELETED = "cleaned-once-deleted"
# Its producers bump their epoch with each transaction, as Kafka's newest clients do and librdkafka does not.
OURS = "cleaned-our-transactions"

_COMPACTED: dict[str, object] = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": 12_000,
    "index_interval_bytes": 500,
    # A delete horizon set in one pass has expired by the next.
    "delete_retention_ms": 100,
    "segment_index_bytes": 65_536,
}
_KEPT = {**_COMPACTED, "delete_retention_ms": 10 * DAY_MS}

# Topic: its settings.
CLEANED: dict[str, dict[str, object]] = {
    **{
        f"cleaned-codec-{codec}": {**_COMPACTED, "compression_type": codec.replace("none", "uncompressed")}
        for codec in CODECS
    },
    "cleaned-append-time": {**_COMPACTED, "message_timestamp_type": "LogAppendTime"},
    "cleaned-kept-tombstones": _KEPT,
    "cleaned-small-indexes": {**_COMPACTED, "segment_index_bytes": 200, "index_interval_bytes": 0},
    "cleaned-preallocated": {**_COMPACTED, "preallocate": "true"},
    "cleaned-and-deleted": {**_COMPACTED, "cleanup_policy": "compact,delete", "retention_ms": 3 * HOUR_MS},
    YOUNG: {**_COMPACTED, "min_compaction_lag_ms": 3 * HOUR_MS},
    ONCE_DELETED: {**_COMPACTED, "cleanup_policy": "delete"},
    LARGE: {**_COMPACTED, "internal_segment_bytes": 600_000},
    MANY_KEYS: {**_COMPACTED, "internal_segment_bytes": 150_000},
    IDEMPOTENT: _COMPACTED,
    TRANSACTIONS: _COMPACTED,
    KEPT_TRANSACTIONS: _KEPT,
    OPEN: _COMPACTED,
    OURS: _COMPACTED,
}
# The topics that get the same records with few keys.
OF_EVERY_SHAPE = tuple(
    topic
    for topic in CLEANED
    if topic not in {LARGE, MANY_KEYS, IDEMPOTENT, TRANSACTIONS, KEPT_TRANSACTIONS, OPEN, OURS}
)
