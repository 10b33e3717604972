"""Why targets are missed, in one line each: what bounds the figure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from benchmarks.results import Finding


@dataclass(frozen=True, slots=True)
class _Cause:
    """Says what keeps figures from their targets.

    Attributes:
        section: The section of the figures.
        measure: A pattern that begins their measures.
        subject: A pattern that is somewhere in what they were measured on.
        why: The cause.
    """

    section: str
    measure: str
    subject: str
    why: str


CAUSES: Final = (
    _Cause(
        "decode",
        "segmentlog : ",
        "zstd, 16 KiB",
        "libzstd takes a third of our time and as much of the other side's, and each small batch is a call of its own",
    ),
    _Cause("legacy", "segmentlog : ", "gzip", "zlib takes most of our time, and as much of the other side's"),
    _Cause(
        "spark-local2",
        "segmentlog : Kafka source",
        "zstd",
        "both cores are busy all the time, half of it in Spark's own Java, and libzstd has a fifth",
    ),
    _Cause(
        "spark-local",
        "segmentlog : ready-made source",
        "",
        "the ready-made source decodes nothing, and decoding needs the cores that the JVM needs",
    ),
    _Cause(
        "ranges",
        "1 % offset range: bytes",
        "1 MiB batches",
        "a range begins and ends inside of batches, and a batch is a good part of it",
    ),
    _Cause(
        "ranges",
        "1 % time range: bytes",
        "1 MiB batches",
        "planning and the task both read the batches at its ends, which are a good part of it",
    ),
    _Cause(
        "write",
        "segmentlog, flush=none : Kafka sink",
        "",
        "Spark hands rows to Python in one stream, which bounds a writer that only counts them, too",
    ),
    _Cause(
        "write",
        "segmentlog, flush=none, cached frame : counting writer",
        "",
        "hashing, encoding, checksums and the commit take processor time that a writer that only counts does not spend",
    ),
    _Cause(
        "write",
        "the commit's share",
        "",
        "the kernel copies what tasks have staged together, so that a log gets one segment and not one of each task",
    ),
    _Cause(
        "write",
        "speed to many partitions",
        "flush=commit",
        "each partition has files of its own to make and to flush",
    ),
    _Cause(
        "write",
        "speed to many partitions",
        "",
        "each partition has files of its own to make, and each task a piece for each of them",
    ),
    _Cause(
        "write",
        "commit of small pieces into new",
        "",
        "each new partition has a directory and five files to make and to flush",
    ),
    _Cause(
        "streaming",
        "segmentlog : Kafka source",
        "backlog",
        "Spark starts Python for each trigger and writes two logs of its own, whatever the source is",
    ),
    _Cause(
        "retention",
        "everything is due",
        "",
        "three files of each segment are renamed, as a broker does; the bare renames alone take longer than the target",
    ),
    _Cause(
        "threads",
        "read_batches, 2 threads",
        "none",
        "without decompression, most of the work is Python's, which runs in one thread at a time",
    ),
    _Cause(
        "threads",
        "read_batches, threads=None",
        "none",
        "two threads are chosen for all large batches, and uncompressed ones with short values gain nothing",
    ),
)


def why_missed(section: str, finding: Finding) -> str:
    """Return what keeps a figure from its target; an empty text if it is met, or the cause is not known."""
    for cause in CAUSES:
        if (
            finding.verdict == "missed"
            and section.startswith(cause.section)
            and re.match(cause.measure, finding.measure)
            and re.search(cause.subject, finding.subject)
        ):
            return cause.why
    return ""
