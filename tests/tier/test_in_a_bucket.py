"""Tiers in a bucket, which every read is shown as log directories, and the keys that open encrypted ones."""

from __future__ import annotations

import pytest

from storage_core import explain, read_table
from storage_core.cli.main import run
from storage_core.errors import OptionError, UnreadableError
from tests.tier.uploads import put_aiven, put_local, uploads_of


@pytest.fixture
def bucket(quick_bucket):
    """Return the quicker store: what is tested is above it."""
    return quick_bucket


@pytest.fixture
def uploads(source):
    return uploads_of(source / "orders-0", read_table(source, view="partitions")["logEndOffset"][0].as_py())


@pytest.fixture
def encrypted(uploads, bucket, tmp_path, public_key):
    for each in uploads:
        put_aiven(tmp_path, each, "zstd-aes", public_key=public_key)
    return bucket.put_tree(tmp_path, "tier")


def test_a_tier_is_a_log_directory(source, uploads, bucket, tmp_path):
    for each in uploads:
        put_local(tmp_path, each)
    uri = bucket.put_tree(tmp_path, "tier")
    assert read_table(uri, **bucket.storage_options).equals(read_table(source))
    assert read_table(tmp_path).equals(read_table(source))
    assert explain(uri, **bucket.storage_options).totals.partitions == 1


@pytest.mark.parametrize("form", ["{}", "other=/nowhere,key1={}"])
def test_the_key_of_a_tier_is_an_option(source, encrypted, bucket, key_file, form, capfd):
    with pytest.raises(UnreadableError, match="Set remoteStorageKeyFile"):
        read_table(encrypted, **bucket.storage_options)
    given = form.format(key_file)
    options = {**bucket.storage_options, "remote_storage_key_file": given}
    assert read_table(encrypted, **options).equals(read_table(source))

    flags = [f"--storage-option={name}={value}" for name, value in bucket.storage_options.items()]
    with pytest.raises(SystemExit):
        run(["verify", encrypted, "--deep", *flags, "--remote-storage-key-file", given])
    assert "orders-0" in capfd.readouterr().out


def test_a_key_in_the_place_of_its_file_is_not_repeated(encrypted, key_file):
    with open(key_file, encoding="ascii") as file:
        key = file.read()
    with pytest.raises(OptionError, match="remoteStorageKeyFile holds no path") as raised:
        read_table(encrypted, remote_storage_key_file=key)
    assert key[40:60] not in str(raised.value)
