# ruff: noqa: INP001  (a script, not a package)
"""Draw the diagrams of the documentation: ``python docs/diagrams/draw.py`` writes the SVG files beside this script.

A drawing is 500 units wide and its text 14 units high, so that it can be read on a phone. Its colours follow the
reader's choice of light or dark. The numbers of the look-up are those of ``examples/data``, which a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

WIDTH: Final = 500
MARGIN: Final = 12
LINE: Final = 20
ROW: Final = 24
GAP: Final = 10

_STYLE: Final = """
text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.mono{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.bold{font-weight:600}
.muted,.tip{fill:#59636e}
rect{fill:#fff;stroke:#8c959f}
path{fill:none;stroke:#59636e;stroke-width:1.5}
.page{fill:#fff;stroke:none}
.grey{fill:#f6f8fa}
.blue{fill:#ddf4ff;stroke:#0969da}
.green{fill:#dafbe1;stroke:#1a7f37}
.amber{fill:#fff3c4;stroke:#9a6700}
.gone{fill:none;stroke-dasharray:4 4}
.thin{stroke-dasharray:3 4;stroke-width:1}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.muted,.tip{fill:#9da7b3}
rect{fill:#0d1117;stroke:#6e7681}
path{stroke:#9da7b3}
.page{fill:#0d1117}
.grey{fill:#161b22}
.blue{fill:#10294b;stroke:#4493f8}
.green{fill:#10301d;stroke:#3fb950}
.amber{fill:#36290c;stroke:#d29922}
}
"""


# -- Shapes: each is one or several elements of SVG --------


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Write lines below one another; ``y`` is the first baseline, and ``anchor`` says what of a line is at ``x``."""
    return "\n".join(
        f'<text x="{x:g}" y="{y + number * LINE:g}" class="{style}" text-anchor="{anchor}">{escape(line)}</text>'
        for number, line in enumerate(words.split("\n"))
        if line
    )


def box(x: float, y: float, width: float, height: float, style: str = "", radius: int = 4) -> str:
    """Draw a rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" class="{style}"/>'


def banner(y: float, words: str, style: str) -> str:
    """Write a line in a box that is as wide as the drawing."""
    line = text(WIDTH / 2, y + 20, words, "bold", "middle")
    return box(MARGIN, y, WIDTH - 2 * MARGIN, 30, style, 15) + line


def bar(y: float, edges: Sequence[float], styles: Iterable[str]) -> str:
    """Draw the pieces of a bar between its edges."""
    pieces = zip(pairwise(edges), styles, strict=True)
    return "\n".join(box(start, y, end - start, 28, style, 0) for (start, end), style in pieces)


def path(points: Sequence[tuple[float, float]], style: str = "") -> str:
    """Draw a line through points."""
    return f'<path d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}" class="{style}"/>'


def arrow_beside(x: float, start_y: float, end_y: float) -> str:
    """Draw an arrow out of the left side of something, and into the left side of something below it."""
    line = path([(x, start_y), (x - 16, start_y), (x - 16, end_y), (x - 6, end_y)])
    return f'{line}<polygon points="{x:g},{end_y:g} {x - 8:g},{end_y - 4:g} {x - 8:g},{end_y + 4:g}" class="tip"/>'


def heading(left: float, y: float, name: str, meaning: str) -> str:
    """Write the name of a directory or file on the left, and what it is on the right."""
    return text(left, y, name, "mono bold") + text(WIDTH - left, y, meaning, "muted", "end")


def files(x: float, y: float, gap: float, rows: Sequence[tuple[str, str]]) -> str:
    """Write names of files below one another, and what each is ``gap`` units to the right."""
    return "\n".join(
        text(x, y + number * ROW, name, "mono") + text(x + gap, y + number * ROW, meaning, "muted")
        for number, (name, meaning) in enumerate(rows)
    )


def table(x: float, y: float, widths: Sequence[int], rows: Sequence[Sequence[str]], marked: int) -> str:
    """Draw a table whose first row is the head; the row with the number ``marked`` stands out."""
    lefts = [*accumulate(widths, initial=x + GAP)]
    return "\n".join(
        (box(x, y + number * ROW, sum(widths), ROW, "blue" if number == marked else "", 0) if number else "")
        + "".join(
            text(left, y + number * ROW + 17, cell, "mono" if number else "muted")
            for left, cell in zip(lefts, row, strict=False)
        )
        for number, row in enumerate(rows)
    )


def drawing(title: str, description: str, height: float, parts: Iterable[str]) -> str:
    """Make an SVG file of parts, on a background of its own."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">'
    names = f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>'
    page = box(0, 0, WIDTH, height, "page", 0)
    svg = "\n".join([head, names, f"<style>{_STYLE}</style>", page, *parts, "</svg>\n"])
    return svg.replace(' class=""', "").replace(' text-anchor="start"', "")


# -- The layout of a log directory --------

ROOT_FILES: Final = (
    ("meta.properties", "cluster and broker"),
    ("recovery-point-offset-checkpoint", "on disk up to here"),
    ("replication-offset-checkpoint", "replicated up to here"),
    ("log-start-offset-checkpoint", "deleted up to here"),
    ("cleaner-offset-checkpoint", "compacted up to here"),
    (".kafka_cleanshutdown", "after a clean stop"),
    (".lock", "held by the one writer"),
)
PARTITION_FILES: Final = (
    ("partition.metadata", "the topic's id"),
    ("leader-epoch-checkpoint", "where each leader began"),
)
SEGMENT_FILES: Final = (
    (".log", "the records, in batches"),
    (".index", "offset → position in .log"),
    (".timeindex", "time → offset"),
    (".txnindex", "aborted transactions, if any"),
    (".snapshot", "producers known at that offset"),
)
SEGMENT_BOUNDS: Final = (0, 1787, 3614, 5403, 7209, 8234)
SHOWN_SEGMENT: Final = 3


def log_directory() -> str:
    """Draw the files of a log directory, of a partition and of a segment, one inside the other."""
    left, inner, innermost = 2 * MARGIN, 3 * MARGIN, 4 * MARGIN
    partition = 58 + len(ROOT_FILES) * ROW
    log = partition + 54 + len(PARTITION_FILES) * ROW
    segment = log + 86
    segment_height = 34 + len(SEGMENT_FILES) * ROW
    bottom = segment + segment_height + MARGIN
    edges = [inner + bound / SEGMENT_BOUNDS[-1] * (WIDTH - 2 * inner) for bound in SEGMENT_BOUNDS]
    parts = [
        box(MARGIN, MARGIN, WIDTH - 2 * MARGIN, bottom + 44 - MARGIN, "grey"),
        heading(left, 36, "/var/lib/kafka/data", "log directory: one for each disk"),
        files(left, 64, 284, ROOT_FILES),
        box(left, partition, WIDTH - 2 * left, bottom - partition),
        heading(inner, partition + 24, "orders-0", "partition 0 of the topic orders"),
        files(inner, partition + 52, 210, PARTITION_FILES),
        text(inner, log, "Its log is cut into segments at these offsets:"),
        bar(log + 12, edges, ["blue" if each == SHOWN_SEGMENT else "grey" for each in range(len(edges) - 1)]),
        text((edges[-2] + edges[-1]) / 2, log + 31, "active", "muted", "middle"),
        *(
            text(edge, log + 58, str(bound), "mono")
            for edge, bound in zip(edges, SEGMENT_BOUNDS[:-1], strict=False)
        ),
        path([(edges[SHOWN_SEGMENT], log + 64), (inner, segment)], "thin"),
        path([(edges[SHOWN_SEGMENT + 1], log + 64), (WIDTH - inner, segment)], "thin"),
        box(inner, segment, WIDTH - 2 * inner, segment_height, "blue"),
        heading(innermost, segment + 22, f"{SEGMENT_BOUNDS[SHOWN_SEGMENT]:020d}", "its lowest offset"),
        files(innermost, segment + 48, 110, SEGMENT_FILES),
        heading(left, bottom + 26, "orders-1  payments-0  …", "the same for each partition"),
    ]
    description = (
        "A log directory holds meta.properties, checkpoints and a directory for each partition. That of a partition holds "
        "its log in segments. A segment is a .log file with its indexes, all named after its lowest offset."
    )
    return drawing("What is in a log directory", description, bottom + 44 + MARGIN, parts)


# -- A look-up --------

LARGEST_TIMES: Final = (
    ("0", "3 Mar 16:41"),
    ("1787", "5 Mar 02:00"),
    ("3614", "6 Mar 17:19"),
    ("5403", "8 Mar 03:23"),
    ("7209", "8 Mar 23:59"),
)
TIME_ENTRIES: Final = (("15:43:32", "7610"), ("17:06:09", "7729"), ("18:33:56", "7849"))
OFFSET_ENTRIES: Final = (("7610", "18108"), ("7729", "25059"), ("7849", "30990"))
BATCHES: Final = (
    ("25059", "7679–7729", "17:06:09"),
    ("27852", "7730–7789", "17:49:14"),
    ("30990", "7790–7849", "18:33:56"),
)


def look_up() -> str:
    """Draw how the time index, the offset index and the headers of batches lead to a record."""
    left, beside, segments = 3 * MARGIN, 270, 84
    times, offsets, batches, found = segments + 86, segments + 220, segments + 354, segments + 476
    edges = [MARGIN + number * (WIDTH - 2 * MARGIN) / 5 for number in range(6)]
    parts = [
        banner(MARGIN, "orders-0: the first record from 8 March 18:00 on?", "amber"),
        text(left, segments - 12, "1  Segments: which reaches that time first?", "bold"),
        bar(segments, edges, ["grey", "grey", "grey", "grey", "blue"]),
        *(
            text((start + end) / 2, segments + 19, base_offset, "mono", "middle")
            + text((start + end) / 2, segments + 46, largest_time, "muted", "middle")
            for (start, end), (base_offset, largest_time) in zip(pairwise(edges), LARGEST_TIMES, strict=True)
        ),
        text(left, times - 6, "2  Time index: from which offset on?", "bold"),
        table(left, times, (110, 90), [("time", "offset"), *TIME_ENTRIES], 2),
        text(beside, times + 55, "the last entry that is\nnot after 18:00", "muted"),
        text(left, offsets - 6, "3  Offset index: from which position on?", "bold"),
        table(left, offsets, (110, 90), [("offset", "position"), *OFFSET_ENTRIES], 2),
        text(beside, offsets + 55, "the last entry that is\nnot above 7729", "muted"),
        text(left, batches - 6, "4  Log file: which batch reaches that time first?", "bold"),
        table(left, batches, (90, 110, 110), [("position", "offsets", "largest time"), *BATCHES], 3),
        text(beside + 86, batches + 41, "read the headers\nfrom there on", "muted"),
        banner(found, "Decode that batch: it is offset 7805, of 18:00:29.", "green"),
        text(
            MARGIN,
            found + 54,
            "A look-up of offset 7805 begins with step 3, and finds the\n"
            "same batch. Without indexes, step 4 begins at position 0.",
            "muted",
        ),
        arrow_beside(left, times + 60, offsets + 60),
        arrow_beside(left, offsets + 60, batches + 36),
    ]
    description = (
        "The largest times choose the segment, the time index an offset, the offset index a position in the log file. From "
        "there on, headers are read until a batch reaches the time. A look-up by offset begins with the offset index."
    )
    return drawing("How a look-up by time finds a record", description, found + 74 + MARGIN, parts)


# -- A commit: phases of steps, what a crash in a phase leaves, and what is true when the phase is over --------

PHASES: Final = (
    (
        (
            ("1  Stage", "Tasks write batches to files\nbeside the partitions."),
            ("2  Prepare", "The driver takes .lock and\ngives offsets to the batches."),
            ("3  Interlock", "A directory that no broker\nstarts over."),
        ),
        "grey",
        "The job is undone. Readers\nsee the old rows.\n\nThe next writer removes the\ninterlock, and staged files\nafter a week.\n\nNo broker starts over the\ninterlock.",
        "The journal is on disk: the job will be completed.",
    ),
    (
        (
            ("4  Publish", "Small pieces are appended,\nlarge ones become segments."),
            ("5  Checkpoints", "Recovery points, high\nwatermarks, log starts."),
        ),
        "amber",
        "The next writer does 4 and 5\nagain, and goes on.\n\nUntil then, readers see the\nold rows; no broker starts.",
        "A line is in .segmentlog-commits: rows are visible.",
    ),
    (
        (("6  Clean up", "Staged files, journal and\ninterlock are deleted."),),
        "green",
        "Readers see the new rows.\nThe next writer cleans up;\nno broker starts before that.",
        "Done: a broker may start.",
    ),
)


def commit() -> str:
    """Draw the steps of a commit, and beside them what a crash leaves."""
    height, left_width, y = 72, 226, 40
    right = MARGIN + left_width + GAP
    parts = [text(MARGIN, 28, "What a job does", "bold"), text(right, 28, "After a crash here", "bold")]
    for steps, style, crash, achieved in PHASES:
        top = y
        for name, what in steps:
            parts.append(box(MARGIN, y, left_width, height))
            parts.append(text(MARGIN + GAP, y + 22, name, "bold") + text(MARGIN + GAP, y + 43, what, "muted"))
            y += height + GAP
        parts.append(box(right, top, WIDTH - MARGIN - right, y - GAP - top, style))
        parts += [text(right + GAP, top + 22, crash), banner(y, achieved, "blue")]
        y += 30 + GAP
    description = (
        "A job stages files, prepares them, makes an interlock and writes a journal. A crash before the journal is on disk "
        "undoes the job. After that, the next writer completes it: the files are published, the checkpoints written, and "
        "the line appended that makes the rows visible."
    )
    return drawing("The steps of a commit, and what a crash leaves", description, y + 2, parts)


# -- The two halves of a tiered topic --------

# Where each bar begins, and the styles of its segments, which have 1,000 offsets each.
HALVES: Final = (
    ("In remote storage, such as a bucket: closed segments", 0, ["gone", "amber", "amber", "amber", "amber"]),
    ("On the broker's disk: the newest segments", 3000, ["blue", "blue", "blue"]),
    ("Read with the option remoteStorage: one log", 1000, ["amber", "amber", "blue", "blue", "blue"]),
)
BOUNDS: Final = ((1000, "log start"), (3000, "local log start"), (6000, "log end"))


def tiered_topic() -> str:
    """Draw which segments of a tiered topic are where, and which of them a read takes."""
    first, height, left = 62, 76, 2 * MARGIN
    bottom = first + len(HALVES) * height - 16
    step = (WIDTH - 2 * left) / 6
    marks = [
        (left + offset / 1000 * step, "end" if name == "log end" else "middle") for offset, name in BOUNDS
    ]
    parts = []
    for (x, anchor), (offset, name) in zip(marks, BOUNDS, strict=True):
        parts += [text(x, 24, name, "bold", anchor), text(x, bottom + 10, f"{offset}", "mono", anchor)]
    for number, (name, start, styles) in enumerate(HALVES):
        y = first + number * height
        edges = [left + (start / 1000 + each) * step for each in range(len(styles) + 1)]
        parts += [text(left, y, name), bar(y + 12, edges, styles)]
        parts += [path([(x, y + 6), (x, y + 46)]) for x, _ in marks]
    note = (
        "Dashed: deleted, as it is below the log start; the objects\nmay still be there. What is in both places is read "
        "from\nthe local disk."
    )
    parts.append(text(left, bottom + 40, note, "muted"))
    description = (
        "Remote storage has the closed segments, the disk the newest ones, and some are in both. A read takes remote "
        "segments from the log start to the local log start, and local segments from there to the log end."
    )
    return drawing("The two halves of a tiered topic", description, bottom + 94, parts)


DRAWINGS: Final = {
    "log-directory.svg": log_directory,
    "look-up.svg": look_up,
    "commit.svg": commit,
    "tiered-topic.svg": tiered_topic,
}

if __name__ == "__main__":
    for file_name, draw in DRAWINGS.items():
        (Path(__file__).parent / file_name).write_text(draw(), encoding="utf-8")
