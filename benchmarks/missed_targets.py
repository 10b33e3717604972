"""Why targets are missed, in one line each: what bounds the figure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from benchmarks.results import Finding


@dataclass(frozen=True, slots=True)
class _Cause:
    """What keeps figures from their targets.

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


_CAUSES: Final = (
    _Cause(
        "decode",
        "segmentlog : ",
        "zstd",
        "libzstd and the call for each batch take half of our time, and the same time on the other side",
    ),
    _Cause(
        "legacy",
        "segmentlog : ",
        "gzip",
        "zlib takes three quarters of our time, and the same time on the other side",
    ),
    _Cause(
        "spark-local2",
        "segmentlog : Kafka source",
        "zstd",
        "both cores are busy: 1.3 s in Python and 1.2 s in the JVM, so 3.0 × is the most that two of them can give",
    ),
    _Cause(
        "spark-local",
        "segmentlog : ready-made source",
        "",
        "the ready-made source decodes nothing; what remains is decoding, on cores that the JVM needs as well",
    ),
    _Cause(
        "ranges",
        "1 % ",
        "1 MiB batches",
        "a range begins and ends inside batches, and one batch is 0.4 % of the partition",
    ),
    _Cause(
        "write",
        "segmentlog, flush=none, cached frame : counting writer",
        "",
        "encoding, CRCs and the commit take 0.8 s of processor time, which a writer that only counts does not have",
    ),
    _Cause(
        "write",
        "the commit's share",
        "",
        "the kernel copies what tasks have staged together, so that a log gets one segment instead of one for each task",
    ),
    _Cause(
        "write",
        "speed to many partitions",
        "flush=commit",
        "each partition has files of its own to flush, and 1,000 partitions have 250 times as many as four",
    ),
    _Cause(
        "write",
        "speed to many partitions",
        "",
        "each task has a piece for each partition, and a piece costs 0.25 ms of Python whatever its size",
    ),
    _Cause(
        "write",
        "commit of small pieces",
        "",
        "each new partition has a directory and five files to make and flush",
    ),
    _Cause(
        "streaming",
        "segmentlog : Kafka source",
        "backlog",
        "Spark starts Python processes for each trigger, and writes two logs of its own, whatever the source",
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
        "without decompression, most of the work is in Python, which runs in one thread at a time",
    ),
    _Cause(
        "threads",
        "read_batches, threads=None",
        "none",
        "two threads are chosen for all large batches, and uncompressed ones with short values gain nothing",
    ),
    _Cause(
        "earlier",
        "CPU time",
        "1 %",
        "reads of some milliseconds: the difference is a few tenths of one",
    ),
)


def why_missed(section: str, finding: Finding) -> str:
    """Return what keeps a figure from its target; an empty text if it is met, or the cause is not known."""
    for cause in _CAUSES:
        if (
            finding.verdict == "missed"
            and section.startswith(cause.section)
            and re.match(cause.measure, finding.measure)
            and re.search(cause.subject, finding.subject)
        ):
            return cause.why
    return ""
