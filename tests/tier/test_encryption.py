"""Keys: which of them opens what, and what is said if none does."""

from __future__ import annotations

import builtins

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import storage_core
from storage_core.errors import OptionError, SegmentLogError, UnreadableError
from storage_core.tier.data_keys import unwrap
from tests.tier.conftest import read, values_of
from tests.tier.uploads import put_aiven, upload, uploads_of, wrap


@pytest.fixture
def tier(tmp_path, public_key):
    root = tmp_path / "tier"
    put_aiven(root, upload(0, 30), "aes", public_key=public_key)
    return root


def pem(key, path, password=None):
    encryption = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    )
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    return str(path)


def test_a_key_file_opens_any_key_id(tier, key_file):
    assert len(values_of(tier, key_file=key_file)) == 30


def test_pairs_name_a_file_for_each_key_id(tier, key_file, tmp_path):
    other = pem(rsa.generate_private_key(public_exponent=65537, key_size=2048), tmp_path / "other.pem")
    assert len(values_of(tier, key_file=f"key0={other}, key1={key_file}")) == 30
    with pytest.raises(UnreadableError, match=r"'key1'.*does not open"):
        values_of(tier, key_file=f"key0={key_file},key1={other}")


@pytest.mark.parametrize("given", [None, "", "key0={key_file}"])
def test_a_key_that_is_not_given_is_named(tier, key_file, given):
    given = given and given.format(key_file=key_file)
    with pytest.raises(UnreadableError, match=r"'key1'.*remoteStorageKeyFile.*key1=<path>") as caught:
        values_of(tier, key_file=given)
    assert ".rsm-manifest" in caught.value.path


def test_a_wrong_key_does_not_open_a_segment(tier, tmp_path):
    other = pem(rsa.generate_private_key(public_exponent=65537, key_size=2048), tmp_path / "other.pem")
    with pytest.raises(UnreadableError, match=r"'key1' in .*other.pem.*does not open this segment"):
        values_of(tier, key_file=other)


@pytest.mark.parametrize("kind", ["missing", "text", "ec", "password"])
def test_what_is_no_private_key_is_an_error_that_does_not_quote_it(tier, tmp_path, private_key, kind):
    path = tmp_path / "secret.pem"
    if kind == "text":
        path.write_text("SECRET")
    elif kind == "ec":
        pem(ec.generate_private_key(ec.SECP256R1()), path)
    elif kind == "password":
        pem(private_key, path, b"SECRET")
    with pytest.raises(OptionError, match=r"remoteStorageKeyFile.*secret\.pem") as caught:
        values_of(tier, key_file=str(path))
    assert "SECRET" not in "".join(map(str, (caught.value, caught.value.__cause__, caught.value.__context__)))


def test_without_the_library_one_line_says_what_to_install(tier, key_file, monkeypatch):
    def import_none(name, *args):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return original(name, *args)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", import_none)
    with pytest.raises(OptionError, match=r"pip install 'spark-segmentlog\[tiered\]'"):
        values_of(tier, key_file=key_file)


def test_a_damaged_wrapped_key_is_none_whatever_was_changed(private_key, public_key):
    wrapped = wrap(public_key, bytes(32))
    assert unwrap(private_key, wrapped) == bytes(32)
    for place in range(0, len(wrapped), 17):
        damaged = bytearray(wrapped)
        damaged[place] ^= 1
        assert unwrap(private_key, bytes(damaged)) is None
    for other in (b"", wrapped[1:], wrapped + b"\0", b"\xff" * len(wrapped), wrap(public_key, bytes(31))):
        assert unwrap(private_key, other) is None


@pytest.mark.cases(9, 9)
@pytest.mark.parametrize("place", ["vector", "text", "tag"])
@pytest.mark.parametrize("kind", ["aes", "zstd-aes"])
def test_a_changed_byte_is_an_error_that_names_the_object_and_the_chunk(
    tmp_path, public_key, key_file, kind, place
):
    log = put_aiven(tmp_path, upload(0, 200), kind, public_key=public_key, chunk_bytes=700)
    data = bytearray(log.read_bytes())
    position = {"vector": 0, "text": 40, "tag": len(data) - 1}[place]
    data[position] ^= 1
    log.write_bytes(data)
    with pytest.raises(SegmentLogError, match=r"Could not decode chunk \d+.*were changed") as caught:
        read(tmp_path, key_file)
    assert caught.value.path == str(log)
    assert caught.value.position_bytes <= position < caught.value.end_position_bytes


def test_a_damaged_index_is_not_needed(tmp_path, source, public_key, key_file):
    for each in uploads_of(source / "orders-0", 10**6):
        log = put_aiven(tmp_path, each, "aes", public_key=public_key)
        indexes = log.with_suffix(".indexes")
        indexes.write_bytes(bytes([indexes.read_bytes()[0] ^ 1]) + indexes.read_bytes()[1:])
    options = {"starting_timestamp": 1_700_000_002_000}
    assert read(tmp_path, key_file, **options).equals(storage_core.read_table(str(source), **options))
