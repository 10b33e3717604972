"""Paths that users give: local ones, ``file:`` URIs, and URIs of object stores and HDFS, which are only read.

A URI has one form inside: a lower-case scheme, one scheme for each kind of store, and no slash at its end.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from storage_core.errors import OptionError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_SCHEMES: Final = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "az": "az",
    "abfs": "abfss",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
}
"""Schemes that are read, and the one that each is an alias of."""
_HADOOP: Final = ("hdfs", "viewfs")
_COPIES: Final = {
    "s3": "aws s3 sync {} {}",
    "gs": "gcloud storage rsync --recursive {} {}",
    "az": "azcopy sync {} {} (by its https URL)",
    "abfss": "azcopy sync {} {} (by its https URL)",
    "hdfs": "hadoop distcp {} {}",
    "viewfs": "hadoop distcp {} {}",
}
"""Commands that copy a directory from one place to another."""
_UNKNOWN_SCHEMES: Final = {
    "dbfs": "Databricks shows it as a local directory: below /dbfs, or /Volumes.",
    "http": "Download the directory, or name its bucket.",
    "https": "Download the directory, or name its bucket.",
    "wasb": "Write abfss://<container>@<account>.dfs.core.windows.net/<path>.",
    "wasbs": "Write abfss://<container>@<account>.dfs.core.windows.net/<path>.",
}
"""Schemes that people know and that are not read, and what to do instead."""
# Hadoop once took keys in the place of a user, and signed URLs hold their signature.
_CREDENTIALS: Final = re.compile(
    r"://[^/]*:[^/@]*@|[?&](?:sig|(?:X-Amz-|X-Goog-)?Signature|X-Amz-Security-Token)=", re.IGNORECASE
)
URI_STARTS: Final = tuple(f"{scheme}://" for scheme in _COPIES)
"""What the URIs begin with that `path_to_read` returns."""


def is_uri(path: str) -> bool:
    """Return True if a path that `path_to_read` returned is in an object store or HDFS."""
    return path.startswith(URI_STARTS)


def store_of(uri: str) -> str:
    """Return the bucket, container or host of a URI, as a URI: ``s3://bucket`` of ``s3://bucket/a/b``."""
    store = "/".join(uri.split("/", 3)[:3])
    # What is joined to it must not become the host.
    return f"{store}/" if store.endswith("//") else store


def path_to_read(text: str) -> str:
    """Return the path that a text names: the text itself, the path of a ``file:`` URI, or the URI in its one form.

    Raises:
        OptionError: The URI has an unknown scheme, no bucket, or credentials in it.
    """
    scheme = _scheme_of(text)
    if scheme is None:
        return text
    if scheme == "file":
        return _file_uri_path(text)
    _refuse_credentials(scheme, text)
    known = _SCHEMES.get(scheme)
    if known is None:
        raise OptionError(
            f"path {text!r} has the scheme '{scheme}'. Expected a local path, or a URI of {', '.join(_SCHEMES)}. "
            f"{_UNKNOWN_SCHEMES.get(scheme, 'Copy or mount the directory.')}"
        )
    place = text[len(scheme) + 1 :]
    # Hadoop's configuration names the name node where a URI does not.
    is_complete = place.startswith("//") and (known in _HADOOP or not place.startswith("///"))
    if not is_complete or not place.strip("/"):
        raise OptionError(
            f"path {text!r} has the scheme '{scheme}' and no bucket. Use {known}://<bucket>/<path>."
        )
    return f"{known}:{place.rstrip('/')}"


def path_to_write(text: str) -> str:
    """Return the path that a text names, which must be local to be written to.

    Raises:
        OptionError: It is a URI of another file system.
    """
    return _local_path(text, "written to. Write to a local directory, then", "<directory>", text)


def path_to_change(text: str) -> str:
    """Return the path that a text names, which must be local to be changed in place; raises as `path_to_write` does."""
    return _local_path(text, "changed. Copy it to a local directory first", text, "<directory>")


def _local_path(text: str, what: str, source: str, target: str) -> str:
    scheme = _scheme_of(text)
    if scheme is None or scheme == "file":
        return path_to_read(text)
    _refuse_credentials(scheme, text)
    known = _SCHEMES.get(scheme)
    command = "copy {} to {}" if known is None else _COPIES[known]
    # The command knows one of the schemes of a store.
    places = [
        f"{known}{text[len(scheme) :]}" if known and each is text else each for each in (source, target)
    ]
    raise OptionError(
        f"path {text!r} has the scheme '{scheme}', and only local and mounted file systems are {what}: "
        f"{command.format(*places)}"
    )


def _refuse_credentials(scheme: str, text: str) -> None:
    if _CREDENTIALS.search(text):
        raise OptionError(
            f"A path with the scheme '{scheme}' has credentials in it, which messages and plans would show. Give them as "
            "storage options, or leave them to the environment."
        )


def _scheme_of(text: str) -> str | None:
    """Return the scheme of a text in lower case; None if the text is a plain path."""
    matched = _SCHEME.match(text)
    scheme = matched.group(1).lower() if matched else text.partition(":")[0].lower()
    if scheme == "file":
        return scheme if text[len("file:") :].startswith("/") else None
    if matched is not None and "://" in text[: matched.end() + 1]:
        return scheme
    is_known = scheme in _SCHEMES or scheme in _UNKNOWN_SCHEMES
    return scheme if is_known and ":" in text else None


def _file_uri_path(text: str) -> str:
    rest = text[len("file:") :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise OptionError(f"path {text!r} names the host '{host}'. Use file:///<path>, or a plain path.")
        rest = slash + path
    return urllib.parse.unquote(rest)
