"""Options: each is stated once, with its value, default, meaning and parser."""

from storage_core.options.read_options import (
    READ_OPTIONS,
    RECORDS,
    VIEWS,
    ReadOptions,
    StreamOptions,
    TriggerLimits,
    options_of,
    parse_read_options,
    parse_stream_options,
)

__all__ = [
    "READ_OPTIONS",
    "RECORDS",
    "VIEWS",
    "ReadOptions",
    "StreamOptions",
    "TriggerLimits",
    "options_of",
    "parse_read_options",
    "parse_stream_options",
]
