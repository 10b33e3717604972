"""Says on standard error what a long run is doing."""

from __future__ import annotations

import sys
import time


def tell(text: str) -> None:
    """Print a line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
