"""Views that need no values: batches, counts, segments and transactions, beside Kafka's own tool."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from benchmarks.log_files import BatchPlace
from benchmarks.one_core import run_on_one_core
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.results import Finding, SectionResult, Target, at_least
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.synthetic import SourceBatches, write_partition
from benchmarks.timing import Series, interleave, ratio, spread

_SEGMENT_BYTES: Final = 256 << 20
# Bytes of log by the size of its batches.
_LOGS: Final = {16 << 10: 1 << 30, 1 << 10: 256 << 20}
_TARGET_BATCH_BYTES: Final = 16 << 10
_RECORDS_PER_BATCH: Final = 10
_TOPIC: Final = "events"
_TOOL: Final = "kafka-dump-log"
_HEADERS: Final = "batches, columns of the header"
# Contenders, and the target in GB/s for batches of 16 KiB.
_CONTENDERS: Final[Mapping[str, Target | None]] = {
    _HEADERS: at_least(2),
    "batches, CRCs too": None,
    "count of records": at_least(2),
    "segments, exact": at_least(2),
    "transactions": None,
}

_METHOD: Final = f"""\
Logs of batches of one size, with {_RECORDS_PER_BATCH} records each, in segments of {_SEGMENT_BYTES >> 20} MiB with
indexes, made by the benchmark. Each view is planned and read to its end as Arrow, from an unopened directory. Rates are
bytes of log per second. {_TOOL} is `kafka.tools.DumpLogSegments` on the same files, without records, its output
thrown away, the start of its JVM included. One core, files in the page cache. The view of transactions meets no
transaction here: it is what the walk costs."""


def run(settings: Settings) -> SectionResult:
    """Measure the views over logs of large and of small batches."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "views")
    for batch_bytes, log_bytes in _LOGS.items():
        subject = f"{batch_bytes >> 10} KiB batches"
        tell(f"views {subject}")
        root = scratch / str(batch_bytes)
        size_bytes = make_log(root, batch_bytes, settings.scaled(log_bytes))
        series = run_on_one_core(_measure, root, settings.repetitions)
        raw[subject] = {name: one.to_json() for name, one in series.items()}
        findings += _findings(subject, batch_bytes, size_bytes, series)
    return SectionResult("views", "Views from batch headers", _METHOD, tuple(findings), raw)


def _findings(
    subject: str, batch_bytes: int, size_bytes: int, series: Mapping[str, Series]
) -> Iterator[Finding]:
    for name, target in _CONTENDERS.items():
        rates = [size_bytes / seconds / 1e9 for seconds in series[name].seconds]
        yield Finding(
            name, subject, spread(rates), "GB/s", target if batch_bytes == _TARGET_BATCH_BYTES else None
        )
    rates = [size_bytes / seconds / 1e9 for seconds in series[_TOOL].seconds]
    yield Finding(_TOOL, subject, spread(rates), "GB/s")
    yield Finding(f"{_HEADERS}, beside {_TOOL}", subject, ratio(series[_TOOL], series[_HEADERS]), "×")


def make_log(root: Path, batch_bytes: int, log_bytes: int) -> int:
    """Make a partition of equal batches; return its size in bytes."""
    batch = _batch(batch_bytes)
    last_delta = _RECORDS_PER_BATCH - 1
    place = BatchPlace(0, len(batch), 0, last_delta, FIRST_TIMESTAMP_MS, _RECORDS_PER_BATCH)
    count = -(-log_bytes // _SEGMENT_BYTES)
    sizes = [min(_SEGMENT_BYTES, log_bytes)] * count
    write_partition(root / f"{_TOPIC}-0", SourceBatches(batch, (place,)), segment_sizes_bytes=sizes)
    return sum(path.stat().st_size for path in root.rglob("*.log"))


def _batch(size_bytes: int) -> bytes:
    """Return a batch of equal records: null keys, and values of zeros."""
    header_bytes = 61
    value_bytes = (size_bytes - header_bytes) // _RECORDS_PER_BATCH - 12
    records = b"".join(_record(number, bytes(value_bytes)) for number in range(_RECORDS_PER_BATCH))
    covered = struct.pack(
        ">hiqqqhii",
        *(0, _RECORDS_PER_BATCH - 1, FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS, -1, -1, -1, _RECORDS_PER_BATCH),
    )
    covered += records
    return struct.pack(">qiibI", 0, len(covered) + 9, 0, 2, crc32c(covered)) + covered


def _record(number: int, value: bytes) -> bytes:
    # attributes, timestamp delta, offset delta, null key, value, no headers
    body = b"\0\0" + _varint(number) + b"\1" + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    """Zig-zag, of a number that is not negative."""
    rest, encoded = number << 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def _measure(root: Path, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own. Each contender handles the log once a round."""
    from tests.interop.jars import java_command, kafka_jars

    header_columns = [
        name for name in _columns("batches") if name not in {"crcValid", "uncompressedSizeBytes"}
    ]
    files = ",".join(sorted(map(str, root.rglob("*.log"))))
    command = [java_command(), "-XX:+UseSerialGC", "-cp", f"{kafka_jars()}/*"]
    command += ["kafka.tools.DumpLogSegments", "--files", files]

    def dump() -> int:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return 1

    contenders: dict[str, Callable[[], int]] = {
        _HEADERS: lambda: _read(root, "batches", header_columns),
        "batches, CRCs too": lambda: _read(root, "batches", [*header_columns, "crcValid"]),
        "count of records": lambda: _read(root, "batches", ["recordCount"]),
        "segments, exact": lambda: _read(root, "segments", _columns("segments"), exact=True),
        "transactions": lambda: _read(root, "transactions", _columns("transactions")),
        _TOOL: dump,
    }
    return interleave(contenders, warm_up_rounds=1, rounds=rounds, peers=[_TOOL])


def _columns(view: str) -> list[str]:
    from storage_core.views import find_view

    return list(find_view(view).schema.names)


def _read(root: Path, view: str, columns: list[str], **options: object) -> int:
    """Read a view to its end. Returns 1: what all contenders handle is one log."""
    from storage_core.filesystem import FileSystem
    from storage_core.options import options_of
    from storage_core.views import plan_view, read_view_task, view_schema

    filesystem = FileSystem()
    parsed = options_of([str(root)], {"view": view, "columns": columns, **options})
    schema = view_schema(parsed)
    for task in plan_view(filesystem, parsed):
        for batch in read_view_task(filesystem, task, schema):
            assert batch.num_rows
    return 1
