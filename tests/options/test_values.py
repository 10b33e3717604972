from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_core.errors import OptionError
from storage_core.filesystem import absolute_path
from storage_core.options.paths import path_to_change, path_to_read, path_to_write, store_of
from storage_core.options.values import (
    parse_boolean,
    parse_choice,
    parse_columns,
    parse_count,
    parse_paths,
    parse_size_bytes,
    parse_topics,
)


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), ("true", True), (" FALSE ", False), (False, False)]
)
def test_booleans(value, expected):
    assert parse_boolean("useIndexes", value) is expected


@pytest.mark.parametrize("value", ["yes", "1", "", 1, 0, None])
def test_nothing_else_is_a_boolean(value):
    with pytest.raises(OptionError, match=r"^useIndexes is .*\. Use true or false\.$"):
        parse_boolean("useIndexes", value)


def test_choices_in_any_case():
    assert parse_choice("endingAt", " LOGEND ", ("logEnd", "highWatermark")) == "logEnd"
    for value in ("end", None, 1):
        with pytest.raises(OptionError, match=r"endingAt is .*Use logEnd or highWatermark\."):
            parse_choice("endingAt", value, ("logEnd", "highWatermark"))


@pytest.mark.parametrize(
    ("value", "expected"), [(7, 7), ("7", 7), (" +7 ", 7), ("9223372036854775807", 2**63 - 1)]
)
def test_counts(value, expected):
    assert parse_count("minPartitions", value) == expected


@pytest.mark.parametrize("value", [0, -1, "0", "-5"])
def test_counts_must_be_positive(value):
    with pytest.raises(OptionError, match=r"^maxrecordsperpartition must be positive"):
        parse_count("maxRecordsPerPartition", value, "maxrecordsperpartition")


@pytest.mark.parametrize("value", ["", "many", "1.5", 1.5, True, None, "1e3", "9223372036854775808", 2**63])
def test_nothing_else_is_a_count(value):
    with pytest.raises(OptionError, match=r"^minPartitions is .*Use a whole number above 0"):
        parse_count("minPartitions", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("10b", 10),
        ("64k", 65_536),
        ("64kb", 65_536),
        ("64 KiB", 65_536),
        ("128m", 134_217_728),
        ("1G", 2**30),
        ("1tb", 2**40),
        ("1p", 2**50),
    ],
)
def test_sizes(value, expected):
    assert parse_size_bytes("maxBytesPerPartition", value) == expected


@pytest.mark.parametrize(
    "value", [0, -1, "0", "0k", "-1k", "1.5g", "", "big", "k", True, None, "9999999p", 2**63]
)
def test_nothing_else_is_a_size(value):
    with pytest.raises(OptionError, match=r"^maxBytesPerPartition is .*such as 64k, 128m or 1g"):
        parse_size_bytes("maxBytesPerPartition", value)


@pytest.mark.parametrize("value", [" a, b ,,a ", ["a", "b"], ("a ", "b", "a")])
def test_topics(value):
    assert parse_topics("subscribe", value) == ("a", "b")


@pytest.mark.parametrize("value", ["", " , ", []])
def test_no_topics(value):
    with pytest.raises(
        OptionError, match=r"^No topics to subscribe to as specified value for option 'subscribe' is '"
    ):
        parse_topics("subscribe", value)


@pytest.mark.parametrize("value", [1, ["a", 1], {"a": 1}])
def test_topics_of_another_kind(value):
    with pytest.raises(OptionError, match="list of topic names"):
        parse_topics("subscribe", value)


@pytest.mark.parametrize("value", ["value, key", '["value","key"]', ["value", "key"]])
def test_columns(value):
    assert parse_columns("columns", value) == ("value", "key")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("key,key", "columns names 'key' twice"),
        ("", "names no column. Name some"),
        ("[]", "names no column"),
        ('["key"', "not a JSON list of column names"),
        ('["key",1]', "list of column names"),
        (5, "list of column names"),
    ],
)
def test_wrong_columns(value, message):
    with pytest.raises(OptionError) as raised:
        parse_columns("columns", value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("path", "/a,b", ("/a,b",)),
        ("path", "[a]", ("[a]",)),
        ("path", Path("/a"), ("/a",)),
        ("path", ["/a", Path("/b")], ("/a", "/b")),
        ("paths", '["/a","/b"]', ("/a", "/b")),
        ("paths", "/a", ("/a",)),
        ("path", "  ", ()),
        ("path", [], ()),
    ],
)
def test_paths(option, value, expected):
    assert parse_paths(option, value) == expected


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("path", 5, "list of paths"),
        ("path", ["/a", 5], "list of paths"),
        ("paths", '["/a"', "not a JSON list of paths"),
        ("path", "/a\0b", "NUL"),
        ("path", "dbfs:/logs", "has the scheme 'dbfs'"),
        ("path", "https://host/logs", "Expected a local path, or a URI of s3, s3a, s3n, gs"),
        ("path", "s3:/bucket", "has the scheme 's3' and no bucket. Use s3://<bucket>/<path>."),
        ("path", "s3:///logs", "has the scheme 's3' and no bucket"),
        ("path", "hdfs:/logs", "has the scheme 'hdfs'"),
        ("path", "HDFS:logs", "has the scheme 'hdfs'"),
        ("path", ["/a", "wasbs://c@a/x"], "has the scheme 'wasbs'"),
    ],
)
def test_wrong_paths(option, value, message):
    with pytest.raises(OptionError) as raised:
        parse_paths(option, value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b", "/a/b"),
        ("a:b", "a:b"),
        ("C:/logs", "C:/logs"),
        ("2026-01-01T00:00/x", "2026-01-01T00:00/x"),
        ("file:/a/b%20c", "/a/b c"),
        ("file:///a/b", "/a/b"),
        ("FILE://localhost/a", "/a"),
    ],
)
def test_file_uris_are_paths(text, expected):
    assert path_to_read(text) == path_to_write(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("S3A://Bucket/A//", "s3://Bucket/A"),
        ("s3n://bucket/", "s3://bucket"),
        ("gs://bucket/a b/%20", "gs://bucket/a b/%20"),
        ("az://container/a", "az://container/a"),
        ("abfs://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("hdfs://host:8020/a", "hdfs://host:8020/a"),
        ("hdfs:///a/", "hdfs:///a"),
        ("viewfs://cluster/a", "viewfs://cluster/a"),
    ],
)
def test_a_store_has_one_uri_for_each_place(text, expected):
    assert path_to_read(text) == expected
    assert parse_paths("path", text) == (text,)
    assert absolute_path(expected) == expected


@pytest.mark.parametrize(
    ("uri", "store"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b", "s3://bucket"),
        ("hdfs://host:8020/a", "hdfs://host:8020"),
        ("hdfs:///a/b", "hdfs:///"),
    ],
)
def test_what_is_joined_to_a_store_is_below_it(uri, store):
    assert store_of(uri) == store
    assert store_of(os.path.join(store, "a")) == store


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("s3a://bucket/logs", "aws s3 sync <directory> s3://bucket/logs"),
        ("gs://bucket/logs", "gcloud storage rsync --recursive <directory> gs://bucket/logs"),
        ("az://container/logs", "azcopy sync <directory> az://container/logs (by its https URL)"),
        ("hdfs:/logs", "hadoop distcp <directory> hdfs:/logs"),
        ("dbfs:/logs", "copy <directory> to dbfs:/logs"),
    ],
)
def test_what_to_do_instead_of_writing_to_a_store(text, command):
    with pytest.raises(OptionError, match="only local and mounted file systems are written to") as raised:
        path_to_write(text)
    assert str(raised.value).endswith(command)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("s3n://bucket/logs", "aws s3 sync s3://bucket/logs <directory>"),
        ("hdfs://host/logs", "hadoop distcp hdfs://host/logs <directory>"),
        ("dbfs:/logs", "copy dbfs:/logs to <directory>"),
    ],
)
def test_what_to_do_instead_of_changing_what_is_in_a_store(text, command):
    with pytest.raises(OptionError, match="only local and mounted file systems are changed") as raised:
        path_to_change(text)
    assert str(raised.value).endswith(command)
    assert path_to_change("file:/a") == "/a"


@pytest.mark.parametrize(
    "text",
    [
        "s3a://AKIAPLANTED:planted-secret@bucket/logs",
        "abfss://c@a.dfs.core.windows.net/x?sv=1&sig=planted-secret",
        "s3://bucket/a?X-Amz-Signature=planted-secret",
        "s3://bucket/a?AWSAccessKeyId=a&Signature=planted-secret",
        "s3://bucket/a?X-Amz-Security-Token=planted-secret",
    ],
)
@pytest.mark.parametrize("take", [path_to_read, path_to_write, path_to_change])
def test_credentials_in_a_uri_are_refused_and_not_repeated(take, text):
    with pytest.raises(OptionError, match="has credentials in it") as raised:
        take(text)
    assert "planted" not in str(raised.value).lower()


def test_file_uris_of_other_hosts_are_refused():
    with pytest.raises(OptionError, match="names the host 'server'"):
        path_to_read("file://server/a")
