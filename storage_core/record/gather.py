"""Reading one item at each of many places of a buffer, aligned or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["gather"]


def gather(
    buffer: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], kind: np.dtype[Any]
) -> npt.NDArray[Any]:
    """The item of a type that begins at each position; all lie within the buffer.

    Raises:
        IndexError: An item does not lie within the buffer.
    """
    size_bytes = kind.itemsize
    # As many places as an item can begin at; with none of them, nothing can be asked for.
    places = max(len(buffer) - size_bytes + 1, 0)
    # Plain bytes are quicker to take than fields.
    items = np.ndarray((places,), f"V{size_bytes}", buffer, 0, (1,))
    found: npt.NDArray[Any] = items[positions].view(kind)
    return found
