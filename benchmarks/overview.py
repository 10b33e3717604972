"""What a reader should know first: the comparisons that matter, as one table and one chart.

Both are made from the figures of the sections, and written with docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.missed_targets import why_missed
from benchmarks.results import Finding, SectionResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio, in a reader's words.

    Attributes:
        task: What both did.
        peer: What segmentlog is compared with.
        finding: The ratio: how many times as fast segmentlog is.
        why_missed: What keeps it from its target; empty if it is met, or the cause is not known.
    """

    task: str
    peer: str
    finding: Finding
    why_missed: str = ""


@dataclass(frozen=True, slots=True)
class _Headline:
    section: str
    measure: str
    subject: str
    task: str
    peer: str


_SMALL_BATCHES = "100 B, none, 16 KiB batches"

_HEADLINES = (
    _Headline(
        "spark-local1",
        "segmentlog : Kafka source",
        _SMALL_BATCHES,
        "Read all columns through Spark, 1 core",
        "Spark's Kafka source, live broker",
    ),
    _Headline(
        "spark-local2",
        "segmentlog : Kafka source",
        _SMALL_BATCHES,
        "Read all columns through Spark, 2 cores",
        "Spark's Kafka source, live broker",
    ),
    _Headline(
        "spark-local1",
        "segmentlog, offset and timestamp : Kafka source, offset and timestamp",
        _SMALL_BATCHES,
        "Read two columns through Spark, 1 core",
        "Spark's Kafka source, live broker",
    ),
    _Headline(
        "write",
        "segmentlog, flush=none : Kafka sink",
        "local[1], 2,000,000 rows",
        "Write through Spark, 1 core",
        "Spark's Kafka sink, live broker",
    ),
    _Headline(
        "write",
        "segmentlog, flush=none : Kafka sink",
        "local[2], 2,000,000 rows",
        "Write through Spark, 2 cores",
        "Spark's Kafka sink, live broker",
    ),
    _Headline(
        "decode",
        "segmentlog : aiokafka to Arrow",
        "100 B, zstd, 16 KiB batches",
        "Decode zstd batches to Arrow",
        "aiokafka (Cython)",
    ),
    _Headline(
        "decode",
        "segmentlog : kafka-python to Arrow",
        "100 B, zstd, 16 KiB batches",
        "Decode zstd batches to Arrow",
        "kafka-python",
    ),
    _Headline(
        "append",
        "segmentlog encode and append : aiokafka builder",
        "1,000,000 records, keys of 10 B",
        "Encode records and append them to a log",
        "aiokafka (Cython), encoding only",
    ),
    _Headline(
        "clean",
        "segmentlog : broker",
        "10,737,418 records, uncompressed",
        "Compact a log of 1 GiB",
        "the broker's log cleaner",
    ),
)


def comparisons(results: Iterable[SectionResult]) -> list[Comparison]:
    """Return the headlines among the results, in their order; those of sections without a result are left out."""
    found = {
        (result.section, finding.measure, finding.subject): finding
        for result in results
        for finding in result.findings
    }
    chosen = []
    for line in _HEADLINES:
        finding = found.get((line.section, line.measure, line.subject))
        if finding is None:
            continue
        chosen.append(Comparison(line.task, line.peer, finding, why_missed(line.section, finding)))
    return chosen


def table(chosen: Sequence[Comparison]) -> str:
    """Return a Markdown table: what was compared, the ratio, the verdict."""
    rows = ["| task | compared with | times as fast | target | verdict |", "|---|---|--:|--:|---|"]
    for each in chosen:
        figure, target = each.finding.figure, each.finding.target
        verdict = each.finding.verdict + (f": {each.why_missed}" if each.why_missed else "")
        bound = "" if target is None else f"{target.sign} {target.value:g} ×"
        rows.append(f"| {each.task} | {each.peer} | **{figure.median:.2f} ×** | {bound} | {verdict} |")
    return "\n".join(rows) + "\n"


# Of the chart, in pixels.
_LABEL_WIDTH, _BAR_WIDTH, _NUMBER_WIDTH = 300, 380, 60
_ROW_HEIGHT, _BAR_HEIGHT, _TOP, _BOTTOM = 44, 18, 34, 12
_LEGEND = "longer is faster; blue: target met, yellow: missed"
_STYLE = (
    "text{font:13px sans-serif;fill:#24292f}.peer{font-size:11px;fill:#57606a}"
    ".met{fill:#2f81c7}.missed{fill:#d29922}.one{stroke:#57606a;stroke-dasharray:3 3}"
)


def chart(chosen: Sequence[Comparison]) -> str:
    """Return an SVG of the ratios as bars from zero; a dashed line marks the peer's own speed."""
    largest = max((each.finding.figure.median for each in chosen), default=1.0)
    scale = _BAR_WIDTH / max(largest, 1.0)
    width = _LABEL_WIDTH + _BAR_WIDTH + _NUMBER_WIDTH
    height = _TOP + _ROW_HEIGHT * len(chosen) + _BOTTOM
    one = _LABEL_WIDTH + scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<title>How many times as fast as its peers segmentlog is</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for row, each in enumerate(chosen):
        top = _TOP + row * _ROW_HEIGHT
        ratio = each.finding.figure.median
        kind = "missed" if each.finding.verdict == "missed" else "met"
        end = _LABEL_WIDTH + ratio * scale
        lines += [
            f'<text x="8" y="{top + 12}">{escape(each.task)}</text>',
            f'<text x="8" y="{top + 28}" class="peer">{escape(each.peer)}</text>',
            f'<rect x="{_LABEL_WIDTH}" y="{top + 4}" width="{ratio * scale:.1f}" height="{_BAR_HEIGHT}" class="{kind}"/>',
            f'<text x="{end + 6:.1f}" y="{top + 18}">{ratio:.2f} ×</text>',
        ]
    lines += [
        f'<line x1="{one:.1f}" y1="{_TOP - 8}" x2="{one:.1f}" y2="{height - _BOTTOM}" class="one"/>',
        f'<text x="{one:.1f}" y="{_TOP - 14}" text-anchor="middle" class="peer">peer = 1 ×</text>',
        f'<text x="{width - 8}" y="{_TOP - 14}" text-anchor="end" class="peer">{_LEGEND}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
