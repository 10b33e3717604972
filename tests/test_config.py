"""The table of configuration keys, as the file that is generated from it shows it."""

from __future__ import annotations

import pytest

from storage_core.config import CONFIG_KEYS, INTERNAL_KEYS, ConfigKey, ConfigKind
from tests.properties_file import properties_text

# As a user of Kafka 4.1 knows them.
KNOWN_DEFAULTS = {
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "segment.jitter.ms": "0",
    "segment.index.bytes": "10485760",
    "index.interval.bytes": "4096",
    "preallocate": "false",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "min.cleanable.dirty.ratio": "0.5",
    "file.delete.delay.ms": "60000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "3600000",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    # A producer's.
    "batch.size": "16384",
    # A broker's.
    "producer.id.expiration.ms": "86400000",
}

PYTHON_TYPES = {
    ConfigKind.BOOLEAN: bool,
    ConfigKind.INT: int,
    ConfigKind.LONG: int,
    ConfigKind.DOUBLE: float,
    ConfigKind.STRING: str,
    ConfigKind.LIST: str,
}


def read_properties(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_defaults_are_those_of_kafka():
    properties = read_properties(properties_text())
    assert {name: properties[name] for name in KNOWN_DEFAULTS} == KNOWN_DEFAULTS


def test_every_key_stands_once_with_a_comment_above_it():
    names = [key.name for key in CONFIG_KEYS]
    assert len(set(names)) == len(names)
    assert list(read_properties(properties_text())) == names
    lines = properties_text().splitlines()
    for key in CONFIG_KEYS:
        position = next(index for index, line in enumerate(lines) if line.startswith(f"{key.name}="))
        assert lines[position - 1] == f"# {key.doc} ({key.kind.value}: {key.range_text})"


@pytest.mark.parametrize("key", CONFIG_KEYS, ids=lambda key: key.name)
def test_default_is_of_its_kind_and_in_its_range(key: ConfigKey):
    assert type(key.default) is PYTHON_TYPES[key.kind]
    if key.choices:
        assert key.default in key.choices
    if isinstance(key.default, (int, float)) and key.kind is not ConfigKind.BOOLEAN:
        assert key.minimum is not None, "every number has a lower limit in Kafka"
        assert key.default >= key.minimum
        assert key.default <= (2**63 - 1 if key.maximum is None else key.maximum)


def test_keys_that_kafka_does_not_document_are_not_in_the_file():
    assert [(key.name, key.default) for key in INTERNAL_KEYS] == [("internal.segment.bytes", None)]
    assert "internal" not in properties_text()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (ConfigKey("a", 1, ConfigKind.INT, unit="bytes", minimum=14, doc=""), "bytes, 14 or more"),
        (ConfigKey("a", 1, ConfigKind.INT, minimum=-1, maximum=9, doc=""), "-1 to 9"),
        (ConfigKey("a", 1, ConfigKind.INT, minimum=-1, maximum=9, excluded=(0,), doc=""), "-1 to 9, not 0"),
        (ConfigKey("a", 1, ConfigKind.INT, maximum=9, doc=""), "9 or less"),
        (ConfigKey("a", 1, ConfigKind.LONG, unit="milliseconds", doc=""), "milliseconds, any number"),
        (ConfigKey("a", True, ConfigKind.BOOLEAN, doc=""), "true or false"),
        (ConfigKey("a", "x", ConfigKind.STRING, choices=("x", "y"), doc=""), "one of x, y"),
        (ConfigKey("a", "x", ConfigKind.LIST, choices=("x", "y"), doc=""), "any of x, y"),
    ],
)
def test_range_in_words(key: ConfigKey, text: str):
    assert key.range_text == text
