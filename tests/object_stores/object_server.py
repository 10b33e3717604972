"""An object store in this process that counts what it is asked for, and fails where a test says so.

In front of moto, or of `SmallStore`::

    bucket.put_tree(directory, "logs")
    read_table(bucket.uri("logs"), storage_options=bucket.storage_options)
    assert bucket.counts() == {"LIST": 1, "GET": 3}

    bucket.rules.append(Rule(refused(503, "SlowDown"), kind="GET", skip=2))
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from tests.object_stores.faults import Fault, refusal
from tests.object_stores.http_server import Answer, HttpServer, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from tests.object_stores.listing import Entry

ACCESS_KEY_ID = "key-of-the-tests"
SECRET_ACCESS_KEY = "secret-of-the-tests"
REGION = "us-east-1"


class Store(Protocol):
    """What keeps the objects."""

    def create_bucket(self, bucket: str) -> None: ...
    def delete_bucket(self, bucket: str) -> None: ...
    def put(self, bucket: str, key: str, content: bytes) -> None: ...
    def delete(self, bucket: str, key: str) -> None: ...
    def entries(self, bucket: str) -> Sequence[Entry]: ...
    def answer(self, request: Request) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and what became of it.

    Attributes:
        kind: LIST, GET, HEAD, or another method of HTTP.
        key: The object; the prefix of a LIST.
        status: Of the answer.
        start: The first byte that was sent of the object; 0 where the answer has none.
        end: The byte after the last one.
        is_ranged: Whether the request asked for a range.
        condition: The ETag that the request insists on, if any.
    """

    kind: str
    key: str
    status: int
    start: int
    end: int
    is_ranged: bool
    condition: str | None


@dataclass(slots=True)
class Rule:
    """Where a fault happens: by count, or by a seed and what is asked for, so that threads do not decide.

    Attributes:
        fault: What happens.
        kind: Only to requests of this kind; empty: to all.
        key: Only to those whose key, or prefix, contains this.
        skip: How many of these pass first.
        times: To how many of those that follow it happens; None: to all. With a seed, to the first ones of each request.
        seed: Chooses requests by what they ask for, instead of the first ones.
        permille: How many of 1000 requests a seed chooses.
    """

    fault: Fault
    kind: str = ""
    key: str = ""
    skip: int = 0
    times: int | None = 1
    seed: int | None = None
    permille: int = 1000
    hits: int = 0
    _seen: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def applies(self, kind: str, key: str, request: Request) -> bool:
        """Count a request; return whether the fault happens to it."""
        if (self.kind and kind != self.kind) or self.key not in key:
            return False
        identity = ""
        if self.seed is not None:
            identity = f"{kind} {request.target} {request.headers.get('range')}"
            if zlib.crc32(f"{self.seed} {identity}".encode()) % 1000 >= self.permille:
                return False
        with self._lock:
            self._seen[identity] += 1
            number = self._seen[identity] - self.skip
            is_hit = number > 0 and (self.times is None or number <= self.times)
            self.hits += is_hit
        return is_hit


class Bucket:
    """A bucket, what was asked of it, and the faults it has.

    Attributes:
        exchanges: All requests so far, in the order of their answers. `forget` empties it.
        rules: All that apply to a request happen to it; the first one is the outermost.
        latency_s: How long each answer takes longer.
        is_public: Whether requests without credentials are answered.
    """

    def __init__(self, server: ObjectServer, name: str) -> None:
        self.name = name
        self.exchanges: list[Exchange] = []
        self.rules: list[Rule] = []
        self.latency_s = 0.0
        self.is_public = False
        self._server = server
        self._store = server.store

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "s3.endpoint": self._server.url,
            "s3.region": REGION,
            "s3.access-key-id": ACCESS_KEY_ID,
            "s3.secret-access-key": SECRET_ACCESS_KEY,
        }

    def uri(self, key: str = "", scheme: str = "s3") -> str:
        """Return the URI of an object or of a prefix."""
        return f"{scheme}://{self.name}/{key}".rstrip("/")

    # Content, which no request tells.

    def put(self, key: str, content: bytes) -> None:
        self._store.put(self.name, key, content)

    def delete(self, key: str) -> None:
        self._store.delete(self.name, key)

    def put_tree(self, directory: str | os.PathLike[str], prefix: str = "") -> str:
        """Upload a directory; return the URI that it has now. Empty directories are lost, as in any object store."""
        for key, path in files_below(directory, prefix):
            with open(path, "rb") as file:
                self.put(key, file.read())
        return self.uri(prefix)

    def entries(self) -> Sequence[Entry]:
        """Return all objects, by key."""
        return self._store.entries(self.name)

    # Requests.

    def forget(self) -> None:
        """Forget what was asked so far."""
        self.exchanges.clear()

    def counts(self) -> dict[str, int]:
        """Return how many requests of each kind there were."""
        return dict(Counter(exchange.kind for exchange in self.exchanges))

    def ranges(self, key: str = "") -> list[tuple[int, int]]:
        """Return the ranges that were sent of the objects whose key contains this, in order."""
        return sorted(
            (exchange.start, exchange.end)
            for exchange in self.exchanges
            if exchange.kind == "GET" and key in exchange.key and exchange.end > exchange.start
        )

    def sent_twice(self) -> dict[str, list[tuple[int, int]]]:
        """Return what was sent more than once, by key: none where each byte was asked for once."""
        keys = {exchange.key for exchange in self.exchanges if exchange.kind == "GET"}
        overlaps = {key: list(_overlaps(self._ranges_of(key))) for key in keys}
        return {key: found for key, found in sorted(overlaps.items()) if found}

    def _ranges_of(self, key: str) -> list[tuple[int, int]]:
        return sorted(
            (each.start, each.end) for each in self.exchanges if each.kind == "GET" and each.key == key
        )

    def answer(self, request: Request, key: str) -> Answer:
        """Answer a request as the rules say, and note it."""
        kind = "LIST" if request.method == "GET" and not key else request.method
        asked = key or request.query.get("prefix", "")
        answer = self._server.store.answer
        credentials = request.headers.get("authorization", "")
        if not self.is_public and f"Credential={ACCESS_KEY_ID}/" not in credentials:
            return self._noted(refusal(403, "InvalidAccessKeyId"), kind, asked, request)
        hits = [rule.fault for rule in self.rules if rule.applies(kind, asked, request)]
        time.sleep(self.latency_s)
        return self._noted(_through(hits, request, answer), kind, asked, request)

    def _noted(self, answer: Answer, kind: str, key: str, request: Request) -> Answer:
        start, end = _sent_range(answer) if kind == "GET" else (0, 0)
        is_ranged, condition = "range" in request.headers, request.headers.get("if-match")
        self.exchanges.append(Exchange(kind, key, answer.status, start, end, is_ranged, condition))
        return answer


def _through(
    faults: Sequence[Fault],
    request: Request,
    answer: Callable[[Request], Answer],
) -> Answer:
    if not faults:
        return answer(request)
    return faults[0](request, lambda: _through(faults[1:], request, answer))


def _sent_range(answer: Answer) -> tuple[int, int]:
    if answer.status == 206:
        sent = answer.headers["content-range"].removeprefix("bytes ").partition("/")[0]
        start, _, last = sent.partition("-")
        return int(start), int(last) + 1
    return (0, len(answer.body)) if answer.status == 200 else (0, 0)


def _overlaps(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    reached = 0
    for start, end in ranges:
        if start < min(end, reached):
            yield start, min(end, reached)
        reached = max(reached, end)


def files_below(directory: str | os.PathLike[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the path of each file of a directory."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, directory).replace(os.sep, "/")
            yield (f"{prefix.rstrip('/')}/{relative}" if prefix else relative), path


class ObjectServer:
    """Serves the buckets of a store. Use as a context manager."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._buckets: dict[str, Bucket] = {}
        # Each name is used once: clients may remember what they have seen.
        self._numbers = itertools.count()
        self._server = HttpServer(self._answer)
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)
        for name in list(self._buckets):
            self.delete_bucket(name)

    def create_bucket(self, name: str = "") -> Bucket:
        """Create a bucket, with a name of its own if none is given."""
        name = name or f"bucket-{next(self._numbers)}"
        self.store.create_bucket(name)
        self._buckets[name] = Bucket(self, name)
        return self._buckets[name]

    def delete_bucket(self, name: str) -> None:
        self.store.delete_bucket(name)
        del self._buckets[name]

    def _answer(self, request: Request) -> Answer:
        name, _, key = request.path.removeprefix("/").partition("/")
        bucket = self._buckets.get(name)
        if bucket is None:
            return refusal(404, "NoSuchBucket")
        return bucket.answer(request, key)
