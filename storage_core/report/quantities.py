"""Sizes, durations and counts as texts for people."""

from __future__ import annotations

from typing import Final

_KIBI: Final = 1024
_SIZE_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
_WHOLE_FROM: Final = 10


def size_text(size_bytes: float) -> str:
    """Write a number of bytes in its largest unit: ``1.5 MiB``."""
    unit = 0
    while size_bytes >= _KIBI and unit + 1 < len(_SIZE_UNITS):
        size_bytes /= _KIBI
        unit += 1
    return f"{size_bytes:,.0f} bytes" if unit == 0 else f"{size_bytes:,.1f} {_SIZE_UNITS[unit]}"


def duration_text(duration_ms: int) -> str:
    """Write a duration in its largest unit: ``1.5 hours``."""
    for unit_ms, name in _TIME_UNITS:
        if duration_ms >= unit_ms:
            number = duration_ms / unit_ms
            text = f"{number:,.0f}" if number >= _WHOLE_FROM or number == int(number) else f"{number:.1f}"
            return f"{text} {name}{'' if text == '1' else 's'}"
    return f"{duration_ms} ms"


def count_text(number: int, what: str) -> str:
    """Write a number of things: ``1 segment``, ``1,200 segments``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
