"""The keys of encrypted segments: each has its own data key, which an RSA key wraps.

The plugin wraps with RSA-OAEP (RFC 8017, 7.1) with SHA3-512 as hash and in MGF1, and an empty label. ``cryptography``
offers no such combination, so that it loads the key, and the numbers are used here.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from storage_core.errors import OptionError, UnreadableError
from storage_core.filesystem import absolute_path
from storage_core.options.storage_options import KEY_FILE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from storage_core.filesystem import ReadableFileSystem
    from storage_core.tier.aiven_manifest import Encryption


_MAX_KEY_FILE_BYTES: Final = 64 << 10
_MAX_KEY_BITS: Final = 16_384
_HASH_BYTES: Final = 64
_DATA_KEY_BYTES: Final = 32
_LABEL_HASH: Final = hashlib.sha3_512().digest()
_MOST_CIPHERS: Final = 1024


class DataKeys:
    """The ciphers of segments, by the key files that ``remoteStorageKeyFile`` names.

    Args:
        filesystem: Where the key files are.
        key_file: The path of a PEM file for all key ids, or ``id=path`` pairs separated by commas; None without keys.
    """

    def __init__(self, filesystem: ReadableFileSystem, key_file: str | None) -> None:
        self._filesystem = filesystem
        self._paths = _key_paths(key_file)
        self._keys: dict[str, RSAPrivateKey] = {}
        self._ciphers: dict[bytes, AESGCM] = {}

    def cipher(self, encryption: Encryption, path: str) -> AESGCM:
        """Return the cipher of a segment whose manifest is at ``path``.

        Raises:
            UnreadableError: Its key is not given, or is not the one that the segment was encrypted with.
            OptionError: The key file does not exist or holds no RSA key, or ``cryptography`` is not installed.
        """
        known = self._ciphers.get(encryption.wrapped_key)
        if known is not None:
            return known
        key_id = encryption.key_id
        key_path = self._paths.get(key_id) or self._paths.get(None)
        if key_path is None:
            given = ", ".join(map(str, self._paths)) or "none"
            message = f"Expected key {key_id!r}, which this segment is encrypted with, found {given}."
            raise UnreadableError(
                f"{message} Set {KEY_FILE} to its PEM file, or to {key_id}=<path>.", path=path
            )
        aesgcm = _require_cryptography()
        data_key = unwrap(self._private_key(key_path), encryption.wrapped_key)
        if data_key is None:
            message = f"Expected key {key_id!r} in {key_path}, found a key that does not open this segment."
            raise UnreadableError(f"{message} Check {KEY_FILE}.", path=path)
        if len(self._ciphers) >= _MOST_CIPHERS:
            self._ciphers.clear()
        return self._ciphers.setdefault(encryption.wrapped_key, aesgcm(data_key))

    def _private_key(self, key_path: str) -> RSAPrivateKey:
        if key_path not in self._keys:
            data = self._filesystem.read_file(key_path, _MAX_KEY_FILE_BYTES)
            if data is None:
                raise OptionError(f"{KEY_FILE} names a file that does not exist.", path=key_path)
            self._keys[key_path] = _load_private_key(data, key_path)
        return self._keys[key_path]


def _key_paths(key_file: str | None) -> dict[str | None, str]:
    """Return the paths of key files by key id; None stands for any id."""
    if not key_file:
        return {}
    pairs = [pair.strip().partition("=") for pair in key_file.split(",")]
    if all(key_id and path and "/" not in key_id for key_id, _, path in pairs):
        return {key_id: absolute_path(path) for key_id, _, path in pairs}
    return {None: absolute_path(key_file)}


def _require_cryptography() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  (an optional library)
    except ImportError as error:
        raise OptionError(
            "Encrypted segments need cryptography, which is not installed: pip install 'spark-segmentlog[tiered]'."
        ) from error
    return AESGCM


def _load_private_key(data: bytes, path: str) -> RSAPrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  (an optional library)
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        # A check of the numbers takes longer than all else: a wrong one opens nothing.
        key = load_pem_private_key(data, password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The cause may quote the file.
        key = None
    if not isinstance(key, RSAPrivateKey) or key.key_size > _MAX_KEY_BITS:
        raise OptionError(
            f"Expected a private RSA key in PEM format, without a password, as {KEY_FILE}, found something else.",
            path=path,
        )
    return key


def unwrap(key: RSAPrivateKey, wrapped: bytes) -> bytes | None:
    """Unwrap a data key.

    Returns:
        The key; None if it was wrapped with another RSA key, or is damaged: nothing says which.
    """
    numbers = key.private_numbers()
    modulus = numbers.public_numbers.n
    size_bytes = (key.key_size + 7) // 8
    number = int.from_bytes(wrapped, "big")
    if numbers.p * numbers.q != modulus or size_bytes < 2 * _HASH_BYTES + 2:
        return None
    if len(wrapped) != size_bytes or number >= modulus:
        return None
    # By the Chinese remainder theorem, four times as fast as with the modulus.
    first, second = pow(number, numbers.dmp1, numbers.p), pow(number, numbers.dmq1, numbers.q)
    message = second + numbers.q * ((first - second) * numbers.iqmp % numbers.p)
    data_key = _without_padding(message.to_bytes(size_bytes, "big"))
    return data_key if data_key is not None and len(data_key) == _DATA_KEY_BYTES else None


def _without_padding(message: bytes) -> bytes | None:
    """Undo EME-OAEP (RFC 8017, 7.1.2, step 3), or return None."""
    masked_seed, masked_block = message[1 : 1 + _HASH_BYTES], message[1 + _HASH_BYTES :]
    seed = _xor(masked_seed, _mask(masked_block, _HASH_BYTES))
    block = _xor(masked_block, _mask(seed, len(masked_block)))
    rest = block[_HASH_BYTES:].lstrip(b"\0")
    is_padded = hmac.compare_digest(block[:_HASH_BYTES], _LABEL_HASH) and message[0] == 0
    return rest[1:] if is_padded and rest.startswith(b"\x01") else None


def _mask(seed: bytes, size_bytes: int) -> bytes:
    """Return the mask that MGF1 makes of a seed."""
    blocks = (
        hashlib.sha3_512(seed + counter.to_bytes(4, "big")).digest()
        for counter in range(-(-size_bytes // _HASH_BYTES))
    )
    return b"".join(blocks)[:size_bytes]


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(one ^ two for one, two in zip(first, second, strict=True))
