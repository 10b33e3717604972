"""Options that reach an object store: taken by every read under their own names or as a mapping, and never shown."""

from __future__ import annotations

import pickle

import pytest

from storage_core.errors import OptionError
from storage_core.options import parse_read_options, parse_stream_options
from storage_core.options.option import option_key
from storage_core.options.read_options import READ_OPTIONS
from storage_core.options.storage_options import NO_STORAGE_OPTIONS, STORAGE_OPTIONS, split_storage_options

SECRETS = {"s3.access-key-id": "planted-key", "s3.secret-access-key": "planted-secret"}


@pytest.mark.parametrize("parse", [parse_read_options, lambda raw: parse_stream_options(raw).read])
@pytest.mark.parametrize(
    "given",
    [
        SECRETS,
        {"S3.Access-Key-Id": "planted-key", "s3.SECRET-access-key": "planted-secret"},
        {"storage_options": SECRETS},
        {"storageOptions": {"s3.access-key-id": "planted-key"}, "s3.secret-access-key": "planted-secret"},
        {"storageoptions": SECRETS, **SECRETS, "s3.session-token": None},
    ],
)
def test_names_of_their_own_and_a_mapping_mean_the_same(parse, given):
    options = parse({"path": "s3://bucket", "subscribe": "orders", **given})
    assert dict(options.storage.values) == SECRETS
    assert options.subscribe == ("orders",)
    assert "planted" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_reads_without_them_share_none():
    assert parse_read_options({"path": "/a"}).storage is NO_STORAGE_OPTIONS
    assert parse_read_options({"path": "/a", "storage_options": {}}).storage is NO_STORAGE_OPTIONS
    assert parse_read_options({"path": "/a", "storage_options": None}).storage is NO_STORAGE_OPTIONS


def test_keys_of_obstore_are_taken():
    assert split_storage_options({"aws_endpoint": "http://a", "AZURE_STORAGE_ACCOUNT_NAME": "b"})[
        0
    ].values == (
        ("aws_endpoint", "http://a"),
        ("azure_storage_account_name", "b"),
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"s3.endpont": "planted"}, "Did you mean s3.endpoint?"),
        ({"fs.s3a.access.key": "planted"}, "Set s3.access-key-id"),
        ({"spark.hadoop.fs.s3a.secret.key": "planted"}, "Set s3.secret-access-key"),
        ({"fs.gs.auth.service.account.json.keyfile": "planted"}, "gcs."),
        ({"fs.azure.account.key.a.dfs.core.windows.net": "planted"}, "adls."),
        ({"s3.anonymous": "planted"}, "true or false"),
        ({"s3.access-key-id": ["planted"]}, "found list"),
        (
            {"s3.region": "planted", "storage_options": {"s3.region": "planted-too"}},
            "given twice, with two values",
        ),
        ({"storage_options": "planted"}, "Use a mapping of names to values"),
        ({"storage_options": {1: "planted"}}, "Use a mapping of names to values"),
        ({"storage_options": {"subscribe": "planted"}}, "Unknown storage option 'subscribe'"),
    ],
)
def test_mistakes_are_named_without_values(given, message):
    with pytest.raises(OptionError) as raised:
        parse_read_options({"path": "s3://bucket", **given})
    assert message in str(raised.value)
    assert "planted" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_no_name_is_that_of_a_read_option():
    storage = {option_key(option.name) for option in STORAGE_OPTIONS}
    reads = {option_key(name) for option in READ_OPTIONS for name in (option.name, *option.aliases)}
    assert len(storage) == len(STORAGE_OPTIONS)
    assert storage.isdisjoint(reads)
