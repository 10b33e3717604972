"""What the shared pack file gains: the same rows staged into it, and into one file for each partition."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.file_per_partition import FilePerPartition
from benchmarks.progress import tell
from benchmarks.results import Finding
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import Settings
from benchmarks.timing import Series, Timed, interleave, ratio
from benchmarks.writing.directories import settle
from benchmarks.writing.rows import ROW_BYTES, rows_of
from benchmarks.writing.staged_rows import new_job_id, routed_rows, stage

if TYPE_CHECKING:
    from storage_core.commit.routing import RoutedRows
    from storage_core.filesystem import FileSystem

_PARTITIONS = (1_000, 10_000)
# One round of ten thousand files takes long.
_MOST_ROUNDS = 2


def measure_pack_file(settings: Settings) -> tuple[list[Finding], dict[str, Any]]:
    """Stage with many and with very many partitions."""
    rows = rows_of(settings)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "staged")
    for wanted in _PARTITIONS:
        partitions = settings.scaled(wanted)
        tell(f"staging for {partitions:,} partitions")
        series = _measure(scratch, rows, partitions, min(settings.repetitions, _MOST_ROUNDS))
        pack, files = series["pack file"], series["a file each"]
        detail = f"{_rate(pack)} : {_rate(files)} MB/s, {pack.median_s:.1f} : {files.median_s:.1f} s"
        subject = f"{rows:,} rows of one task to {partitions:,} partitions"
        findings.append(
            Finding(
                "staging, pack file : one file per partition",
                subject,
                ratio(files, pack),
                "×",
                None,
                detail,
            )
        )
        raw[f"staging, {partitions} partitions"] = {name: one.to_json() for name, one in series.items()}
    return findings, raw


def _measure(scratch: Path, rows: int, partitions: int, rounds: int) -> dict[str, Series]:
    from storage_core.commit.manifest import read_manifest
    from storage_core.filesystem import FileSystem

    # One after the other, as tasks of this process's user would be given them; all fit into memory.
    batches = list(routed_rows(rows, partitions))
    filesystem, job_id = FileSystem(), new_job_id()
    root = new_directory(scratch, "places")
    manifest = stage(filesystem, root, job_id, batches, flush=True)
    pieces = read_manifest(filesystem, str(root), manifest).pieces
    give_back_space(root)
    places = {piece.position_bytes: piece.partition for piece in pieces}

    def to_pack_file() -> Timed:
        return _stage(filesystem, scratch, batches)

    def to_files() -> Timed:
        peer = FilePerPartition(places)
        timed = _stage(peer, scratch, batches)
        if peer.file_count != partitions:
            raise RuntimeError(f"Expected {partitions} files, found {peer.file_count}.")
        return timed

    return interleave(
        {"pack file": to_pack_file, "a file each": to_files},
        warm_up_rounds=0,
        rounds=rounds,
        peers=["a file each"],
    )


def _stage(filesystem: FileSystem, scratch: Path, batches: list[RoutedRows]) -> Timed:
    root = new_directory(scratch, "staged")
    settle()
    started = time.perf_counter()
    stage(filesystem, root, new_job_id(), batches, flush=True)
    seconds = time.perf_counter() - started
    give_back_space(root)
    return Timed(seconds, sum(each.records.num_rows for each in batches))


def _rate(series: Series) -> str:
    return f"{series.records_per_second * ROW_BYTES / 1e6:.0f}"
