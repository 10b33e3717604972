"""The keys of the cleaner: Kafka's names, defaults and ranges."""

from __future__ import annotations

import pytest

from storage_core.errors import OptionError
from storage_core.log import CleanerConfig

DEFAULTS = {
    "log.cleaner.dedupe.buffer.size": ("dedupe_buffer_size", 134_217_728),
    "log.cleaner.io.buffer.size": ("io_buffer_size", 524_288),
    "log.cleaner.io.buffer.load.factor": ("io_buffer_load_factor", 0.9),
    "log.cleaner.io.max.bytes.per.second": ("io_max_bytes_per_second", None),
    "log.cleaner.backoff.ms": ("backoff_ms", 15_000),
    "log.cleaner.max.decompressed.batch.bytes": ("max_decompressed_batch_bytes", 64 << 20),
}


@pytest.mark.parametrize(("field", "default"), DEFAULTS.values())
def test_the_defaults_are_kafkas_and_the_limit_is_that_of_reads(field, default):
    assert getattr(CleanerConfig(), field) == default


@pytest.mark.parametrize("key", DEFAULTS)
def test_a_key_is_taken_by_kafkas_name_as_text(key):
    field, _ = DEFAULTS[key]
    given = "0.5" if "factor" in key else "1000"
    config = CleanerConfig.from_dict({key: given})
    assert getattr(config, field) == float(given)


def test_a_key_is_taken_with_and_without_its_prefix_and_with_underscores():
    for name in ("log.cleaner.backoff.ms", "log_cleaner_backoff_ms", "backoff.ms", "backoff_ms"):
        assert CleanerConfig.from_dict({name: 7}).backoff_ms == 7


def test_kafkas_largest_double_is_a_rate_like_any_other():
    config = CleanerConfig.from_dict({"log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308"})
    assert config.io_max_bytes_per_second == 1.7976931348623157e308


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dedupe_buffer_size", 0),
        ("dedupe_buffer_size", -1),
        ("dedupe_buffer_size", 1.5),
        ("dedupe_buffer_size", None),
        ("io_buffer_size", -1),
        ("io_buffer_size", 2**31),
        ("io_buffer_load_factor", 1.01),
        ("io_buffer_load_factor", -0.1),
        ("io_buffer_load_factor", float("nan")),
        ("io_max_bytes_per_second", 0),
        ("io_max_bytes_per_second", -1.0),
        ("io_max_bytes_per_second", "fast"),
        ("backoff_ms", -1),
        ("backoff_ms", True),
    ],
)
def test_a_value_out_of_range_is_refused(field, value):
    with pytest.raises(OptionError, match=field.replace("_", ".")):
        CleanerConfig(**{field: value})


# Slots of 24 bytes, filled to a part of them: with one key at the most, a log of two keys never becomes clean.
@pytest.mark.parametrize(("size", "factor"), [(24, 1.0), (47, 1.0), (48, 0.5), (240, 0.1), (1 << 20, 0)])
def test_memory_for_a_single_key_is_refused(size, factor):
    with pytest.raises(OptionError, match="too small for two keys"):
        CleanerConfig(dedupe_buffer_size=size, io_buffer_load_factor=factor)


def test_memory_for_two_keys_is_enough():
    assert CleanerConfig(dedupe_buffer_size=48, io_buffer_load_factor=1.0).dedupe_buffer_size == 48


def test_an_unknown_key_is_answered_with_the_nearest():
    with pytest.raises(OptionError, match=r"Did you mean 'log\.cleaner\.backoff\.ms'"):
        CleanerConfig.from_dict({"log.cleaner.backof.ms": 1})


def test_a_key_given_twice_is_refused():
    with pytest.raises(OptionError, match=r"'log\.cleaner\.backoff\.ms' once, found it twice"):
        CleanerConfig.from_dict({"backoff_ms": 1, "log.cleaner.backoff.ms": 1})


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        CleanerConfig().backoff_ms = 1
