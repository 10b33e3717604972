"""S3 as far as reads need it: GET with ranges and conditions, HEAD, ListObjectsV2, and PUT and DELETE of whole objects.

For benchmarks and tests of many requests, for which moto is slow. The same tests run on both.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING

from tests.object_stores.faults import refusal
from tests.object_stores.http_server import Answer, FileBytes, Request
from tests.object_stores.listing import Entry, listing_xml
from tests.object_stores.object_server import files_below

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class _Object:
    entry: Entry
    content: bytes | FileBytes

    def part(self, start: int, end: int) -> bytes | FileBytes:
        if isinstance(self.content, FileBytes):
            return FileBytes(self.content.path, start, end - start)
        return self.content if end - start == len(self.content) else self.content[start:end]


class SmallStore:
    """Objects in memory, or in files that nobody changes."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, _Object]] = {}
        self._listed: dict[str, list[Entry]] = {}

    def create_bucket(self, bucket: str) -> None:
        self._buckets[bucket] = {}

    def delete_bucket(self, bucket: str) -> None:
        del self._buckets[bucket]
        self._listed.pop(bucket, None)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        etag = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
        self._set(bucket, _Object(Entry(key, len(content), etag, time.time()), content))

    def link_tree(self, bucket: str, directory: str | os.PathLike[str], prefix: str = "") -> None:
        """Serve the files of a directory without a copy."""
        for key, path in files_below(directory, prefix):
            status = os.stat(path)
            entry = Entry(key, status.st_size, f'"{status.st_ino}-{status.st_mtime_ns}"', status.st_mtime)
            self._set(bucket, _Object(entry, FileBytes(path, 0, status.st_size)))

    def _set(self, bucket: str, changed: _Object) -> None:
        self._buckets[bucket][changed.entry.key] = changed
        self._listed.pop(bucket, None)

    def delete(self, bucket: str, key: str) -> None:
        self._buckets[bucket].pop(key, None)
        self._listed.pop(bucket, None)

    def entries(self, bucket: str) -> Sequence[Entry]:
        if bucket not in self._listed:
            objects = list(self._buckets[bucket].items())
            self._listed[bucket] = [each.entry for _, each in sorted(objects, key=lambda item: item[0])]
        return self._listed[bucket]

    def answer(self, request: Request) -> Answer:
        name, _, key = request.path.removeprefix("/").partition("/")
        if not key:
            return Answer(
                200,
                {"content-type": "application/xml"},
                listing_xml(name, self.entries(name), request.query),
            )
        if request.method == "PUT":
            self.put(name, key, request.body)
            return Answer(200, {"etag": self._buckets[name][key].entry.etag})
        if request.method == "DELETE":
            self.delete(name, key)
            return Answer(204)
        found = self._buckets[name].get(key)
        return refusal(404, "NoSuchKey") if found is None else _answer(found, request)


def _answer(found: _Object, request: Request) -> Answer:
    entry = found.entry
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    if wanted not in {None, "*", entry.etag, entry.etag.strip('"')}:
        return refusal(412, "PreconditionFailed")
    headers = {
        "etag": entry.etag,
        "last-modified": formatdate(entry.modified_s, usegmt=True),
        "accept-ranges": "bytes",
        "content-type": "binary/octet-stream",
    }
    if unwanted in {"*", entry.etag, entry.etag.strip('"')}:
        return Answer(304, headers)
    start, end = _range(request.headers.get("range"), entry.size_bytes)
    if start >= end and "range" in request.headers:
        return refusal(416, "InvalidRange")
    if "range" not in request.headers:
        return Answer(200, headers, found.part(0, entry.size_bytes))
    headers["content-range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
    return Answer(206, headers, found.part(start, end))


def _range(header: str | None, size: int) -> tuple[int, int]:
    match = _RANGE.fullmatch(header or "")
    if match is None:
        return 0, size
    first, last = match.groups()
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size
