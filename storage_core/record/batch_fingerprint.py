"""A checksum over batches that stays what it is when they get their offsets and leader epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from crc32c import crc32c

from storage_core.record.batch_header import (
    HEADER_SIZE_BYTES,
    LENGTH_POSITION,
    MAGIC_POSITION,
)

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FINGERPRINTED_BYTES", "batch_fingerprint", "fingerprinted_bytes"]

_LEADER_EPOCH_POSITION: Final = 12
# All of a header but its base offset and its leader epoch.
_COLUMNS: Final = np.r_[LENGTH_POSITION:_LEADER_EPOCH_POSITION, MAGIC_POSITION:HEADER_SIZE_BYTES]
FINGERPRINTED_BYTES: Final = len(_COLUMNS)
"""How many bytes of each header count."""


def batch_fingerprint(headers: npt.NDArray[Any], fingerprint: int = 0) -> int:
    """The CRC-32C over each header's length and what stands behind its leader epoch.

    Each header holds the CRC of its batch: who has the fingerprint of the headers has that of all bytes.

    Args:
        headers: Of batches of format v2: a structured array of `HEADER_DTYPE`.
        fingerprint: That of the batches before them.
    """
    return int(crc32c(fingerprinted_bytes(headers), fingerprint))


def fingerprinted_bytes(headers: npt.NDArray[Any]) -> memoryview:
    """What the fingerprint is computed of: `FINGERPRINTED_BYTES` a batch, back to back."""
    rows = np.frombuffer(headers.tobytes(), np.uint8).reshape(-1, HEADER_SIZE_BYTES)
    return memoryview(rows[:, _COLUMNS].tobytes())
