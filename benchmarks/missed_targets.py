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
        "zstd",
        "libzstd takes 40 to 55 % of our time, and as long on the other side",
    ),
    _Cause(
        "decode",
        "segmentlog : ",
        "1000 B, none",
        "reading the bytes, their CRC and one copy take nearly all of our time, at 1.4 GB/s",
    ),
    _Cause("legacy", "segmentlog : ", "gzip", "zlib takes most of our time, and as much of the other side's"),
    _Cause(
        "conditions",
        "speed with a condition",
        "",
        "most rows are kept, so the condition and the copy of what is kept come on top of the read",
    ),
    _Cause(
        "spark-local",
        "segmentlog.* : Kafka source",
        "zstd",
        "libzstd takes half of the time of our tasks, for few columns as well, and as long on the other side",
    ),
    _Cause(
        "spark-local2",
        "segmentlog : Kafka source",
        "",
        "both cores are busy all the time, half of it in Spark's own Java",
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
        "values-spark",
        "valueFormat=registry : from_avro",
        "",
        "reading the bytes alone takes two thirds of our time, and the other side has that in common",
    ),
    _Cause(
        "values",
        "valueFormat=registry, all columns",
        "",
        "decoding the values takes as long as reading all else",
    ),
    _Cause(
        "append",
        "segmentlog encode and append : aiokafka",
        "",
        "the other side only encodes; without the append we take two thirds of its time",
    ),
    _Cause(
        "append",
        "append of one record",
        "",
        "encoding takes 18 µs; the rest is a write of the file, and the checks around it in Python",
    ),
    _Cause(
        "write",
        "segmentlog, flush=none.* : counting writer",
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
        "streaming",
        "time of a micro-batch",
        "",
        "most of it is Spark's own on both sides, and ours waits for the disk, which the parquet sink does not",
    ),
    _Cause(
        "stores",
        "64 MB",
        "",
        "planning asks a few times in turn, each 20 ms, before it knows which ranges to fetch",
    ),
    _Cause(
        "retention",
        "everything is due",
        "",
        "three files of each segment are renamed, as a broker does; the bare renames alone take longer than the target",
    ),
    _Cause(
        "earlier",
        "CPU time, now : then",
        "",
        "two runs with the same two commits differ by as much",
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
        "uncompressed batches are read so fast that the same work differs by as much from round to round",
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
