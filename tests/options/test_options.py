from __future__ import annotations

import dataclasses
import datetime as dt
import pickle

import pytest

from storage_core.errors import OptionError
from storage_core.options import (
    READ_OPTIONS,
    ReadOptions,
    StreamOptions,
    TriggerLimits,
    parse_read_options,
    parse_stream_options,
)
from storage_core.options.bounds import EarliestBound, LatestBound, OffsetsBound, TimestampBound
from storage_core.options.option import nearest_hint, option_key
from storage_core.options.predicate import Comparison, IsNull, Not
from storage_core.options.read_options import find_option

NOW_MS = 1_767_225_600_000


def parse(given=None, **more):
    return parse_read_options({"path": "/a", **(given or {}), **more}, now_ms=NOW_MS)


def test_defaults_may_be_given():
    documented = {
        option.name: option.default for option in READ_OPTIONS if option.default and option.only != "stream"
    }
    assert parse(documented) == parse()


def test_what_is_read_without_options():
    options = parse()
    assert (options.starting, options.ending) == (EarliestBound(), LatestBound())
    assert (options.fail_on_data_loss, options.use_indexes, options.include_headers) == (True, True, False)
    assert options.max_decompressed_batch_bytes == 64 << 20
    assert (options.isolation_level, options.ending_at) == ("read_uncommitted", "logEnd")
    assert (options.subscribe, options.columns, options.where, options.min_partitions) == (None,) * 4


def test_everything_as_spark_passes_it():
    given = {
        "path": "/a,/b",
        "subscribe": "orders, payments",
        "startingoffsets": '{"orders":{"0":5}}',
        "endingtimestamp": "-10 minutes",
        "startingoffsetsbytimestampstrategy": "LATEST",
        "kafka.isolation.level": "read_committed",
        "failondataloss": "false",
        "minpartitions": "3",
        "maxrecordsperpartition": "1000",
        "maxbytesperpartition": "64m",
        "endingat": "highwatermark",
        "useindexes": "false",
        "maxdecompressedbatchbytes": "1g",
        "includeheaders": "true",
        "includemetadata": "true",
        "columns": "offset,headers,_metadata",
        "followsymlinks": "true",
        "filterpushdown": "true",
        "mode": "failfast",
        "view": "records",
        "timezone": "UTC",
    }
    assert parse_read_options(given, now_ms=NOW_MS) == dataclasses.replace(
        parse(),
        paths=("/a,/b",),
        subscribe=("orders", "payments"),
        starting=OffsetsBound({("orders", 0): 5}),
        ending=TimestampBound(NOW_MS - 600_000),
        starting_timestamp_strategy="latest",
        isolation_level="read_committed",
        fail_on_data_loss=False,
        min_partitions=3,
        max_records_per_partition=1000,
        max_bytes_per_partition=64 << 20,
        ending_at="highWatermark",
        use_indexes=False,
        max_decompressed_batch_bytes=1 << 30,
        include_headers=True,
        include_metadata=True,
        columns=("offset", "headers", "_metadata"),
        follow_symlinks=True,
        filter_pushdown=True,
    )


def test_everything_as_python_passes_it():
    options = parse_read_options(
        {
            "path": ["/a", "/b"],
            "subscribe": ["orders"],
            "starting_timestamp": dt.datetime(2026, 1, 1),  # noqa: DTZ001  (the option time_zone decides)
            "time_zone": "+01:00",
            "ending_offsets": {"orders": {0: 9}},
            "isolation_level": "read_committed",
            "fail_on_data_loss": False,
            "min_partitions": 3,
            "columns": ["offset"],
            "max_bytes_per_partition": None,
        }
    )
    assert options.paths == ("/a", "/b")
    assert options.starting == TimestampBound(NOW_MS - 3_600_000)
    assert options.ending == OffsetsBound({("orders", 0): 9})
    assert options.isolation_level == "read_committed"
    assert not options.fail_on_data_loss
    assert options.min_partitions == 3
    assert options.columns == ("offset",)
    assert options.max_bytes_per_partition is None


def test_pattern_and_assignment():
    assert parse(subscribePattern=" ord.* ").subscribe_pattern == "ord.*"
    assert parse(assign='{"orders":[1,0]}').assign == {"orders": (0, 1)}


def test_lists_of_paths_as_spark_passes_them():
    assert parse_read_options({"paths": '["/a","/b"]'}).paths == ("/a", "/b")


def test_options_can_be_sent_to_other_processes():
    options = parse(assign='{"orders":[0]}', startingOffsets='{"orders":{"0":5}}')
    assert pickle.loads(pickle.dumps(options)) == options


def test_now_is_the_clock_if_it_is_not_given():
    before_ms = dt.datetime.now(dt.UTC).timestamp() * 1000
    start = parse_read_options({"path": "/a", "startingTimestamp": "-0 s"}).starting
    assert isinstance(start, TimestampBound)
    assert before_ms - 1 <= start.timestamp_ms <= before_ms + 60_000


def test_one_option_under_two_names():
    assert parse({"isolationLevel": "read_committed", "kafka.isolation.level": "READ_COMMITTED"})
    assert parse({"minPartitions": 3, "min_partitions": 3}).min_partitions == 3
    with pytest.raises(
        OptionError,
        match=r"'isolationLevel' and 'kafka\.isolation\.level' are the same option, .*Give it once",
    ):
        parse({"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"})
    with pytest.raises(OptionError, match=r"'path' and 'paths' are the same option"):
        parse({"path": "/a", "paths": '["/b"]'})


@pytest.mark.parametrize("given", [{}, {"path": None}, {"path": " "}, {"path": []}])
def test_a_missing_path_says_how_to_give_one(given):
    with pytest.raises(OptionError) as raised:
        parse_read_options(given)
    for way in ('.load("/path")', '.option("path", "/path")', "WITH (path = '/path')", "TEMPORARY VIEW"):
        assert way in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "earliest"}, "Unknown option 'startingOfsets'. Did you mean 'startingOffsets'?"),
        (
            {"subscribe": "a", "assign": '{"a":[0]}'},
            "Only one of the following options can be specified for Kafka source: subscribe, subscribePattern, assign",
        ),
        ({"subscribe": ","}, "No topics to subscribe to as specified value for option 'subscribe' is ','"),
        ({"subscribePattern": ""}, "Pattern to subscribe is empty"),
        ({"subscribePattern": 5}, "Use the text of a regular expression"),
        ({"assign": "a"}, "No topicpartitions to assign"),
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "Use error or latest"),
        ({"isolationLevel": "serializable"}, "Use read_uncommitted or read_committed"),
        ({"failOnDataLoss": "no"}, "Use true or false"),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"maxRecordsPerPartition": "-1"}, "maxrecordsperpartition must be positive"),
        ({"maxBytesPerPartition": "0"}, "Use a positive number of bytes"),
        ({"maxDecompressedBatchBytes": "lots"}, "Use a positive number of bytes"),
        # Arrow's columns end at 2 GiB.
        ({"maxDecompressedBatchBytes": "2g"}, "Use at most 1073741824 bytes"),
        ({"endingAt": "now"}, "Use logEnd or highWatermark"),
        ({"columns": "offsets"}, "Did you mean 'offset'?"),
        ({"columns": "timestamp_type"}, "Did you mean 'timestampType'?"),
        ({"columns": "key,"}, "unknown column ''"),
        ({"columns": "headers"}, "Set includeHeaders to true"),
        ({"columns": "_metadata"}, "Set includeMetadata to true"),
        ({"timeZone": "Nowhere"}, "no known time zone"),
        ({"where": "offset >"}, "at character 9, its end"),
        ({"where": 5}, "the text of a condition or a Predicate, found 5"),
        ({"maxTimestampDisorder": "soon"}, "Use an interval such as '10 minutes'"),
        ({"path": "dbfs:/a"}, "has the scheme 'dbfs'"),
        ({"mode": "LENIENT"}, "Use FAILFAST or DROPMALFORMED or PERMISSIVE"),
        ({"view": "rows"}, "Use records or batches"),
        (
            {"view": "batches", "includeHeaders": "true"},
            "includeHeaders is for records, and view=batches has none",
        ),
        (
            {"view": "batches", "exact": "true"},
            "exact is for view=segments or partitions, found view=batches",
        ),
        ({"asOf": "2026-01-01"}, "asOf is for view=group_offsets, found view=records"),
    ],
)
def test_every_mistake_is_one_clear_line(given, message):
    with pytest.raises(OptionError) as raised:
        parse(given)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay", "pollInterval"]
)
def test_limits_of_micro_batches_are_for_streams(name):
    with pytest.raises(OptionError, match=rf"^Option '{name}' is for streams, and this is a batch read\."):
        parse({name: "5"})


def parse_stream(given=None, **more):
    return parse_stream_options({"path": "/a", **(given or {}), **more}, now_ms=NOW_MS)


def test_defaults_of_a_stream():
    assert parse_stream() == StreamOptions(
        dataclasses.replace(parse(), starting=LatestBound()), TriggerLimits(None, None, 900_000, None)
    )


def test_limits_of_a_stream():
    limits = parse_stream(
        maxOffsetsPerTrigger="500",
        minOffsetsPerTrigger="20",
        maxTriggerDelay="2 minutes",
        maxBytesPerTrigger="64m",
        pollInterval="5s",
    ).limits
    assert limits == TriggerLimits(500, 20, 120_000, 64 << 20, 5000)
    assert limits.are_given
    assert not parse_stream(maxTriggerDelay="1s").limits.are_given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingTimestamp": "5"}, "ending timestamp not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": '{"a":{"0":1}}'}, "ending timestamp not valid in streaming queries"),
        ({"view": "batches"}, "Option 'view' is for batch reads, and this is a stream"),
        ({"filterPushdown": "true"}, "Option 'filterPushdown' is for batch reads"),
        (
            {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 3},
            "The value of minOffsetPerTrigger(5) is higher than the maxOffsetsPerTrigger(3).",
        ),
        ({"where": "timestamp > '-10 minutes'"}, "which names a relative time"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger must not be negative"),
    ],
)
def test_what_streams_refuse(given, message):
    with pytest.raises(OptionError) as raised:
        parse_stream(given)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_stream_may_start_at_the_latest_offset_and_at_a_relative_time():
    assert parse_stream(startingOffsets='{"a":{"0":-1}}').read.starting == OffsetsBound({("a", 0): -1})
    assert parse_stream(startingTimestamp="-10 minutes").is_start_relative
    by_partition = '{"a":{"0":1000,"1":"%s"}}'
    assert parse_stream(startingOffsetsByTimestamp=by_partition % "-1 s").is_start_relative
    assert not parse_stream(startingOffsetsByTimestamp=by_partition % "2026-01-01").is_start_relative
    assert not parse_stream(startingTimestamp="5000").is_start_relative
    assert not parse_stream().is_start_relative
    assert parse_stream(endingAt="logEnd").is_end_given


def test_conditions_are_parsed_with_the_zone_and_the_clock_of_the_read():
    assert parse().where is None
    assert parse({"where": "offset > 5"}).where == Comparison("offset", ">", 5)
    in_berlin = parse({"where": "timestamp < '1970-01-01 01:00:00.001'", "timeZone": "Europe/Berlin"})
    assert in_berlin.where == Comparison("timestamp", "<", 1000)
    relative = parse_read_options({"path": "/a", "where": "timestamp > '-1 second'"}, now_ms=5000)
    assert relative.where == Comparison("timestamp", ">", 4_000_000)
    predicate = Not(IsNull("key"))
    assert parse({"where": predicate}).where is predicate


@pytest.mark.parametrize(
    ("given", "assumes_zone"),
    [
        ({}, False),
        ({"where": "offset > 5"}, False),
        ({"where": "timestamp > '2026-01-01'"}, True),
        ({"where": "timestamp > '2026-01-01T00:00:00Z' OR timestamp < '2020'"}, True),
        ({"where": "timestamp > '2026-01-01T00:00:00Z' AND timestamp > '-1 day'"}, False),
        ({"where": "timestamp > '2026-01-01'", "timeZone": "UTC"}, False),
        ({"where": "maxTimestamp > '2026-01-01'", "view": "batches"}, True),
        ({"where": Comparison("timestamp", ">", 5)}, False),
    ],
)
def test_a_condition_whose_times_name_no_zone(given, assumes_zone):
    assert parse(given).assumes_zone == assumes_zone


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED", "PERMISSIVE"])
def test_modes_in_any_case(mode):
    for given in (mode, mode.lower(), f" {mode.title()} "):
        assert parse({"mode": given}).mode == mode


def test_the_column_for_damage():
    assert (parse().mode, parse().corrupt_record_column) == ("FAILFAST", "_corrupt_record")
    named = parse({"mode": "permissive", "columnNameOfCorruptRecord": "Bad", "columns": "Bad,offset"})
    assert (named.corrupt_record_column, named.columns) == ("Bad", ("Bad", "offset"))
    # It is there in one mode only.
    with pytest.raises(OptionError, match="_corrupt_record"):
        parse({"mode": "DROPMALFORMED", "columns": "offset,_corrupt_record"})


@pytest.mark.parametrize("name", ["key", "OFFSET", "timestamptype", "Headers", "_metadata"])
def test_the_column_for_damage_is_none_of_the_records(name):
    with pytest.raises(OptionError, match="which is the name of a record's column"):
        parse({"mode": "PERMISSIVE", "columnNameOfCorruptRecord": name})


@pytest.mark.parametrize("name", ["", "  ", 5])
def test_the_column_for_damage_has_a_name(name):
    with pytest.raises(OptionError, match="Use the name of a column"):
        parse({"columnNameOfCorruptRecord": name})


def test_the_disorder_of_timestamps_is_an_interval():
    assert parse().max_timestamp_disorder_ms is None
    assert parse({"maxTimestampDisorder": "1 hour 30 minutes"}).max_timestamp_disorder_ms == 5_400_000
    assert parse({"max_timestamp_disorder": 0}).max_timestamp_disorder_ms == 0


# -- The registry --------


def test_where_the_schemas_are():
    assert (parse().schemas_paths, parse().schemas_topic) == (None, "_schemas")
    for reader in (
        {"keyFormat": "registry"},
        {"valueFormat": "avro", "valueSchemaId": 1},
        {"view": "schemas"},
    ):
        options = parse(schemasPath="/schemas", schemas_topic=" registry ", **reader)
        assert (options.schemas_paths, options.schemas_topic) == (("/schemas",), "registry")
    for value in ("a,b", ""):
        with pytest.raises(OptionError, match="schemasTopic"):
            parse(schemasTopic=value)


@pytest.mark.parametrize("name", ["schemasPath", "schemasTopic"])
@pytest.mark.parametrize(
    "formats", [{}, {"valueFormat": "json"}, {"valueFormat": "avro", "valueSchema": '"int"'}]
)
def test_where_schemas_are_is_refused_if_none_is_looked_up(name, formats):
    with pytest.raises(OptionError, match=f"{name} says where .* Set valueFormat or keyFormat to registry"):
        parse({name: "schemas", **formats})
    with pytest.raises(OptionError, match=f"{name} is for view=records or schemas, found view=segments"):
        parse({name: "schemas", "view": "segments"})


def test_no_name_stands_for_two_options():
    names = [option_key(name) for spec in READ_OPTIONS for name in (spec.name, *spec.aliases)]
    assert len(names) == len(set(names))


def test_every_option_is_documented():
    for spec in READ_OPTIONS:
        assert spec.doc.endswith(".")
        assert spec.kind.text
        assert "|" not in spec.doc + spec.kind.text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("startingTimestamp", "startingTimestamp"),
        ("startingtimestamp", "startingTimestamp"),
        ("STARTINGTIMESTAMP", "startingTimestamp"),
        ("starting_timestamp", "startingTimestamp"),
        ("kafka.isolation.level", "isolationLevel"),
        ("isolation_level", "isolationLevel"),
        ("paths", "path"),
        ("starting_offsets_by_timestamp_strategy", "startingOffsetsByTimestampStrategy"),
    ],
)
def test_names_in_any_form(name, expected):
    assert find_option(name).name == expected


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(
        OptionError, match=r"^Unknown option 'startingOfset'\. Did you mean 'startingOffsets'\?$"
    ):
        find_option("startingOfset")
    with pytest.raises(
        OptionError,
        match=r"^Unknown option 'zzz'\. Known are: asOf, assign, columnNameOfCorruptRecord, columns, ",
    ):
        find_option("zzz")


@pytest.mark.parametrize(
    ("word", "meant"), [("topic", "subscribe"), ("Partitions", "assign"), ("filter", "where")]
)
def test_words_of_other_tools_suggest_what_they_mean(word, meant):
    with pytest.raises(OptionError, match=rf"^Unknown option '{word}'\. Did you mean '{meant}'\?$"):
        find_option(word)


def test_hints():
    assert nearest_hint("ordres", ["orders", "payments"]) == " Did you mean 'orders'?"
    assert nearest_hint("x", ["orders", "Payments"]) == " Known are: orders, Payments."
    assert not nearest_hint("x", [])
    assert nearest_hint("x", [f"topic-{number:03}" for number in range(50)]).endswith(
        "topic-039 and 10 more."
    )


@pytest.mark.parametrize(("values", "is_of_streams"), [(ReadOptions, False), (TriggerLimits, True)])
def test_every_field_is_filled_by_an_option(values, is_of_streams):
    # Those of keys and values fill `ColumnChoice`.
    filled = {
        "value"
        if option.field.startswith("value_")
        else "key"
        if option.field.startswith("key_")
        else option.field
        for option in READ_OPTIONS
        if (option.only == "stream") == is_of_streams
    }
    assert {field.name for field in dataclasses.fields(values)} - {"assumes_zone"} == filled - {"zone"}
