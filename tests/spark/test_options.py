"""Spark's options: used, ignored or refused."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_segmentlog.options import ignored_options, read_options
from storage_core.errors import OptionError


def options(**given):
    """Options as Spark passes them; ``__`` becomes a dot."""
    return CaseInsensitiveDict({name.replace("__", "."): value for name, value in given.items()})


def test_one_path_and_a_list_of_paths():
    assert read_options(options(path="/a,b")).paths == ("/a,b",)
    assert read_options(options(paths='["/a","/b,c"]')).paths == ("/a", "/b,c")


def test_names_are_case_insensitive():
    parsed = read_options(options(PATH="/a", includeHEADERS="True", MinPartitions="3"))
    assert (parsed.include_headers, parsed.min_partitions) == (True, 3)


def test_broker_and_streaming_options_are_accepted_and_reported():
    given = options(
        path="/a",
        kafka__bootstrap__servers="broker:9092",
        kafka__group__id="g",
        kafka__sasl__jaas__config="password",
        groupIdPrefix="p",
        kafkaConsumer__pollTimeoutMs="1",
        fetchOffset__numRetries="1",
        fetchOffset__retryIntervalMs="1",
        maxOffsetsPerTrigger="1",
        minOffsetsPerTrigger="1",
        maxTriggerDelay="1m",
        maxBytesPerTrigger="1",
        checkpointLocation="/c",
    )
    assert read_options(given) == read_options(options(path="/a"))
    assert ignored_options(given) == (
        "checkpointLocation",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "groupIdPrefix",
        "kafka.bootstrap.servers",
        "kafka.group.id",
        "kafka.sasl.jaas.config",
        "kafkaConsumer.pollTimeoutMs",
        "maxBytesPerTrigger",
        "maxOffsetsPerTrigger",
        "maxTriggerDelay",
        "minOffsetsPerTrigger",
    )


def test_nothing_is_reported_when_nothing_is_ignored():
    assert ignored_options(options(path="/a", subscribe="t", kafka__isolation__level="read_committed")) == ()


def test_the_isolation_level_of_a_consumer_is_that_of_the_read():
    given = options(path="/a", kafka__isolation__level="read_committed")
    assert read_options(given).isolation_level == "read_committed"
    with pytest.raises(OptionError, match=r"same option"):
        read_options(given | {"isolationLevel": "read_uncommitted"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kafka.auto.offset.reset", "Kafka option 'auto.offset.reset' is not supported. Instead set"),
        ("kafka.key.deserializer", "as keys are deserialized as byte arrays with ByteArrayDeserializer."),
        ("kafka.value.deserializer", "as values are deserialized as byte arrays with ByteArrayDeserializer."),
        ("kafka.enable.auto.commit", "Kafka option 'enable.auto.commit' is not supported"),
        ("Kafka.Interceptor.Classes", "Kafka option 'interceptor.classes' is not supported"),
    ],
)
def test_options_that_change_the_meaning_are_refused_as_by_kafka(name, message):
    with pytest.raises(OptionError) as raised:
        read_options(CaseInsensitiveDict({"path": "/a", name: "x"}))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(OptionError, match=r"'startingofset'.*'startingOffsets'"):
        read_options(options(path="/a", startingOfset="earliest"))


def test_a_missing_path_says_how_to_give_one_in_sql_too():
    with pytest.raises(OptionError, match=r"WITH \(path = .*CREATE TEMPORARY VIEW"):
        read_options(options(subscribe="t"))


# What CREATE TABLE ... OPTIONS(path '/x', subscribe 'q') COMMENT 'c' TBLPROPERTIES('my.p'='1') delivers.
CREATE_TABLE = {
    "location": "file:/x",
    "subscribe": "q",
    "option.subscribe": "q",
    "comment": "c",
    "owner": "me",
    "my.p": "1",
    "path": "file:/x",
    "provider": "segmentlog",
}


def test_a_table_may_have_properties_that_are_no_options():
    parsed = read_options(CaseInsensitiveDict(CREATE_TABLE))
    assert (parsed.paths, parsed.subscribe) == (("file:/x",), ("q",))


def test_a_wrong_option_of_a_table_is_still_refused():
    with pytest.raises(OptionError, match="subscribes"):
        read_options(CaseInsensitiveDict(CREATE_TABLE | {"subscribes": "q", "option.subscribes": "q"}))


def test_a_table_may_be_made_without_a_path():
    read_options(options(owner="me", provider="segmentlog"))
