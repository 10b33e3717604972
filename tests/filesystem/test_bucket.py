"""How obstore is told which store it is, and whose credentials it takes."""

from __future__ import annotations

import datetime as dt
import sys
import time
from types import SimpleNamespace

import boto3
import pytest

from storage_core.errors import OptionError, StorageError
from storage_core.filesystem.bucket import ObstoreBucket
from storage_core.options.storage_options import NO_STORAGE_OPTIONS, StorageOptions
from tests.object_stores.object_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, Rule

SECRET = "aHVzaC1hbmQtdGVsbA=="


def where(bucket, **options):
    """Return the options of a bucket without its credentials."""
    return StorageOptions.of(
        {"s3.endpoint": bucket.storage_options["s3.endpoint"], "s3.region": REGION, **options}
    )


@pytest.fixture(autouse=True)
def _no_ambient_credentials(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    path = tmp_path / "credentials"
    path.write_text(
        f"[mine]\naws_access_key_id = {ACCESS_KEY_ID}\naws_secret_access_key = {SECRET_ACCESS_KEY}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


def test_credentials_of_the_environment(quick_bucket, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", quick_bucket.storage_options["s3.endpoint"])
    assert ObstoreBucket(quick_bucket.uri(), NO_STORAGE_OPTIONS).head("none") is None
    # An option goes before the environment.
    options = StorageOptions.of({"s3.access-key-id": "another", "s3.secret-access-key": "x"})
    with pytest.raises(Exception, match="may not"):
        ObstoreBucket(quick_bucket.uri(), options).head("none")


def test_a_line_break_in_a_token_of_the_environment(quick_bucket, monkeypatch):
    # obstore panics.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{SECRET}\n")
    for ask in (lambda bucket: bucket.head("none"), lambda bucket: list(bucket.list(""))):
        with pytest.raises(StorageError) as caught:
            ask(ObstoreBucket(quick_bucket.uri(), where(quick_bucket)))
        assert SECRET not in str(caught.value)


@pytest.mark.usefixtures("profiles")
def test_credentials_of_a_profile(quick_bucket, monkeypatch):
    options = where(quick_bucket, **{"s3.profile-name": "mine"})
    assert ObstoreBucket(quick_bucket.uri(), options).head("none") is None
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert ObstoreBucket(quick_bucket.uri(), where(quick_bucket)).head("none") is None


@pytest.mark.usefixtures("profiles")
def test_a_role_that_is_assumed(quick_bucket, monkeypatch):
    asked = []

    def assume_role(**arguments):
        asked.append(arguments)
        expiration = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        return {
            "Credentials": {
                "AccessKeyId": ACCESS_KEY_ID,
                "SecretAccessKey": SECRET_ACCESS_KEY,
                "SessionToken": "t",
                "Expiration": expiration,
            }
        }

    monkeypatch.setattr(boto3.Session, "client", lambda *_: SimpleNamespace(assume_role=assume_role))
    options = where(quick_bucket, **{"s3.role-arn": "arn:of-a-role", "s3.profile-name": "mine"})
    assert ObstoreBucket(quick_bucket.uri(), options).head("none") is None
    assert asked == [{"RoleArn": "arn:of-a-role", "RoleSessionName": "segmentlog"}]


@pytest.mark.usefixtures("profiles")
def test_a_profile_that_does_not_exist(quick_bucket):
    with pytest.raises(OptionError, match=f"{quick_bucket.uri()}: ProfileNotFound"):
        ObstoreBucket(quick_bucket.uri(), where(quick_bucket, **{"s3.profile-name": "none"}))


def test_without_boto3_one_line_says_what_to_install(quick_bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(OptionError, match="pip install boto3"):
        ObstoreBucket(quick_bucket.uri(), where(quick_bucket, **{"s3.profile-name": "mine"}))


def test_requests_without_a_signature(quick_bucket):
    quick_bucket.is_public = True
    options = where(quick_bucket, **{"s3.anonymous": "true"})
    assert ObstoreBucket(quick_bucket.uri(), options).head("none") is None


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("gs://bucket", {"gcs.oauth2.token": SECRET}),
        ("gs://bucket", {"gcs.service.host": "http://127.0.0.1:4443", "gcs.anonymous": "true"}),
        ("az://container", {"adls.account-name": "account", "adls.account-key": SECRET}),
        ("abfss://container@account.dfs.core.windows.net", {"adls.sas-token": "sv=2026&sig=x"}),
        ("az://container", {"adls.account-host": "account.blob.core.windows.net", "adls.account-name": "a"}),
        (
            "s3://bucket",
            {"s3.access-key-id": "a", "s3.secret-access-key": SECRET, "aws_request_payer": "true"},
        ),
        ("s3://bucket", {"s3.proxy-uri": "http://proxy:3128", "s3.connect-timeout": 2, "aws_timeout": "3s"}),
    ],
)
def test_stores_are_opened_without_a_request(uri, options):
    bucket = ObstoreBucket(uri, StorageOptions.of(options))
    assert SECRET not in f"{bucket!r}{bucket._store!r}"


@pytest.mark.parametrize(
    ("uri", "options", "said"),
    [
        ("s3://bucket", {"aws_nonsense": "x"}, "'nonsense' is no option of this kind of store"),
        (
            "az://container",
            {"adls.account-name": "a", "adls.account-key": "not base64, " + SECRET},
            "do not fit",
        ),
        ("s3://bucket", {"aws_skip_signature": SECRET}, "do not fit"),
    ],
)
def test_what_a_store_refuses_is_said_without_a_value(uri, options, said):
    with pytest.raises(OptionError, match=said) as caught:
        ObstoreBucket(uri, StorageOptions.of(options))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def pause(request, answer):
    time.sleep(0.5)
    return answer()


def test_an_answer_that_pauses_is_asked_for_again(quick_bucket):
    quick_bucket.put("a", b"0123456789")
    options = StorageOptions.of({**quick_bucket.storage_options, "s3.request-timeout": 0.25})
    bucket = ObstoreBucket(quick_bucket.uri(), options)
    (((_, listed),),) = bucket.list("")
    quick_bucket.rules.append(Rule(pause, kind="GET"))
    assert bytes(bucket.get("a", 0, 10, listed)) == b"0123456789"
    assert quick_bucket.rules[0]._seen[""] > 1
