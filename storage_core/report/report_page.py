"""A report as one HTML page that needs nothing else: no network, no other file.

The page is the template ``report_page.html``. What it says of data is text: names may be anything. A
Content-Security-Policy lets only the script of this package run, told by its hash.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from storage_core.errors import visible
from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.report.report import Report
from storage_core.views.finding import Finding, has_severity, verdict_of
from storage_core.views.texts import count_text, duration_text, size_text

_LONGEST_TEXT: Final = 2_000


def page_of(report: Report) -> str:
    """Return the page, as text of UTF-8."""
    style, script = _resource("report_page.css"), _resource("report_page.js")
    page = _template().render(
        report=report,
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704  (a file of this package)
        script=Markup(script),  # noqa: S704  (likewise)
        verdict=_verdict(report),
        severity_counts=Counter(each.severity for each in report.findings),
        same_findings=_same_findings(report.findings),
        **_computed_cells(report),
    )
    # The parts before the page leave empty lines.
    return page.lstrip()


def _computed_cells(report: Report) -> dict[str, Callable[..., object]]:
    """Return what tables show of their items that no attribute has."""
    record_counts = {
        each.topic: each.record_count for each in report.histories if each.record_count is not None
    }
    return {
        "abort_command_of": lambda found: found.abort_command(),
        "age_of": lambda found: _duration_ms(found.start_timestamp_ms, report.made_at_ms),
        "duration_of": lambda found: _duration_ms(found.start_timestamp_ms, found.end_timestamp_ms),
        "last_commit_of": lambda group: max(each.committed.commit_timestamp_ms for each in group.positions),
        "partition_count_of": lambda group: len(group.positions),
        "records_of": lambda topic: record_counts.get(topic.topic, topic.record_count),
    }


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    environment.filters |= {
        "by_lag": lambda items: sorted(items, key=lambda each: -(each.lag or 0)),
        "commas": _unless_none("{:,}".format),
        "count": count_text,
        "duration": _unless_none(duration_text),
        "minute": _unless_none(partial(_time, layout="%Y-%m-%d %H:%M")),
        "short": _unless_none(
            lambda text: text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."
        ),
        "size": _unless_none(size_text),
        "time": _time,
    }
    return environment.from_string(_resource("report_page.html"))


def _resource(name: str) -> str:
    return files("storage_core.report").joinpath(name).read_text("utf-8")


def _visible(value: object) -> object:
    """Write None as nothing, and what cannot be seen as escapes of Python."""
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _policy(style: str, script: str) -> str:
    def source(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {source(style)}; script-src {source(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _verdict(report: Report) -> str:
    verdict = verdict_of(report.findings)
    if verdict in {"damage", "unreadable"}:
        return verdict
    if report.is_quick:
        return "unchecked"
    is_warning = verdict == "suspect" or has_severity("warning", report.findings)
    return "warning" if is_warning else "good"


def _same_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings that differ only in their place, in the order of the first ones."""
    same: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        same.setdefault((each.severity, each.kind, each.reason, each.action, each.action_offset), []).append(
            each
        )
    return list(same.values())


# -- Filters --------


def _unless_none(text_of: Callable[..., str]) -> Callable[[object], str]:
    return lambda value: "" if value is None else text_of(value)


def _duration_ms(start_ms: int, end_ms: int) -> int | None:
    return None if NO_TIMESTAMP_MS in (start_ms, end_ms) else max(end_ms - start_ms, 0)


def _time(timestamp_ms: int, layout: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Write a time of UTC, or its milliseconds where no calendar has it."""
    if timestamp_ms == NO_TIMESTAMP_MS:
        return ""
    try:
        found = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return format(found, layout)
