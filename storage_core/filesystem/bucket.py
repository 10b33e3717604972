"""A bucket: the few requests that reads make of an object store, and obstore's answers to them.

obstore's asynchronous calls abort at the exit of Python, and its threads do not survive a fork: only synchronous calls
are used, by the process that made the first one.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from storage_core.errors import (
    FileReplacedError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
    StorageError,
    UnreadableError,
)
from storage_core.filesystem.file_lock import OwningProcess
from storage_core.filesystem.values import MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from storage_core.filesystem.values import BytesLike
    from storage_core.options.storage_options import StorageOptions

_Answer = TypeVar("_Answer")
_PAGE_KEYS: Final = 1000
# obstore waits a random time up to three times the last one.
_BACKOFF: Final = {
    "init_backoff": timedelta(milliseconds=100),
    "max_backoff": timedelta(seconds=5),
    "base": 3,
}
_LONGEST_PAUSE_OF_A_BODY_SECONDS: Final = 30.0
_ENDPOINT_VARIABLES: Final = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
    "GOOGLE_BASE_URL",
)


class StoredObject(NamedTuple):
    """What a listing says of an object.

    Attributes:
        etag: Which version of the object it is; empty if the store does not say.
    """

    size_bytes: int
    modified_ms: int
    etag: str


class Bucket(Protocol):
    """One bucket, container or server. Keys have no slash at their ends; that of the bucket itself is empty.

    Each method raises:
        MissingError: There is no such bucket.
        UnreadableError: The credentials do not suffice, or have expired.
        LogDirectoryError: The bucket cannot be read so: it is in another region, or has keys that are no paths.
        StorageError: The store did not answer, although it was asked again.
    """

    uri: str

    def list(self, prefix: str) -> Iterator[Sequence[tuple[str, StoredObject]]]:
        """List the keys below a prefix, and below those, a page at a time."""
        ...

    def list_level(self, prefix: str) -> tuple[Sequence[tuple[str, StoredObject]], Sequence[str]]:
        """List the keys right below a prefix, and the prefixes there."""
        ...

    def head(self, key: str) -> StoredObject | None:
        """Ask for one object.

        Returns:
            None if it does not exist.
        """
        ...

    def get(self, key: str, start_bytes: int, end_bytes: int, listed: StoredObject) -> BytesLike:
        """Read a part of the object that was listed.

        Raises:
            FileReplacedError: The object is gone, or is another one.
        """
        ...


class ObstoreBucket:
    """A bucket read through obstore."""

    _process: ClassVar[OwningProcess | None] = None

    def __init__(self, uri: str, options: StorageOptions) -> None:
        if uri.endswith("://"):
            raise LogDirectoryError(
                "Expected a URI with the name of a bucket, such as s3://bucket/prefix.", path=uri
            )
        self.uri = uri
        self._options = options
        self._store = _open_store(uri, options)

    def list(self, prefix: str) -> Iterator[Sequence[tuple[str, StoredObject]]]:
        """List the keys below a prefix, and below those, a page at a time."""
        last: str | None = None
        pages: Any = None

        def next_page() -> Sequence[Any]:
            nonlocal pages
            try:
                # After a failed request, the listing goes on behind the last key.
                pages = pages or self._store.list(prefix or None, offset=last, chunk_size=_PAGE_KEYS)
                return next(pages, ())
            except BaseException:
                pages = None
                raise

        while page := self._ask(prefix, "list", next_page):
            last = page[-1]["path"]
            yield [(each["path"], _stored_object(each)) for each in page]

    def list_level(self, prefix: str) -> tuple[Sequence[tuple[str, StoredObject]], Sequence[str]]:
        """List the keys right below a prefix, and the prefixes there."""
        found = self._ask(prefix, "list", lambda: self._store.list_with_delimiter(prefix or None))
        return [(each["path"], _stored_object(each)) for each in found["objects"]], found["common_prefixes"]

    def head(self, key: str) -> StoredObject | None:
        """Ask for one object."""
        with suppress(FileNotFoundError):
            return _stored_object(self._ask(key, "examine", lambda: self._store.head(key)))
        return None

    def get(self, key: str, start_bytes: int, end_bytes: int, listed: StoredObject) -> BytesLike:
        """Read a part of the object that was listed."""

        def answer() -> tuple[StoredObject, BytesLike]:
            options = {"range": (start_bytes, end_bytes), "if_match": listed.etag or None}
            result = self._store.get(key, options=options)
            return _stored_object(result.meta), memoryview(result.bytes())

        with suppress(MissingError):
            found, data = self._ask(key, "read", answer)
            # Some servers ignore If-Match.
            if found.etag.strip('"') == listed.etag.strip('"') and len(data) == end_bytes - start_bytes:
                return data
        raise replaced(f"{self.uri}/{key}")

    def _ask(self, key: str, action: str, request: Callable[[], _Answer]) -> _Answer:
        """Make a request, and repeat it where obstore itself does not: with new credentials, or for a page cut short."""
        path = f"{self.uri}/{key}".rstrip("/")
        process = ObstoreBucket._process = ObstoreBucket._process or OwningProcess()
        if not process.is_this:
            message = "This process was forked from one that has read from an object store. Start it with the method spawn."
            raise StorageError(message, path=path)
        attempt = 0
        while True:
            try:
                return request()
            except BaseException as error:
                # What obstore raises has no base class of its own, and a panic is no Exception: a token with a line break in
                # the environment makes one.
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
                is_passing = _PASSING.search(str(error)) is not None
                failure = _explained(error, path, action)
            # Outside of the handler: obstore's own message quotes URLs, which may be signed.
            if not is_passing or attempt == self._options.max_retries:
                raise failure
            attempt += 1
            time.sleep(min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS))
            self._store = _open_store(self.uri, self._options)


def replaced(path: str) -> FileReplacedError:
    """Return the error for an object that is not the one that was listed."""
    return FileReplacedError(
        "Expected the object that was listed, found another one, or none: it was written or deleted meanwhile. Read again.",
        path=path,
    )


def _stored_object(meta: Any) -> StoredObject:
    return StoredObject(meta["size"], int(meta["last_modified"].timestamp() * 1000), meta["e_tag"] or "")


def _open_store(uri: str, options: StorageOptions) -> Any:
    try:
        from obstore.store import from_url  # noqa: PLC0415  (an extra)
    except ImportError:
        message = f"Reading {uri} needs obstore: pip install 'spark-segmentlog[object-store]'."
        raise OptionError(message) from None
    try:
        return from_url(uri, **_arguments(uri.partition(":")[0], options))
    except OptionError:
        raise
    except Exception as error:  # noqa: BLE001  (neither obstore nor boto3 promises a class)
        name = _BAD_KEY.search(str(error))
        what = f"{name[1]!r} is no option of this kind of store" if name else type(error).__name__
    # Outside of the handler: the message of the error quotes the value.
    raise OptionError(f"The storage options do not fit {uri}: {what}. Correct them.")


def _arguments(scheme: str, options: StorageOptions) -> dict[str, Any]:
    """Return the arguments with which obstore opens a store."""
    store, client = options.keys_for(scheme)
    if "endpoint" in store and "://" not in store["endpoint"]:
        store["endpoint"] = f"https://{store['endpoint']}"
    endpoints = [store.get("endpoint"), store.get("base_url"), *map(os.environ.get, _ENDPOINT_VARIABLES)]
    limits = {
        "timeout": timedelta(seconds=options.timeout_seconds),
        # Many windows may share a slow line: only a pause is a failure.
        "read_timeout": timedelta(seconds=min(options.timeout_seconds, _LONGEST_PAUSE_OF_A_BODY_SECONDS)),
        "allow_http": any(each is not None and each.startswith("http://") for each in endpoints),
    }
    seconds = {name: timedelta(seconds=value) for name, value in client.items() if isinstance(value, float)}
    return {
        "config": store,
        "client_options": {**limits, **client, **seconds},
        "retry_config": {
            "max_retries": options.max_retries,
            "retry_timeout": timedelta(seconds=options.timeout_seconds),
            "backoff": _BACKOFF,
        },
        "credential_provider": _profile_or_role(options) if scheme == "s3" else None,
    }


def _profile_or_role(options: StorageOptions) -> Any:
    """Return the provider of a profile's or a role's credentials; None if neither is named."""
    role, profile = options.text("s3.role-arn"), options.text("s3.profile-name")
    key = options.text("s3.access-key-id")
    if profile is None and not key and "AWS_ACCESS_KEY_ID" not in os.environ:
        profile = os.environ.get("AWS_PROFILE")
    if not role and not profile:
        return None
    try:
        import boto3  # noqa: PLC0415  (the user's)
        from obstore.auth.boto3 import Boto3CredentialProvider, StsCredentialProvider  # noqa: PLC0415  (an extra)
    except ImportError:
        raise OptionError("A profile or a role of AWS needs boto3: pip install boto3.") from None
    session = boto3.Session(
        aws_access_key_id=key,
        aws_secret_access_key=options.text("s3.secret-access-key"),
        aws_session_token=options.text("s3.session-token"),
        region_name=options.text("s3.region"),
        profile_name=profile,
    )
    if not role:
        return Boto3CredentialProvider(session)
    name = options.text("s3.role-session-name") or "segmentlog"
    return StsCredentialProvider(session, RoleArn=role, RoleSessionName=name)


# -- What went wrong --------

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_BAD_KEY: Final = re.compile(r"Configuration key: '([\w.-]{1,100})'")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,100})</Code>")
# What the operating system said of a connection, and obstore's name for how a request ended.
_REASONS: Final = (
    re.compile(r'message: "([\w ,.\'-]{1,100})"'),
    re.compile(r"kind: (Timeout|Interrupted|Connect)\b"),
)
# Keys with an empty part, "." or ".." are no paths for obstore.
_BAD_PATH: Final = re.compile(r'Path "(.{1,1000}?)" contained|parsing Path "(.{1,1000}?)"')
# Another request may succeed, although obstore does not try it: a page of a listing ended early; credentials are made
# anew, and clocks drift.
_PASSING: Final = re.compile(
    r"ListResponseBody|status code: 400 Bad Request: \s|<Code>(?:ExpiredToken|TokenRefreshRequired|RequestTimeout|RequestTimeTooSkewed)</Code>"
)
# The answer to a HEAD has no code.
_BAD_REQUEST: Final = 400
_REPLACED: Final = frozenset({412, 416})
_DENIED: Final = frozenset({401, 403})
_EXPIRED: Final = frozenset({"ExpiredToken", "TokenRefreshRequired"})
_OTHER_REGION: Final = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
)


def _explained(error: BaseException, path: str, action: str) -> SegmentLogError:
    """Translate an error of obstore. The result names the cause without the URL, which may be signed."""
    if isinstance(error, SegmentLogError):
        return error
    text = str(error)
    status, code, *reasons = (pattern.search(text) for pattern in (_STATUS, _CODE, *_REASONS))
    number = int(status[1]) if status else 0
    name = code[1] if code else ""
    cause = (
        f"{number} {name}".strip()
        if number
        else next((each[1] for each in reasons if each), type(error).__name__)
    )
    if isinstance(error, FileNotFoundError) or name == "NoSuchBucket":
        what = "bucket" if name == "NoSuchBucket" or action == "list" else "object"
        return MissingError(f"No such {what} ({cause}). Check the path.", path=path)
    if number in _REPLACED:
        return replaced(path)
    if name in _OTHER_REGION or "BareRedirect" in text:
        message = (
            f"Could not {action} this path: the bucket is in another region. Set s3.region, or s3.endpoint."
        )
        return LogDirectoryError(message, path=path)
    if name in _EXPIRED or (number == _BAD_REQUEST and not name):
        message = f"Could not {action} this path: the credentials have expired, or are malformed ({cause}). Pass new ones."
        return UnreadableError(message, path=path)
    if number in _DENIED:
        return UnreadableError(
            f"The credentials may not {action} this path ({cause}). Check them, and what the bucket's policy grants them.",
            path=path,
        )
    if bad := _BAD_PATH.search(text):
        key = next(filter(None, bad.groups()))
        message = f"Could not {action} this path: the key {key!r} has an empty part, '.' or '..'. Move it elsewhere, or name a directory without it."
        return LogDirectoryError(message, path=path)
    message = f"Could not {action} this path, although it was tried again: {cause}. Check the endpoint, or try later."
    return StorageError(message, path=path)
