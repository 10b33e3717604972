"""The options that reach an object store: their names, what obstore gets, and what is said of wrong ones."""

from __future__ import annotations

import pickle

import pytest

from storage_core.errors import OptionError
from storage_core.options.storage_options import (
    NO_STORAGE_OPTIONS,
    STORAGE_OPTIONS,
    StorageOptions,
    is_storage_option,
)

SECRET = "hush-and-tell-nobody"


def test_names_of_pyiceberg_become_keys_of_obstore():
    options = StorageOptions.of(
        {
            "s3.endpoint": "http://127.0.0.1:9000",
            "s3.access-key-id": "key",
            "s3.anonymous": True,
            "s3.connect-timeout": "5.5",
            "s3.proxy-uri": "http://proxy:3128",
            "aws_sts_endpoint": "https://sts",
            "adls.account-name": "account",
            "gcs.oauth2.token": "token",
        }
    )
    assert options.keys_for("s3") == (
        {
            "endpoint": "http://127.0.0.1:9000",
            "access_key_id": "key",
            "skip_signature": True,
            "sts_endpoint": "https://sts",
        },
        {"connect_timeout": 5.5, "proxy_url": "http://proxy:3128"},
    )
    assert options.keys_for("gs") == ({"bearer_token": "token"}, {})
    for scheme in ("az", "abfs", "abfss"):
        assert options.keys_for(scheme) == ({"account_name": "account"}, {})


def test_what_is_tried_again_is_bounded():
    assert (NO_STORAGE_OPTIONS.max_retries, NO_STORAGE_OPTIONS.timeout_seconds) == (8, 120)
    options = StorageOptions.of({"storage.max-retries": 0, "storage.timeout": "2.5"})
    assert (options.max_retries, options.timeout_seconds) == (0, 2.5)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("s3.acess-key-id", "s3.access-key-id"),
        ("fs.s3a.access.key", "s3.access-key-id"),
        ("fs.s3a.secret.key", "s3.secret-access-key"),
        ("spark.hadoop.fs.s3a.endpoint", "s3.endpoint"),
        ("spark.hadoop.fs.s3a.session.token", "s3.session-token"),
        ("fs.gs.auth.service.account", "gcs.service-account"),
        ("fs.azure.account.key", "adls.account-key"),
        ("AWS_ACCESS_KEY_ID", "s3.access-key-id"),
        ("AWS_SECRET_ACCESS_KEY", "s3.secret-access-key"),
        ("AWS_REGION", "s3.region"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "adls.account-key"),
        ("spark.hadoop.io.file.buffer.size", "s3.*"),
        ("storage.max-retry", "storage.max-retries"),
    ],
)
def test_an_unknown_name_is_refused_with_ours(name, near):
    with pytest.raises(OptionError) as caught:
        StorageOptions.of({name: SECRET})
    assert repr(name) in str(caught.value)
    assert near in str(caught.value)
    assert SECRET not in str(caught.value)
    assert is_storage_option(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s3.anonymous", "yes"),
        ("s3.connect-timeout", "-1"),
        ("s3.request-timeout", "nan"),
        ("storage.timeout", "soon"),
        ("storage.max-retries", "1.5"),
        ("storage.max-retries", "100000"),
        ("s3.region", None),
        ("s3.session-token", "soon\n"),
        ("s3.secret-access-key", "soon\u00e9"),
        ("aws_session_token", "soon\r"),
    ],
)
def test_a_malformed_value_is_refused_without_showing_it(name, value):
    with pytest.raises(OptionError, match=f"storage option {name}") as caught:
        StorageOptions.of({name: value})
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert "soon" not in str(caught.value)


@pytest.mark.parametrize("option", STORAGE_OPTIONS)
def test_no_representation_shows_a_value(option):
    options = StorageOptions(((option.name, SECRET),))
    assert SECRET not in f"{options!r}{options!s}{[options]}"
    assert pickle.loads(pickle.dumps(options)) == options
    assert is_storage_option(option.name)


def test_other_options_are_no_storage_options():
    for name in ("startingOffsets", "path", "view", "s3", "azure", "filesystem"):
        assert not is_storage_option(name)
