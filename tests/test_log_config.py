"""One log's configuration: Kafka's names, defaults, types and ranges."""

from __future__ import annotations

import dataclasses
import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from storage_core.config import CONFIG_KEYS
from storage_core.errors import OptionError
from storage_core.log_config import LogConfig

PROPERTIES = Path(__file__).parent.parent / "conf" / "segmentlog.properties"


# -- Fields and defaults --------


def test_there_is_a_field_for_every_key_and_a_key_for_every_field():
    names = [field.name.replace("_", ".") for field in dataclasses.fields(LogConfig)]
    assert names == [*(key.name for key in CONFIG_KEYS), "internal.segment.bytes"]


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogConfig().segment_bytes = 1 << 21


def test_it_is_equal_by_value_hashable_and_can_be_sent():
    config = LogConfig(segment_bytes=1 << 20, cleanup_policy="compact")
    assert config == LogConfig.from_dict({"segment.bytes": "1048576", "cleanup.policy": "compact"})
    assert config != LogConfig()
    assert {config: 1}[pickle.loads(pickle.dumps(config))] == 1


def test_it_shows_what_is_not_default():
    assert repr(LogConfig()) == "LogConfig()"
    config = LogConfig(segment_bytes=1 << 20, cleanup_policy="compact")
    assert repr(config) == "LogConfig(segment_bytes=1048576, cleanup_policy=('compact',))"
    assert eval(repr(config)) == config


# -- Types of values --------


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("segment.bytes", "1048576", 1 << 20),
        ("segment.bytes", " +2147483647\t", 2**31 - 1),
        ("segment.bytes", np.int64(1 << 20), 1 << 20),
        ("flush.ms", "9223372036854775807", 2**63 - 1),
        ("retention.ms", "-1", -1),
        ("preallocate", "TRUE", True),
        ("preallocate", " false ", False),
        ("preallocate", True, True),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("min.cleanable.dirty.ratio", "5e-1", 0.5),
        ("min.cleanable.dirty.ratio", ".25", 0.25),
        ("min.cleanable.dirty.ratio", 0, 0.0),
        ("compression.type", " zstd ", "zstd"),
        ("cleanup.policy", "compact", ("compact",)),
        ("cleanup.policy", " compact , delete ", ("compact", "delete")),
        ("cleanup.policy", ["delete"], ("delete",)),
        ("cleanup.policy", ("delete", "compact"), ("delete", "compact")),
        ("cleanup.policy", "", ()),
        ("cleanup.policy", [], ()),
        ("internal.segment.bytes", "200", 200),
        ("internal.segment.bytes", None, None),
    ],
)
def test_values_as_kafka_reads_them(name, given, expected):
    field = name.replace(".", "_")
    found = getattr(LogConfig.from_dict({name: given}), field)
    assert (found, type(found)) == (expected, type(expected))
    assert getattr(LogConfig(**{field: given}), field) == expected
    assert getattr(LogConfig.from_dict({field: given}), field) == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("segment.bytes", "1e6"),
        ("segment.bytes", "1_048_576"),
        ("segment.bytes", "1048576.0"),
        ("segment.bytes", "٣٣٣٣٣٣٣"),
        ("segment.bytes", ""),
        ("segment.bytes", "9" * 5000),
        ("segment.bytes", 1048576.0),
        ("index.interval.bytes", True),
        ("segment.bytes", None),
        ("segment.bytes", b"1048576"),
        ("preallocate", "yes"),
        ("preallocate", 1),
        ("preallocate", None),
        ("min.cleanable.dirty.ratio", "half"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", float("nan")),
        ("min.cleanable.dirty.ratio", float("inf")),
        ("min.cleanable.dirty.ratio", 10**400),
        ("min.cleanable.dirty.ratio", False),
        ("compression.type", 3),
        ("compression.type", None),
        ("cleanup.policy", 5),
        ("cleanup.policy", [5]),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", {"delete"}),
    ],
)
def test_values_of_another_type(name, given):
    with pytest.raises(OptionError) as caught:
        LogConfig.from_dict({name: given})
    assert f"Expected as {name} a value of type" in str(caught.value)
    assert len(str(caught.value)) < 300


# -- Ranges --------

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

# As Kafka 4.1.0 documents them.
RANGES = {
    "segment.bytes": (1 << 20, INT_MAX),
    "segment.ms": (1, LONG_MAX),
    "segment.jitter.ms": (0, LONG_MAX),
    "segment.index.bytes": (4, INT_MAX),
    "index.interval.bytes": (0, INT_MAX),
    "max.message.bytes": (0, INT_MAX),
    "compression.gzip.level": (-1, 9),
    "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-131072, 22),
    "message.timestamp.before.max.ms": (0, LONG_MAX),
    "message.timestamp.after.max.ms": (0, LONG_MAX),
    "batch.size": (0, INT_MAX),
    "producer.id.expiration.ms": (1, INT_MAX),
    "flush.messages": (1, LONG_MAX),
    "flush.ms": (0, LONG_MAX),
    "retention.bytes": (-1, LONG_MAX),
    "retention.ms": (-1, LONG_MAX),
    "file.delete.delay.ms": (0, LONG_MAX),
    "min.cleanable.dirty.ratio": (0, 1),
    "min.compaction.lag.ms": (0, LONG_MAX),
    "max.compaction.lag.ms": (1, LONG_MAX),
    "delete.retention.ms": (0, LONG_MAX),
    "min.insync.replicas": (1, INT_MAX),
    "local.retention.bytes": (-2, LONG_MAX),
    "local.retention.ms": (-2, LONG_MAX),
    "internal.segment.bytes": (1, INT_MAX),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name):
    lowest, highest = RANGES[name]
    field = name.replace(".", "_")
    assert getattr(LogConfig.from_dict({name: lowest}), field) == lowest
    assert getattr(LogConfig.from_dict({name: str(highest)}), field) == highest
    for wrong in (lowest - 1, highest + 1):
        with pytest.raises(OptionError, match=f"Expected as {name} .*, found {wrong}"):
            LogConfig.from_dict({name: wrong})


def test_every_number_has_its_range_tested():
    numbers = {key.name for key in CONFIG_KEYS if key.kind.value in {"int", "long", "double"}}
    assert numbers | {"internal.segment.bytes"} == set(RANGES)


def test_the_message_names_key_range_and_value():
    with pytest.raises(OptionError) as caught:
        LogConfig(segment_bytes=5)
    assert str(caught.value) == (
        "Expected as segment.bytes a value of type int (bytes, 1048576 to 2147483647), found 5."
    )


def test_gzip_has_no_level_0():
    with pytest.raises(OptionError, match=r"compression\.gzip\.level .*-1 to 9, not 0"):
        LogConfig(compression_gzip_level=0)


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("compression.type", "ztsd", "Did you mean 'zstd'"),
        ("compression.type", "None", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("message.timestamp.type", "createtime", "Did you mean 'CreateTime'"),
        ("cleanup.policy", "compacted", "Did you mean 'compact'"),
        ("cleanup.policy", "delete,never", "any of delete, compact"),
    ],
)
def test_words(name, given, hint):
    with pytest.raises(OptionError, match=hint):
        LogConfig.from_dict({name: given})


def test_a_producers_word_for_no_compression_is_that_of_a_topic():
    config = LogConfig(compression_type=" none")
    assert config == LogConfig(compression_type="uncompressed")
    assert (config.compression_type, config.compression_codec) == ("uncompressed", 0)
    assert LogConfig.from_properties("compression.type=none") == config


def test_the_lags_of_compaction_are_in_order():
    assert LogConfig(min_compaction_lag_ms=5, max_compaction_lag_ms=5).min_compaction_lag_ms == 5
    with pytest.raises(OptionError, match=r"min\.compaction\.lag\.ms .* \(5\), found 6"):
        LogConfig(min_compaction_lag_ms=6, max_compaction_lag_ms=5)


# -- Unknown names --------


@pytest.mark.parametrize(
    "make",
    [
        lambda: LogConfig(segment_byte=1 << 20),
        lambda: LogConfig().replace(segment_byte=1 << 20),
        lambda: LogConfig.from_dict({"segment.byte": 1 << 20}),
        lambda: LogConfig.from_dict({"Segment_Bytes": 1 << 20}),
        lambda: LogConfig.from_dict({"log.segment.bytes": 1 << 20}),
        lambda: LogConfig.from_properties("segment.byte=1048576"),
    ],
)
def test_the_nearest_name_is_given(make):
    with pytest.raises(
        OptionError, match=r"Unknown configuration key '.*'\. Did you mean 'segment\.bytes'\?"
    ):
        make()


def test_names_without_a_near_one():
    with pytest.raises(OptionError, match=r"'zzz'\. Known are: batch\.size, cleanup\.policy, ") as caught:
        LogConfig.from_dict({"zzz": 1})
    assert "internal" not in str(caught.value)
    with pytest.raises(OptionError, match="Unknown configuration key '7'"):
        LogConfig.from_dict({7: 1})


def test_one_key_by_two_names():
    with pytest.raises(OptionError, match=r"'segment\.bytes' once, found it twice"):
        LogConfig.from_dict({"segment.bytes": 1 << 20, "segment_bytes": 1 << 20})


# -- Properties files --------


def test_a_properties_file():
    text = """
# a comment
! another one
segment.bytes = 1048576
segment.ms:5
compression.type   zstd
cleanup.policy=compact,\\
    delete
retention\\u002ems=-1
preallocate=false
preallocate=true
"""
    expected = LogConfig(
        segment_bytes=1 << 20,
        segment_ms=5,
        compression_type="zstd",
        cleanup_policy=("compact", "delete"),
        retention_ms=-1,
        preallocate=True,
    )
    assert LogConfig.from_properties(text) == expected
    assert LogConfig.from_properties(text.encode()) == expected
    assert LogConfig.from_properties(io.StringIO(text)) == expected
    assert LogConfig.from_properties(io.BytesIO(text.replace("\n", "\r\n").encode())) == expected


def test_the_file_in_conf_holds_the_defaults():
    with PROPERTIES.open() as file:
        assert LogConfig.from_properties(file) == LogConfig()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("segment.bytes=\\u12", "four hexadecimal digits"),
        ("segment.bytes=1m", "segment.bytes .*found '1m'"),
        ("segment.bytes", "segment.bytes .*found ''"),
        (PROPERTIES, "text of a properties file, or an open file, found PosixPath"),
        (str(PROPERTIES), r"Unknown configuration key '.*segmentlog\.properties'"),
        (None, "found NoneType"),
    ],
)
def test_what_is_no_properties_file(source, message):
    with pytest.raises(OptionError, match=message):
        LogConfig.from_properties(source)


# -- Changes --------


def test_replacing_some_values():
    config = LogConfig(segment_bytes=1 << 20)
    changed = config.replace(segment_ms="5", **{"retention.ms": 7})
    assert changed == LogConfig(segment_bytes=1 << 20, segment_ms=5, retention_ms=7)
    assert config == LogConfig(segment_bytes=1 << 20)
    with pytest.raises(OptionError, match=r"segment\.ms"):
        config.replace(segment_ms=0)


# -- What follows from the keys --------


def test_the_size_of_a_segment():
    assert LogConfig(segment_bytes=1 << 21).max_segment_bytes == 1 << 21
    # For tests: no lower limit.
    assert LogConfig(segment_bytes=1 << 21, internal_segment_bytes=200).max_segment_bytes == 200


@pytest.mark.parametrize(
    ("policy", "lag_ms", "expected_ms"),
    [("delete", 50, 100), ("compact", 50, 50), ("delete,compact", 50, 50), ("compact", 500, 100)],
)
def test_the_age_of_a_segment(policy, lag_ms, expected_ms):
    config = LogConfig(segment_ms=100, max_compaction_lag_ms=lag_ms, cleanup_policy=policy)
    assert config.max_segment_ms == expected_ms
    assert config.is_compacted == ("compact" in policy)


@pytest.mark.parametrize(("kind", "expected"), [("CreateTime", False), ("LogAppendTime", True)])
def test_who_says_what_time_a_record_has(kind, expected):
    assert LogConfig(message_timestamp_type=kind).has_log_append_time is expected


@pytest.mark.parametrize(
    ("values", "codec", "level"),
    [
        ({}, 0, None),
        ({"compression_type": "uncompressed", "compression_gzip_level": 4}, 0, None),
        ({"compression_type": "gzip"}, 1, None),
        ({"compression_type": "gzip", "compression_gzip_level": 9}, 1, 9),
        ({"compression_type": "snappy"}, 2, None),
        ({"compression_type": "lz4"}, 3, 9),
        ({"compression_type": "lz4", "compression_lz4_level": 17}, 3, 17),
        ({"compression_type": "zstd"}, 4, 3),
        ({"compression_type": "zstd", "compression_zstd_level": -5}, 4, -5),
    ],
)
def test_compression(values, codec, level):
    config = LogConfig(**values)
    assert (config.compression_codec, config.compression_level) == (codec, level)
