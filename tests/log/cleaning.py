"""Compacted logs for tests: keyed records, one to a batch, and what a reader sees of them."""

from __future__ import annotations

from contextlib import contextmanager

from storage_core.log import log_cleaner as cleaning_pass
from tests.log.logs import small, table


def compacted(**config):
    """Return a configuration with compaction, and segments of about ten records."""
    return small(**{"cleanup_policy": "compact", **config})


def put(log, *pairs, **options):
    """Append (key, value) pairs, each in a batch of its own; given as one text: ``a1`` is key a, value 1."""
    for pair in pairs:
        key, value = (pair[:1], pair[1:] or None) if isinstance(pair, str) else pair
        key, value = (each.encode() if isinstance(each, str) else each for each in (key, value))
        info = log.append(table(value, keys=[key]), **options)
    return info


def records(log, **options):
    """Return all that a reader sees, as texts ``offset:key=value``."""
    found = []
    for batch in log.read(columns=["offset", "key", "value"], **options):
        for offset, key, value in zip(*(batch[name].to_pylist() for name in batch.schema.names), strict=True):
            shown = "null" if value is None else value.decode()
            found.append(f"{offset}:{'' if key is None else key.decode()}={shown}")
    return found


def latest(log):
    """Return the last value of each key."""
    found = {}
    for batch in log.read(columns=["key", "value"]):
        found.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
    return {key: value for key, value in found.items() if value is not None}


def unfinished_files(path):
    """Return what a cleaning may have left."""
    return sorted(each.name for each in path.iterdir() if each.name.endswith((".cleaned", ".swap")))


@contextmanager
def meanwhile(monkeypatch, happens):
    """Let something happen when a group of segments was cleaned, but not replaced yet."""
    real = cleaning_pass.clean_into

    def clean_into(*arguments, **options):
        statistics = real(*arguments, **options)
        happens()
        return statistics

    with monkeypatch.context() as patch:
        patch.setattr(cleaning_pass, "clean_into", clean_into)
        yield
