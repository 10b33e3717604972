"""A report as one HTML page that needs nothing else: no network, no other file.

What it says of data is text: names may be anything. A Content-Security-Policy lets only the script of this module run,
told by its hash.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.report.html_text import Content, Html, element
from storage_core.report.quantities import duration_text, size_text
from storage_core.views.finding import SEVERITIES
from storage_core.views.roots import LIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from storage_core.report.report import (
        FoundTransaction,
        Group,
        GroupPosition,
        LogMap,
        Report,
        ReportFinding,
        TopicHistory,
    )
    from storage_core.views.inventory import Inventory, RootSummary, TopicSummary
    from storage_core.views.partitions import PartitionSummary


_Item = TypeVar("_Item")
# A page of a hundred thousand segments must still open.
_MOST_FINDINGS: Final = 300
_MOST_PLACES: Final = 5
_MOST_ROWS: Final = 300
_MOST_CHARTS: Final = 40
_MOST_MAPS: Final = 150
_MOST_GROUPS: Final = 150
_MOST_POSITIONS: Final = 60
_MOST_PIECES: Final = 80
_MOST_DAMAGE_SHOWN: Final = 12
_LONGEST_TEXT: Final = 2_000
_CHART_HEIGHT: Final = 100
_SECONDS_LENGTH: Final = len(":00")
_MINUTE_MS: Final = 60_000
_FEWEST_BARS: Final = 12
_VERDICTS: Final = {
    "damage": "Damage found",
    "unreadable": "Some of it could not be read",
    "warning": "No damage found, but warnings",
    "good": "No damage found",
    "unchecked": "Not checked: only names, sizes, and first and last batches",
}
_NAMES: Final = {
    "damage": "damaged",
    "unreadable": "unreadable",
    "suspect": "suspicious",
    "warning": "warnings",
    "unclean": "left by a crash",
    "note": "notes",
}


def page_of(report: Report) -> str:
    """The page, as text of UTF-8."""
    sections = [each for each in _sections(report) if each is not None]
    style, script = _resource("report_page.css"), _resource("report_page.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),
        element("title", f"Log report: {', '.join(report.paths)}"),
        element("style", Html(style)),
    )
    body = element(
        "body",
        element("a", "Skip to the findings", class_="skip", href="#findings"),
        _header(report),
        element(
            "nav",
            element("ul", [_section_link(each) for each in sections], class_="inner"),
            class_="sections",
            aria_label="Sections",
        ),
        element("main", [content for _, _, content in sections], class_="inner", id="main"),
        element(
            "footer",
            f"Made by segmentlog report at {_time(report.made_at_ms)}. All times are UTC.",
            class_="inner",
        ),
        element("script", Html(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _resource(name: str) -> str:
    return files("storage_core.report").joinpath(name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    def source(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {source(style)}; script-src {source(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


_Section = tuple[str, str, Html]


def _sections(report: Report) -> Iterator[_Section | None]:
    """Of each section: its id, its name in the navigation, and itself."""
    yield "findings", "Findings", _findings(report)
    yield "inventory", "Inventory", _inventory(report)
    yield ("rates", "Sizes and rates", _rates(report)) if report.histories else None
    yield ("logs", "Logs", _maps(report)) if report.maps else None
    yield ("transactions", "Transactions", _transactions(report)) if report.transactions is not None else None
    yield "groups", "Groups", _groups(report)


def _section_link(section: _Section) -> Html:
    identity, name, _ = section
    return element("li", element("a", name, href=f"#{identity}"))


def _section(identity: str, title: str, *content: Content) -> Html:
    heading = f"{identity}-heading"
    return element(
        "section",
        element("h2", title, id=heading),
        *content,
        id=identity,
        aria_labelledby=heading,
    )


def _header(report: Report) -> Html:
    severity = _verdict(report)
    return element(
        "header",
        element(
            "div",
            element("h1", "Log report"),
            element("p", [[element("code", path), " "] for path in report.paths], class_="soft"),
            element("p", f"As of {_time(report.made_at_ms)} UTC", class_="soft small"),
            element("p", _VERDICTS[severity], class_=f"verdict {severity}", role="status"),
            class_="inner",
        ),
        class_="top",
    )


def _verdict(report: Report) -> str:
    found = {each.severity for each in report.findings}
    for severity in ("damage", "unreadable"):
        if severity in found:
            return severity
    if report.is_quick:
        return "unchecked"
    return "warning" if found & {"suspect", "warning"} else "good"


# -- Findings --------


def _findings(report: Report) -> Html:
    counts = Counter(each.severity for each in report.findings)
    tiles = _tiles((_NAMES[severity], f"{counts[severity]:,}") for severity in SEVERITIES if counts[severity])
    same = _same_findings(report.findings)
    notes = [each for each in same if each[0].severity == "note"]
    return _section(
        "findings",
        "Findings",
        tiles if report.findings else element("p", "Nothing needs attention.", class_="card"),
        _finding_list([each for each in same if each[0].severity != "note"]),
        element("details", element("summary", _count(counts["note"], "note")), _finding_list(notes))
        if notes
        else None,
    )


_SameFindings = tuple["ReportFinding", ...]


def _same_findings(findings: Iterable[ReportFinding]) -> list[_SameFindings]:
    """Findings that say the same of several places together, in the order of the first ones."""
    same: dict[tuple[str, ...], list[ReportFinding]] = {}
    for each in findings:
        same.setdefault((each.severity, each.kind, each.message, each.action), []).append(each)
    return [tuple(each) for each in same.values()]


def _finding_list(same: Sequence[_SameFindings]) -> Content:
    shown, more = _some(same, _MOST_FINDINGS)
    if not shown:
        return None
    return [element("ol", map(_finding, shown), class_="findings"), _and_more(more, "findings")]


def _finding(same: _SameFindings) -> Html:
    finding = same[0]
    places = [each.where for each in same if each.where]
    shown, more = _some(places, _MOST_PLACES)
    return element(
        "li",
        element("p", _badge(finding.severity), element("span", finding.kind, class_="kind")),
        element("p", _short(finding.message)),
        (element("p", element("code", _short(place)), class_="soft small") for place in shown),
        element("p", f"and {len(more):,} more places", class_="soft small") if more else None,
        element("p", finding.action, class_="small") if finding.action else None,
        class_=f"finding {finding.severity}",
    )


def _badge(severity: str) -> Html:
    return element("span", severity, class_=f"badge {severity}")


# -- Inventory --------


def _inventory(report: Report) -> Html:
    found = report.inventory
    live = [each for each in found.partitions if each.state == LIVE]
    records = _records_by_topic(report)
    return _section(
        "inventory",
        "Inventory",
        _tiles(
            [
                ("topics", f"{len(found.topics):,}"),
                ("partitions", f"{len(live):,}"),
                ("segments", f"{sum(each.segment_count for each in live):,}"),
                ("log files", size_text(sum(each.log_bytes for each in live))),
                ("all files", size_text(sum(each.size_bytes for each in found.roots))),
            ]
        ),
        _roots_table(found.roots),
        _topics_table(found.topics, records),
        element(
            "details",
            element("summary", f"Partitions ({len(found.partitions):,})"),
            _partitions_table(found.partitions),
        ),
        element("details", element("summary", "Files by kind"), _files_table(found), _foreign_files(found)),
    )


def _records_by_topic(report: Report) -> dict[str, int]:
    return {each.topic: each.record_count for each in report.histories if each.record_count is not None}


def _roots_table(roots: Sequence[RootSummary]) -> Html | None:
    columns: list[_Column[RootSummary]] = [
        ("log directory", "name", lambda each: element("code", each.path)),
        ("shut down", "text", _clean_text),
        ("node", "number", lambda each: each.node_id),
        ("cluster", "text", lambda each: each.cluster_id or ""),
        ("partitions", "number", lambda each: each.partition_count),
        ("segments", "number", lambda each: each.segment_count),
        ("size", "size", lambda each: each.size_bytes),
        ("on disk", "size", lambda each: each.allocated_bytes),
        ("free", "size", lambda each: each.free_bytes),
    ]
    return _table("Log directories", columns, roots)


def _clean_text(root: RootSummary) -> str:
    if root.unreadable is not None:
        return "unreadable"
    return {None: "unknown", True: "cleanly", False: "not cleanly, or in use"}[root.is_clean]


def _topics_table(topics: Sequence[TopicSummary], records: dict[str, int]) -> Html | None:
    columns: list[_Column[TopicSummary]] = [
        ("topic", "name", lambda each: each.topic),
        ("partitions", "number", lambda each: each.partition_count),
        ("segments", "number", lambda each: each.segment_count),
        ("records", "number", lambda each: records.get(each.topic, each.record_count)),
        ("offsets", "number", lambda each: each.offset_count),
        ("log files", "size", lambda each: each.log_bytes),
        ("all files", "size", lambda each: each.size_bytes),
        ("first", "time", lambda each: each.min_timestamp_ms),
        ("last", "time", lambda each: each.max_timestamp_ms),
        ("codecs", "text", lambda each: ", ".join(each.codecs)),
        ("formats", "text", lambda each: ", ".join(f"v{magic}" for magic in each.magics)),
    ]
    by_size = sorted(topics, key=lambda each: each.size_bytes, reverse=True)
    return _table("Topics, the largest first", columns, by_size)


def _partitions_table(partitions: Sequence[PartitionSummary]) -> Html | None:
    columns: list[_Column[PartitionSummary]] = [
        ("partition", "name", lambda each: each.name),
        ("state", "text", lambda each: each.state if each.is_read or each.state != LIVE else "other replica"),
        ("log start", "number", lambda each: each.log_start_offset),
        ("log end", "number", lambda each: each.log_end_offset),
        ("high watermark", "number", lambda each: each.high_watermark),
        ("last stable", "number", lambda each: each.last_stable_offset),
        ("epoch", "number", lambda each: each.leader_epoch),
        ("segments", "number", lambda each: each.segment_count),
        ("log files", "size", lambda each: each.log_bytes),
        ("first", "time", lambda each: each.min_timestamp_ms),
        ("last", "time", lambda each: each.max_timestamp_ms),
        ("directory", "wide", lambda each: element("code", each.directory)),
    ]
    by_size = sorted(partitions, key=lambda each: each.size_bytes, reverse=True)
    return _table("Directories of partitions, the largest first", columns, by_size)


def _files_table(found: Inventory) -> Html | None:
    columns: list[_Column[Any]] = [
        ("kind", "name", lambda each: f"{each.kind} {each.leftover or ''}"),
        ("files", "number", lambda each: each.count),
        ("size", "size", lambda each: each.size_bytes),
        ("on disk", "size", lambda each: each.allocated_bytes),
    ]
    return _table("Files by kind", columns, found.files)


def _foreign_files(found: Inventory) -> Html | None:
    if not found.foreign_files:
        return None
    columns: list[_Column[Any]] = [
        ("file", "wide", lambda each: element("code", each.path)),
        ("kind", "text", lambda each: each.kind),
        ("size", "size", lambda each: each.size_bytes),
        ("why", "wide", lambda each: each.reason),
    ]
    return _table("Files that neither Kafka nor segmentlog has", columns, found.foreign_files)


# -- Sizes and rates --------


def _rates(report: Report) -> Html:
    by_size = sorted(report.histories, key=lambda each: sum(each.bytes_by_bucket), reverse=True)
    shown, more = _some([each for each in by_size if each.bytes_by_bucket], _MOST_CHARTS)
    return _section(
        "rates",
        "Sizes and rates over time",
        element(
            "p",
            "What the directories hold now, by the timestamps of the batches: what retention and compaction have removed "
            "is not in it.",
            class_="soft small",
        ),
        map(_history, shown),
        _and_more(more, "topics"),
    )


def _history(history: TopicHistory) -> Html:
    sizes = history.bytes_by_bucket
    total_bytes = sum(sizes)
    width = duration_text(history.width_ms)
    untimed = f" {size_text(history.untimed_bytes)} have no timestamp." if history.untimed_bytes else ""
    time = _time if history.width_ms < _MINUTE_MS else _minute
    start = time(history.first_bucket * history.width_ms)
    end = time((history.first_bucket + len(sizes)) * history.width_ms)
    records = "" if history.record_count is None else f"{history.record_count:,} records, "
    return element(
        "article",
        element("h3", history.topic),
        element("p", f"{records}{size_text(total_bytes)} of batches.{untimed}", class_="soft small"),
        element(
            "div",
            _figure(
                (f"Bytes per {width}", f"at most {size_text(max(sizes))}"),
                _bars(history),
                (start, end),
            ),
            _figure(("Size", f"{size_text(total_bytes)} at the end"), _growth(history), (start, end)),
            class_="charts",
        ),
        class_="card",
    )


def _figure(caption: tuple[str, str], chart: Html, axis: tuple[str, str]) -> Html:
    return element(
        "figure",
        element("figcaption", (element("span", each) for each in caption)),
        chart,
        element("div", (element("span", each) for each in axis), class_="axis"),
    )


def _bars(history: TopicHistory) -> Html:
    sizes = history.bytes_by_bucket
    most = max(sizes) or 1
    bars = [
        element(
            "rect",
            element("title", _bar_title(history, number)),
            x=f"{number + 0.07:.2f}",
            y=f"{_CHART_HEIGHT * (1 - size / most):.1f}",
            width="0.86",
            height=f"{_CHART_HEIGHT * size / most:.1f}",
        )
        for number, size in enumerate(sizes)
        if size
    ]
    return _chart(bars, len(sizes), f"Bytes of topic {history.topic} by time, at most {size_text(most)}")


def _bar_title(history: TopicHistory, number: int) -> str:
    start = _time((history.first_bucket + number) * history.width_ms)
    records = "" if history.records_by_bucket is None else f", {history.records_by_bucket[number]:,} records"
    size_bytes = history.bytes_by_bucket[number]
    rate = size_bytes * 1_000 / history.width_ms
    return f"{start}: {size_text(size_bytes)}{records}, {size_text(rate)}/s"


def _growth(history: TopicHistory) -> Html:
    sizes = history.bytes_by_bucket
    total = sum(sizes) or 1
    points, held = [f"0 {_CHART_HEIGHT}"], 0
    for number, size in enumerate(sizes):
        held += size
        points.append(f"{number + 1} {_CHART_HEIGHT * (1 - held / total):.1f}")
    line = f"M{'L'.join(points)}"
    width = max(len(sizes), 1)
    paths = [
        element("path", d=f"{line}L{width} {_CHART_HEIGHT}Z", class_="area"),
        element("path", d=line, class_="edge"),
    ]
    return _chart(paths, width, f"Size of topic {history.topic} by time, up to {size_text(total)}", fewest=1)


def _chart(content: Content, width: int, label: str, *, fewest: int = _FEWEST_BARS) -> Html:
    return element(
        "svg",
        content,
        class_="chart",
        viewbox=f"0 0 {max(width, fewest)} {_CHART_HEIGHT}",
        preserveaspectratio="none",
        role="img",
        aria_label=label,
    )


# -- Logs --------


def _maps(report: Report) -> Html:
    ordered = sorted(report.maps, key=lambda each: (not each.damage, -each.size_bytes))
    shown, more = _some(ordered, _MOST_MAPS)
    return _section(
        "logs",
        "Damage map of each log",
        element(
            "p",
            _legend("even", "a segment"),
            _legend("odd", "the next one"),
            _legend("damage", "damaged bytes"),
            _legend("suspect", "suspicious, or left by a crash"),
            class_="legend",
        ),
        element("div", map(_log_map, shown), class_="card long"),
        _and_more(more, "logs, all without damage" if not any(each.damage for each in more) else "logs"),
    )


def _legend(kind: str, meaning: str) -> Html:
    square = element(
        "svg", element("rect", width=16, height=16, class_=kind), class_="map", aria_hidden="true"
    )
    return element("span", square, meaning)


def _log_map(log: LogMap) -> Html:
    damaged = [each for each in log.damage if each.severity == "damage"]
    state = _badge("damage") if damaged else (_badge("suspect") if log.damage else None)
    shown, more = _some(log.damage, _MOST_DAMAGE_SHOWN)
    return element(
        "div",
        element(
            "div",
            element("h3", state, f"{log.topic}-{log.partition}"),
            element(
                "span",
                f"{_count(len(log.segments), 'segment')}, {size_text(log.size_bytes)}; at its next start "
                f"{log.start_outcome}",
                class_="soft small",
            ),
            class_="head",
        ),
        _map_picture(log),
        element("ul", (element("li", _damage_text(each)) for each in shown)) if shown else None,
        _and_more(more, "ranges"),
        class_="log",
    )


def _damage_text(damage: Any) -> Content:
    return [
        _badge(damage.severity),
        f"segment {damage.base_offset}, bytes {damage.start_byte:,} to {damage.end_byte - 1:,}: ",
        _short(damage.reason),
    ]


def _map_picture(log: LogMap) -> Html:
    total = log.size_bytes or 1
    scale = 1000 / total
    starts, position = {}, 0
    for segment in log.segments:
        starts[segment.base_offset] = position
        position += segment.size_bytes
    pieces = []
    for number, (start, end) in enumerate(_pieces(log)):
        pieces.append(
            element(
                "rect",
                x=f"{start * scale:.1f}",
                y=0,
                width=f"{max((end - start) * scale, 0.5):.1f}",
                height=24,
                class_="odd" if number % 2 else "even",
            )
        )
    for damage in log.damage:
        start = starts[damage.base_offset] + damage.start_byte
        pieces.append(
            element(
                "rect",
                element("title", _short(damage.reason)),
                x=f"{min(start * scale, 996):.1f}",
                y=0,
                width=f"{max((damage.end_byte - damage.start_byte) * scale, 4):.1f}",
                height=24,
                class_=damage.severity,
            )
        )
    ranges = _count(len(log.damage), "damaged or suspicious range")
    return element(
        "svg",
        pieces,
        class_="map",
        viewbox="0 0 1000 24",
        preserveaspectratio="none",
        role="img",
        aria_label=f"{log.topic}-{log.partition}: {_count(len(log.segments), 'segment')}, {ranges}",
    )


def _pieces(log: LogMap) -> Iterator[tuple[int, int]]:
    """Where the segments begin and end, of many of them several at a time."""
    step = -(-len(log.segments) // _MOST_PIECES) or 1
    position = 0
    for first in range(0, len(log.segments), step):
        size_bytes = sum(each.size_bytes for each in log.segments[first : first + step])
        yield position, position + size_bytes
        position += size_bytes


# -- Transactions --------


def _transactions(report: Report) -> Html:
    found = report.transactions
    assert found is not None  # noqa: S101  (the section is left out without)
    if not found.counts:
        return _section("transactions", "Transactions", element("p", "There are none.", class_="card"))
    now_ms = report.made_at_ms
    open_columns: list[_Column[FoundTransaction]] = [
        *_transaction_columns(),
        ("open for", "duration", lambda each: _since(each.transaction.start_timestamp_ms, now_ms)),
        ("abort it with", "wide", lambda each: element("code", each.abort_command or "")),
    ]
    ended_columns: list[_Column[FoundTransaction]] = [
        *_transaction_columns(),
        ("state", "text", lambda each: each.transaction.state),
        (
            "took",
            "duration",
            lambda each: _since(each.transaction.start_timestamp_ms, each.transaction.end_timestamp_ms),
        ),
    ]
    return _section(
        "transactions",
        "Transactions",
        _tiles((state, f"{count:,}") for state, count in sorted(found.counts.items())),
        _table("Open, the oldest first", open_columns, found.open, found.counts.get("open", 0)),
        _table("Those that took longest", ended_columns, found.longest, len(found.longest)),
    )


def _transaction_columns() -> list[_Column[FoundTransaction]]:
    return [
        ("partition", "name", lambda each: f"{each.topic}-{each.partition}"),
        ("producer", "number", lambda each: each.transaction.producer_id),
        ("epoch", "number", lambda each: each.transaction.producer_epoch),
        ("first offset", "number", lambda each: each.transaction.first_offset),
        ("last offset", "number", lambda each: each.transaction.last_offset),
        ("records", "number", lambda each: each.transaction.record_count),
        ("began", "time", lambda each: each.transaction.start_timestamp_ms),
    ]


def _since(start_ms: int, end_ms: int) -> int | None:
    return None if NO_TIMESTAMP_MS in (start_ms, end_ms) else max(end_ms - start_ms, 0)


# -- Groups --------


def _groups(report: Report) -> Html:
    if not report.groups:
        reason = (
            "No __consumer_offsets is in these directories." if report.groups is None else "There are none."
        )
        return _section("groups", "Groups and lag", element("p", reason, class_="card"))
    by_lag = sorted(report.groups, key=lambda each: -(each.lag or 0))
    columns: list[_Column[Group]] = [
        ("group", "name", lambda each: each.name),
        ("kind", "text", lambda each: each.kind),
        ("partitions", "number", lambda each: len(each.positions)),
        ("lag", "number", lambda each: each.lag),
        (
            "last commit",
            "time",
            lambda each: max((position.commit_time_ms for position in each.positions), default=None),
        ),
    ]
    shown, more = _some(by_lag, _MOST_GROUPS)
    return _section(
        "groups",
        "Groups and lag",
        _table("Groups, the largest lag first", columns, by_lag),
        map(_group_details, shown),
        _and_more(more, "groups"),
    )


def _group_details(group: Group) -> Html:
    columns: list[_Column[GroupPosition]] = [
        ("partition", "name", lambda each: f"{each.topic}-{each.partition}"),
        ("offset", "number", lambda each: each.offset),
        ("log start", "number", lambda each: each.log_start_offset),
        ("log end", "number", lambda each: each.log_end_offset),
        ("lag", "number", lambda each: each.lag),
        ("committed", "time", attrgetter("commit_time_ms")),
        ("metadata", "wide", lambda each: _short(each.metadata or "")),
    ]
    positions = sorted(group.positions, key=lambda each: -(each.lag or 0))
    lag = "lag unknown" if group.lag is None else f"lag {group.lag:,}"
    return element(
        "details",
        element("summary", f"{group.name}: {_count(len(positions), 'partition')}, {lag}"),
        _table(f"Positions of {group.name}", columns, positions, most=_MOST_POSITIONS),
    )


# -- Parts --------

# The heading of a column, what it holds, and how it is told from an item.
_Column = tuple[str, str, "Callable[[_Item], Content]"]
_NUMBERS: Final = frozenset({"number", "size", "duration"})


def _table(
    caption: str,
    columns: Sequence[_Column[_Item]],
    items: Sequence[_Item],
    count: int | None = None,
    *,
    most: int = _MOST_ROWS,
) -> Html | None:
    """A table that can be sorted; of more items than are given or shown, ``count`` tells how many there are."""
    if not items:
        return None
    shown, _ = _some(items, most)
    left = (len(items) if count is None else count) - len(shown)
    head = element(
        "tr",
        (
            element("th", name, scope="col", class_="number" if kind in _NUMBERS else None)
            for name, kind, _ in columns
        ),
    )
    rows = (element("tr", (_cell(kind, of(item)) for _, kind, of in columns)) for item in shown)
    return element(
        "div",
        element(
            "div",
            element(
                "table",
                element("caption", caption),
                element("thead", head),
                element("tbody", rows),
                class_="sortable",
            ),
            class_="scroll",
            role="region",
            aria_label=caption,
            tabindex=0,
        ),
        element("p", f"and {left:,} more", class_="soft small") if left > 0 else None,
        class_="card long",
    )


def _cell(kind: str, value: Content) -> Html:
    match kind, value:
        case "name", _:
            return element("th", value, scope="row")
        case ("number", int()):
            return element("td", f"{value:,}", class_="number", data_value=value)
        case ("size", int()):
            return element("td", size_text(value), class_="number", data_value=value)
        case ("duration", int()):
            return element("td", duration_text(value), class_="number", data_value=value)
        case ("time", int()):
            return element("td", _minute(value), class_="time", data_value=value)
        case (("number" | "size" | "duration" | "time"), _):
            return element("td", class_="number" if kind != "time" else "time", data_value=-1)
        case _:
            return element("td", value, class_="wide" if kind == "wide" else None)


def _tiles(tiles: Iterable[tuple[str, str]]) -> Html:
    return element(
        "dl",
        (element("div", element("dt", name), element("dd", value)) for name, value in tiles),
        class_="tiles",
    )


def _some(items: Sequence[_Item], most: int) -> tuple[Sequence[_Item], Sequence[_Item]]:
    return items[:most], items[most:]


def _and_more(items: Sequence[object], what: str) -> Html | None:
    return element("p", f"and {len(items):,} more {what}", class_="soft") if items else None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _minute(timestamp_ms: int) -> str:
    """A time as in `_time`, without seconds."""
    text = _time(timestamp_ms)
    return text[:-_SECONDS_LENGTH] if text.count(":") == 2 else text  # noqa: PLR2004


def _time(timestamp_ms: int) -> str:
    """A time of UTC; a number where no calendar has it, and nothing where there is none."""
    if timestamp_ms == NO_TIMESTAMP_MS:
        return ""
    try:
        found = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return f"{found:%Y-%m-%d %H:%M:%S}"
