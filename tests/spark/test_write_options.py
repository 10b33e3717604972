"""Options of a batch write: Kafka's and our own, ignored and refused ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_segmentlog.write_options import WRITE_OPTIONS, ignored_write_options, write_options
from storage_core.errors import OptionError


def options(**given):
    """Options as Spark passes them, with a path; ``__`` becomes a dot."""
    given = {"path": "/a", **given}
    return CaseInsensitiveDict({name.replace("__", "."): value for name, value in given.items()})


def parse(**given):
    return write_options(options(**given))


def test_nothing_but_a_path_is_needed():
    parsed = parse()
    assert parsed.path == "/a"
    assert (parsed.topic, parsed.partitions, parsed.makes_all_partitions) == (None, 1, True)
    assert (parsed.partitioner, parsed.job.flush) == ("default", True)
    assert (parsed.job.txn_app_id, parsed.job.txn_version) == (None, None)
    assert (parsed.job.topic_ids, parsed.job.broker_directory) == ({}, False)
    assert (parsed.job.preserve_offsets, parsed.offsets_from) == (False, None)
    assert (parsed.config.batch_size, parsed.config.compression_codec) == (131072, 0)


def test_the_maximum_batch_size_of_readers():
    assert parse().max_decompressed_batch_bytes == 64 << 20
    assert parse(maxDecompressedBatchBytes="200m").max_decompressed_batch_bytes == 200 << 20
    # Options of the view that an INSERT writes to.
    assert ignored_write_options(options(maxDecompressedBatchBytes="200m")) == ()
    with pytest.raises(
        OptionError, match=r"maxDecompressedBatchBytes is '2g'\. Use at most 1073741824 bytes"
    ):
        parse(maxDecompressedBatchBytes="2g")


def test_names_are_case_insensitive_and_may_be_snake_case():
    parsed = parse(Topic=" orders ", PARTITIONS="3", Batch__Size="1000", broker_directory="TRUE")
    assert (parsed.topic, parsed.partitions, parsed.config.batch_size) == ("orders", 3, 1000)
    assert parsed.job.broker_directory is True


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"path": "file:/a/b"}, "/a/b"),
        ({"path": "file:///a%20b"}, "/a b"),
        ({"path": "/a,b"}, "/a,b"),
        ({"paths": '["/a,b"]'}, "/a,b"),
    ],
)
def test_the_path_is_one_directory(given, path):
    assert write_options(CaseInsensitiveDict(given)).path == path


@pytest.mark.parametrize("given", [{}, {"path": ""}, {"paths": "[]"}])
def test_a_missing_path_is_explained(given):
    with pytest.raises(OptionError, match=r"No path is given. .*\.save\(\"/path\"\).*INSERT INTO t WITH"):
        write_options(CaseInsensitiveDict(given))


def test_several_paths_are_refused():
    with pytest.raises(OptionError, match=r"one log directory, but path names 2: /a, /b"):
        write_options(CaseInsensitiveDict({"paths": '["/a","/b"]'}))


@pytest.mark.parametrize("path", ["s3://bucket/logs", "hdfs:///logs", "s3a:/x"])
def test_other_file_systems_are_refused_by_name(path):
    with pytest.raises(OptionError, match=f"has the scheme '{path.partition(':')[0]}'"):
        parse(path=path)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("none", 0), ("uncompressed", 0), ("producer", 0), ("gzip", 1), ("Snappy", 2), ("lz4", 3)],
)
def test_codecs_have_the_names_of_producers_and_of_topics(name, codec):
    assert parse(compression__type=name).config.compression_codec == codec


def test_a_producers_compression_is_taken_over():
    assert parse(kafka__compression__type="zstd").config.compression_codec == 4
    assert parse(kafka__compression__type="zstd", compression__type="zstd").config.compression_codec == 4
    with pytest.raises(OptionError, match=r"same option, but they are given as"):
        parse(kafka__compression__type="zstd", compression__type="gzip")


def test_an_unknown_codec_is_named():
    with pytest.raises(OptionError, match=r"compression.type .*found 'zst'. Did you mean 'zstd'\?"):
        parse(compression__type="zst")


def test_the_level_is_that_of_the_codec():
    config = parse(compression__type="gzip", compression__level="7").config
    assert (config.compression_level, config.compression_gzip_level) == (7, 7)
    assert parse(compression__type="zstd", compression__zstd__level="9").config.compression_level == 9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"compression__level": "3"},
            "'3', but no codec is given. Set compression.type to gzip, lz4 or zstd",
        ),
        ({"compression__type": "snappy", "compression__level": "3"}, "'snappy' has no level"),
        ({"compression__type": "gzip", "compression__level": "0"}, "compression.gzip.level"),
        (
            {"compression__type": "gzip", "compression__level": "3", "compression__gzip__level": "4"},
            "compression.level is '3' and compression.gzip.level is '4'",
        ),
    ],
)
def test_a_level_that_means_nothing_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        parse(**given)


def test_topic_level_keys_configure_the_logs():
    config = parse(segment__bytes="2000000", index__interval__bytes="100", max__message__bytes="5000").config
    assert (config.segment_bytes, config.index_interval_bytes) == (2_000_000, 100)
    assert config.max_message_bytes == 5000
    with pytest.raises(OptionError, match=r"segment.bytes .*1048576 to 2147483647.*found '1'"):
        parse(segment__bytes="1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topics": "t"}, "Unknown option 'topics'. Did you mean 'topic'?"),
        ({"partition": "3"}, "Unknown option 'partition'. Did you mean 'partitions'?"),
        ({"segment.byte": "1"}, "Unknown option 'segment.byte'. Did you mean 'segment.bytes'?"),
        ({"txnAppID2": "1"}, "Unknown option 'txnappid2'. Did you mean 'txnAppId'?"),
        ({"zzzzz": "1"}, "Unknown option 'zzzzz'. Known are: "),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_name(given, message):
    with pytest.raises(OptionError) as raised:
        write_options(CaseInsensitiveDict({"path": "/a", **given}))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": " "}, "Expected 1 to 249 of the characters .* found ''"),
        ({"topic": "a/b"}, "Expected 1 to 249 of the characters .* found 'a/b'"),
        ({"topic": "__cluster_metadata"}, "found '__cluster_metadata'"),
        ({"partitions": "0"}, "partitions must be positive"),
        ({"partitions": "2147483648"}, "Use at most 2147483647"),
        ({"partitioner": "hash"}, "partitioner is 'hash'. Use default or roundRobin or random."),
        ({"flush": "no"}, "flush is 'no'. Use commit or none."),
        ({"preserveOffsets": "1"}, "preserveOffsets is '1'. Use true or false."),
        ({"brokerDirectory": ""}, "brokerDirectory is ''"),
        ({"offsetsFrom": "/b"}, "offsetsFrom goes with preserveOffsets=true"),
        ({"offsetsFrom": "/b", "preserveOffsets": "false"}, "offsetsFrom goes with preserveOffsets=true"),
        ({"txnAppId": "a"}, "txnVersion is missing"),
        ({"txnVersion": "1"}, "txnAppId is missing"),
        ({"txnAppId": " ", "txnVersion": "1"}, "txnAppId is empty"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion is '-1'. Use a whole number from 0"),
        ({"txnAppId": "a", "txnVersion": "9223372036854775808"}, "from 0 to 9223372036854775807"),
        ({"txnAppId": "a", "txnVersion": "1.5"}, "txnVersion is '1.5'"),
        (
            {"message__timestamp__type": "LogAppendTime"},
            "message.timestamp.type is 'LogAppendTime', but rows keep their timestamps",
        ),
    ],
)
def test_wrong_values_are_named(given, message):
    with pytest.raises(OptionError, match=message):
        parse(**given)


def test_values_of_every_kind():
    parsed = parse(
        partitioner="ROUNDROBIN",
        flush="None",
        preserveOffsets="true",
        offsetsFrom="/b,/c",
        txnAppId="app",
        txnVersion="9223372036854775807",
        topicIds='{"t":"AAAAAAAAAAAAAAAAAAAAAQ"}',
    )
    assert (parsed.partitioner, parsed.job.flush) == ("roundRobin", False)
    assert (parsed.job.preserve_offsets, parsed.offsets_from) == (True, "/b,/c")
    assert (parsed.job.txn_app_id, parsed.job.txn_version) == ("app", 9223372036854775807)
    assert parsed.job.topic_ids == {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}


@pytest.mark.parametrize(
    "value",
    [
        "t",
        "[]",
        '{"t":1}',
        '{"t":"short"}',
        # 22 characters, the last of which has bits that no id has.
        '{"t":"AAAAAAAAAAAAAAAAAAAAAB"}',
        '{"t":"AAAAAAAAAAAAAAAAAAAA+Q"}',
        '{"t":"ÄAAAAAAAAAAAAAAAAAAAAQ"}',
        "[" * 100_000,
    ],
)
def test_topic_ids_are_checked(value):
    with pytest.raises(OptionError, match=r"kafka-topics.sh --describe shows"):
        parse(topicIds=value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "kafka.key.serializer",
            "Kafka option 'key.serializer' is not supported as keys are serialized with",
        ),
        (
            "Kafka.Value.Serializer",
            "Kafka option 'value.serializer' is not supported as values are serialized",
        ),
        ("kafka.partitioner.class", "Kafka option 'partitioner.class' is not supported. Set the option"),
    ],
)
def test_options_that_change_the_meaning_are_refused(name, message):
    with pytest.raises(OptionError, match=message):
        write_options(CaseInsensitiveDict({"path": "/a", name: "x"}))


def test_options_of_producers_catalogs_and_reads_are_accepted_and_named():
    given = options(
        kafka__bootstrap__servers="broker:9092",
        kafka__acks="all",
        kafka__sasl__jaas__config="password",
        checkpointLocation="/c",
        owner="me",
        provider="segmentlog",
        location="/l",
        subscribe="t",
        includeHeaders="true",
        startingOffsets="earliest",
        isolationLevel="read_committed",
    )
    plain = parse()
    parsed = write_options(given)
    assert replace(parsed, job=replace(parsed.job, job_id=plain.job.job_id)) == plain
    assert ignored_write_options(given) == (
        "checkpointlocation",
        "includeHeaders",
        "isolationLevel",
        "kafka.acks",
        "kafka.bootstrap.servers",
        "kafka.sasl.jaas.config",
        "location",
        "owner",
        "provider",
        "startingOffsets",
        "subscribe",
    )


def test_nothing_is_reported_when_nothing_is_ignored():
    assert (
        ignored_write_options(options(topic="t", kafka__compression__type="gzip", segment__ms="1000")) == ()
    )


def test_configuration_keys_are_not_taken_for_options_of_a_read():
    assert ignored_write_options(options(batch__size="1", flush="none", flush__ms="1")) == ()
    assert parse(flush="none", flush__ms="7").config.flush_ms == 7


def test_the_documented_defaults_apply():
    defaults = {spec.name: spec.default for spec in WRITE_OPTIONS if spec.default}
    parsed = write_options(CaseInsensitiveDict({"path": "/a", **defaults}))
    assert parsed.partitions == parse().partitions
    assert parsed.config.compression_codec == parse().config.compression_codec
    assert parsed.config.batch_size == parse().config.batch_size
    assert parsed.partitioner == parse().partitioner
    names = ("flush", "broker_directory", "preserve_offsets")
    assert [getattr(parsed.job, name) for name in names] == [getattr(parse().job, name) for name in names]
