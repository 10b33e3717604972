"""Requests and time of planning and reading what is in an object store."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import interleave, share, spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from storage_core.filesystem import ReadableFileSystem
    from storage_core.scan.plan import ScanPlan

_SEGMENTS = 1_000
_PARTITIONS = 200
_LARGE_BATCHES = 16_384
_LATENCIES_MS = (0, 20)
_RANGE_BYTES = 8 << 20
_RANGES_AT_ONCE = 4
_BUCKET = "benchmark"

_METHOD = f"""\
An object store in a process of its own on this machine, which serves files and answers each request at once, or
{_LATENCIES_MS[1]} ms later; an answer of a real store takes at least that. One partition of {_SEGMENTS:,} segments of 62 KB,
{_PARTITIONS} partitions of two segments, and one segment of 64 MB. Requests are those of planning, as the client counts
them: listings of 1,000 keys, and reads. The segment of 64 MB is planned, read and decoded; obstore alone asks for its size and
fetches the same bytes, {_RANGES_AT_ONCE} ranges of 8 MiB at a time."""


@dataclass(frozen=True, slots=True)
class _Server:
    """Where a server listens, and the options to reach it."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        from tests.object_stores.object_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY

        return {
            "s3.endpoint": self.url,
            "s3.region": REGION,
            "s3.access-key-id": ACCESS_KEY_ID,
            "s3.secret-access-key": SECRET_ACCESS_KEY,
        }


def run(settings: Settings) -> SectionResult:
    """Measure planning by its cases, and the read of one large segment."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    directory = new_directory(settings.scratch_directory, "stores")
    _make_partitions(directory, settings)
    for latency_ms in _LATENCIES_MS:
        tell(f"stores +{latency_ms} ms")
        with _serving(directory, latency_ms) as server:
            findings += _planning(server, latency_ms, settings.repetitions, raw)
            findings.append(_reading(server, latency_ms, settings.repetitions, raw))
    return SectionResult("stores", "Object stores", _METHOD, tuple(findings), raw)


def _make_partitions(directory: Path, settings: Settings) -> None:
    from tests.scan.equal_batches import write_partition

    write_partition(directory / "one", segments=settings.scaled(_SEGMENTS))
    for partition in range(settings.scaled(_PARTITIONS)):
        write_partition(directory / "many", partition, segments=2, batches=2)
    write_partition(directory / "large", segments=1, batches=_LARGE_BATCHES)


def _planning(server: _Server, latency_ms: int, rounds: int, raw: dict[str, Any]) -> Iterator[Finding]:
    from benchmarks.segmentlog_reading import plan_read
    from tests.scan.equal_batches import START_MS

    def plan(path: str, **options: object) -> tuple[ScanPlan, int]:
        filesystem = _opened(server)
        found = plan_read(filesystem, f"s3://{_BUCKET}/{path}", **options, **server.options)
        counted = filesystem.statistics
        return found, counted.directories_listed + counted.reads + counted.files_examined

    late = plan("one")[0].partitions[0].end_offset // 10 * 9
    cases: dict[str, Callable[[], tuple[ScanPlan, int]]] = {
        "no bounds": lambda: plan("one"),
        "startingOffsets": lambda: plan("one", startingOffsets=json.dumps({"events": {"0": late}})),
        "startingTimestamp": lambda: plan("one", startingTimestamp=START_MS + late),
        "partitions": lambda: plan("many"),
    }
    for name, planned in cases.items():
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            _, requests = planned()
            seconds.append(time.perf_counter() - started)
        raw[f"planning, {name}, +{latency_ms} ms"] = {"seconds": seconds, "requests": requests}
        subject = f"{name}, +{latency_ms} ms"
        yield Finding("planning", subject, spread(seconds), "s", detail=f"{requests:,} requests")


def _opened(server: _Server) -> ReadableFileSystem:
    from storage_core.options import parse_read_options
    from storage_core.tier import open_file_system

    return open_file_system(parse_read_options({"path": "/", **server.options}).storage)


def _reading(server: _Server, latency_ms: int, rounds: int, raw: dict[str, Any]) -> Finding:
    from benchmarks.segmentlog_reading import count_rows

    path, options = f"s3://{_BUCKET}/large", {"maxBytesPerPartition": "1g", **server.options}
    series = interleave(
        {
            "segmentlog": lambda: count_rows(_opened(server), path, **options),
            "obstore": lambda: _fetch(server),
        },
        warm_up_rounds=1,
        rounds=rounds,
        peers=["obstore"],
    )
    raw[f"64 MB, +{latency_ms} ms"] = {name: one.seconds for name, one in series.items()}
    figure = share(series["segmentlog"], series["obstore"])
    target = at_most(1.3) if latency_ms else None
    return Finding("64 MB: segmentlog : obstore", f"+{latency_ms} ms", figure, "×", target)


def _fetch(server: _Server) -> int:
    """Fetch the large segment with obstore alone; return its size in bytes."""
    import obstore
    from obstore.store import S3Store

    options = server.options
    store = S3Store(
        _BUCKET,
        endpoint=options["s3.endpoint"],
        region=options["s3.region"],
        access_key_id=options["s3.access-key-id"],
        secret_access_key=options["s3.secret-access-key"],
        client_options={"allow_http": True},
    )
    key = f"large/events-0/{0:020d}.log"
    size_bytes = obstore.head(store, key)["size"]
    with ThreadPoolExecutor(_RANGES_AT_ONCE) as threads:
        starts = range(0, size_bytes, _RANGE_BYTES)
        fetched = threads.map(
            lambda start: len(
                obstore.get_range(store, key, start=start, end=min(start + _RANGE_BYTES, size_bytes))
            ),
            starts,
        )
        if sum(fetched) != size_bytes:
            raise RuntimeError("Expected all bytes of the segment.")
    return size_bytes


@contextmanager
def _serving(directory: Path, latency_ms: int) -> Iterator[_Server]:
    """Serve a directory in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(directory, latency_ms, theirs))
    process.start()
    try:
        yield _Server(ours.recv())
    finally:
        ours.send(None)
        process.join()


def _serve(directory: Path, latency_ms: int, connection: Connection) -> None:
    from tests.object_stores.object_server import ObjectServer
    from tests.object_stores.small_store import SmallStore

    store = SmallStore()
    with ObjectServer(store) as server:
        bucket = server.create_bucket(_BUCKET)
        store.link_tree(_BUCKET, directory)
        bucket.latency_s = latency_ms / 1000
        connection.send(server.url)
        connection.recv()
