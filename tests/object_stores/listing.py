"""ListObjectsV2 of a sorted list of keys, as S3 answers it.

Source: Amazon S3's API reference, ListObjectsV2.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_KEYS = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int
    etag: str
    modified_s: float

    def xml(self, name: str) -> str:
        modified = datetime.fromtimestamp(self.modified_s, UTC).isoformat(timespec="milliseconds")
        return (
            f"<Contents><Key>{name}</Key><LastModified>{modified.replace('+00:00', 'Z')}</LastModified>"
            f"<ETag>{escape(self.etag)}</ETag><Size>{self.size_bytes}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


def listing_xml(bucket: str, entries: Sequence[Entry], query: Mapping[str, str]) -> bytes:
    """Return one page.

    Args:
        bucket: The bucket's name.
        entries: All objects, by key.
        query: The parameters of the request. The token of a page is the last key of the one before.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    limit = min(int(query.get("max-keys", _MAX_KEYS)), _MAX_KEYS)
    after = query.get("continuation-token") or query.get("start-after", "")
    place = max(
        bisect_left(entries, prefix, key=lambda entry: entry.key),
        bisect_right(entries, after, key=lambda entry: entry.key),
    )
    found: list[Entry | str] = []
    last = after
    while place < len(entries) and entries[place].key.startswith(prefix) and len(found) < limit:
        key = entries[place].key
        head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        common = prefix + head + cut
        if cut:
            # The next one that does not begin with it.
            place = bisect_right(entries, common + "\U0010ffff", key=lambda entry: entry.key)
            last = entries[place - 1].key
            found.append(common)
        else:
            found.append(entries[place])
            place, last = place + 1, key
    is_truncated = place < len(entries) and entries[place].key.startswith(prefix)
    return _page(bucket, found, query, last if is_truncated else None)


def _page(bucket: str, found: Sequence[Entry | str], query: Mapping[str, str], token: str | None) -> bytes:
    is_url = query.get("encoding-type") == "url"

    def name(key: str) -> str:
        return quote(key) if is_url else escape(key)

    parts = [
        entry.xml(name(entry.key))
        if isinstance(entry, Entry)
        else f"<CommonPrefixes><Prefix>{name(entry)}</Prefix></CommonPrefixes>"
        for entry in found
    ]
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token is not None else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix>{name(query.get('prefix', ''))}</Prefix><KeyCount>{len(found)}</KeyCount>"
        f"<MaxKeys>{query.get('max-keys', _MAX_KEYS)}</MaxKeys><IsTruncated>{str(token is not None).lower()}</IsTruncated>"
        f"{more}{''.join(parts)}</ListBucketResult>"
    ).encode()
