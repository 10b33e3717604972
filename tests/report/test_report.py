"""What a report finds, and the page that shows it: all of it as text, whatever names say."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from html.parser import HTMLParser

import pytest
from conformance.archives import unpack_case

from storage_core import LogDirectory
from storage_core.errors import LogDirectoryError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.report.report import make_report
from storage_core.report.report_page import page_of
from tests.check.hostile_directory import FILE_NAMES, SCRIPTS, make_hostile_directory
from tests.log.logs import Clock, append, open_directory, small
from tests.views.coordinators import Coordinator

NOW_MS = 1_700_000_600_000
# Those without content, and those that the page has at all.
VOID = {"meta", "link"}
KNOWN = {
    "html", "head", "meta", "link", "title", "style", "script", "body", "a", "header", "nav", "main", "section", "footer",
    "article", "div", "h1", "h2", "h3", "p", "ul", "ol", "li", "dl", "dt", "dd", "code", "span", "details", "summary",
    "table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "svg", "rect", "path",
}  # fmt: skip


class Page(HTMLParser):
    """The elements of a page, which must close in order, and its text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts, self.found = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in {"style", "script"}:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def report_of(*paths, **options):
    return make_report(FileSystem(), options_of(list(paths), {}), now_ms=NOW_MS, **options)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    root = make_hostile_directory(tmp_path_factory.mktemp("hostile"))
    report = report_of(root)
    return report, page_of(report)


class TestFindings:
    def test_the_most_severe_finding_comes_first(self, hostile):
        report, _ = hostile
        severities = [each.severity for each in report.findings]
        assert severities[0] == "damage"
        assert severities[-1] == "note"
        assert report.has_damage
        assert report.is_complete

    def test_damage_with_its_place(self, hostile):
        report, page = hostile
        damage = next(each for each in report.findings if each.kind == "batch")
        assert "CRC" in damage.reason
        assert damage.file.endswith("orders-0/00000000000000000010.log")
        assert "orders-0/00000000000000000010.log, bytes 400 to 499, offsets 14 to 14" in Page(page).text

    def test_an_open_transaction(self, hostile):
        report, _ = hostile
        (hanging,) = [each for each in report.findings if each.kind == "open transaction"]
        assert hanging.file == "orders-0"
        assert "wait at offset 35" in hanging.reason
        (found,) = report.transactions.open
        assert found.abort_command().endswith("--topic orders --partition 0 --start-offset 35")

    def test_groups_and_their_lag(self, hostile):
        report, _ = hostile
        assert {group.name: group.lag for group in report.groups} == {
            script: 36 - number for number, script in enumerate(SCRIPTS)
        }

    def test_groups_that_are_outside_of_the_log(self, tmp_path):
        logs, _ = unpack_case("internal", tmp_path / "case")
        report = report_of(logs)
        assert {group.name for group in report.groups} >= {"group-0", "new-3"}
        assert not [each for each in report.findings if each.kind == "group"]

    def test_history_by_time(self, hostile):
        report, _ = hostile
        (orders,) = [each for each in report.histories if each.topic == "orders"]
        # The header of the damaged batch counts: its place is beyond doubt.
        assert (orders.record_count, sum(orders.records_by_bucket)) == (36, 36)
        assert (orders.width_ms, len(orders.bytes_by_bucket)) == (1_000, 101)
        assert orders.first_bucket == 1_699_999_000

    def test_buckets_widen_until_there_are_few(self, tmp_path):
        with open_directory(tmp_path / "data") as logs:
            log = logs.create("t")
            append(log, 6, timestamps=(0, 1_000, 86_400_000, 10 * 86_400_000, 1_500_000_000_000, -1))
        (history,) = report_of(tmp_path / "data").histories
        assert history.width_ms == 31_449_600_000
        assert history.bytes_by_bucket[0] == 400
        assert history.bytes_by_bucket[-1] == 100
        assert history.untimed_bytes == 100

    def test_maps_of_logs(self, hostile):
        report, _ = hostile
        (orders,) = [each for each in report.maps if each.topic == "orders"]
        assert [each.file.base_offset for each in orders.segments] == [0, 10, 20, 30]
        assert (orders.damage[0].base_offset, orders.damage[0].start_byte, orders.damage[0].end_byte) == (
            10,
            400,
            500,
        )

    def test_a_quick_report_reads_no_log_as_a_whole(self, tmp_path):
        with open_directory(tmp_path / "data") as logs:
            append(logs.create("t"), 200)
        filesystem = FileSystem()
        report = make_report(filesystem, options_of([tmp_path / "data"], {}), is_quick=True)
        assert (report.maps, report.histories, report.transactions) == ((), (), None)
        assert filesystem.statistics.bytes_read < 20_000
        assert "Not checked" in page_of(report)

    @pytest.mark.parametrize("case", ["magic0", "magic1", "compact-txn", "txn-ongoing", "torn-tail"])
    def test_directories_of_brokers(self, tmp_path, case):
        logs, _ = unpack_case(case, tmp_path / "case")
        report = report_of(logs)
        assert report.is_complete
        assert report.has_damage is (case == "torn-tail")
        Page(page_of(report))

    def test_a_stray_partition_is_reported(self, tmp_path):
        with open_directory(tmp_path / "data") as logs:
            append(logs.create("t"), 1)
        stray = tmp_path / "data" / f"t-0.{'0' * 32}-stray"
        (tmp_path / "data" / "t-0").rename(stray)
        page = Page(page_of(report_of(tmp_path / "data")))
        assert f"{stray} A broker that starts would set the directory aside as -stray." in page.text

    def test_a_partition_that_is_deleted_meanwhile_is_left_out(self, tmp_path):
        with open_directory(tmp_path / "data") as logs:
            for topic in ("deleted", "kept"):
                append(logs.create(topic), 100)
        report = report_of(
            tmp_path / "data",
            advance=lambda _: shutil.rmtree(tmp_path / "data" / "deleted-0", ignore_errors=True),
        )
        assert [each.topic for each in report.maps] == ["kept"]
        assert "kept" in Page(page_of(report)).text

    def test_only_topics_that_are_asked_for(self, example_data):
        report = make_report(FileSystem(), options_of([example_data], {"subscribe": "clicks"}))
        assert [each.topic for each in report.inventory.topics] == ["clicks"]
        assert [each.topic for each in report.histories] == ["clicks"]

    def test_wrong_use(self, tmp_path, example_data):
        with pytest.raises(LogDirectoryError):
            report_of(tmp_path)
        with pytest.raises(OptionError, match="does not exist"):
            make_report(FileSystem(), options_of([example_data], {"subscribe": "nothing"}))


@pytest.fixture
def example_data(request):
    return request.config.rootpath / "examples" / "data"


class TestPage:
    def test_data_adds_no_element_or_attribute(self, hostile):
        page = Page(hostile[1])
        assert {tag for tag, _ in page.found} <= KNOWN
        names = {name for _, attributes in page.found for name in attributes}
        assert not {name for name in names if name.startswith("on") or name in {"style", "src", "srcdoc"}}
        assert [tag for tag, _ in page.found].count("script") == 1
        addresses = [attributes["href"] for _, attributes in page.found if "href" in attributes]
        assert all(re.fullmatch(r"#[a-z]+|data:,", address) for address in addresses)

    def test_hostile_names_are_shown_as_text(self, hostile):
        page = Page(hostile[1])
        for script in SCRIPTS[:-1]:
            assert script in page.text
        assert r"a\x00b\x1b[31m\u202ec\u2028d&lt;" in page.text
        assert any(FILE_NAMES[0] in each for each in page.texts)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", hostile[1])

    def test_the_policy_allows_the_script_and_the_style_of_the_page_alone(self, hostile):
        page = hostile[1]
        policy = next(
            attributes["content"]
            for _, attributes in Page(page).found
            if attributes.get("http-equiv") == "Content-Security-Policy"
        )
        directives = dict(each.split(" ", 1) for each in policy.split("; "))
        assert directives["default-src"] == "'none'"
        for element_name in ("style", "script"):
            (content,) = re.findall(f"<{element_name}>(.*?)</{element_name}>", page, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert directives[f"{element_name}-src"] == f"'sha256-{digest}'"

    def test_it_names_no_other_host(self, hostile):
        assert not re.search(r"https?://|//[a-z]", re.sub(r"complain.*?\)", "", hostile[1]))

    def test_findings_come_first(self, hostile):
        sections = [attributes["id"] for tag, attributes in Page(hostile[1]).found if tag == "section"]
        assert sections == ["findings", "inventory", "rates", "logs", "transactions", "groups"]

    def test_pictures_have_labels(self, hostile):
        page = Page(hostile[1])
        assert "Damage found" in page.text
        pictures = [
            attributes for tag, attributes in page.found if tag == "svg" and "aria-hidden" not in attributes
        ]
        assert pictures
        assert all(each["role"] == "img" and each["aria-label"] for each in pictures)
        assert "orders-0: 4 segments, 1 damaged or suspicious range" in {
            each["aria-label"] for each in pictures
        }

    def test_tables_scroll_with_the_keyboard_and_name_their_columns(self, hostile):
        page = Page(hostile[1])
        regions = [attributes for _, attributes in page.found if attributes.get("class") == "scroll"]
        assert all(each["tabindex"] == "0" and each["role"] == "region" for each in regions)
        headings = [attributes for tag, attributes in page.found if tag == "th"]
        assert all(each["scope"] in {"col", "row"} for each in headings)

    def test_equal_findings_are_grouped(self, tmp_path):
        with open_directory(tmp_path / "data") as logs:
            for number in range(8):
                append(logs.create("t", number), 25)
                (tmp_path / "data" / f"t-{number}" / "00000000000000000010.index").unlink()
        page = Page(page_of(report_of(tmp_path / "data")))
        assert "and 3 more places" in page.text

    def test_a_commit_may_have_any_time(self, tmp_path):
        clock = Clock()
        with LogDirectory.open(tmp_path / "data", clock=clock) as logs:
            Coordinator(logs, clock).commit("g", "t", 0, 3, commitTimestamp=1_700_000_000_000_000)
        report = report_of(tmp_path / "data")
        assert [position.committed.commit_timestamp_ms for position in report.groups[0].positions] == [
            1_700_000_000_000_000
        ]
        assert "1700000000000000 ms" in Page(page_of(report)).text

    def test_an_empty_log_needs_no_attention(self, tmp_path):
        with open_directory(tmp_path / "data") as logs:
            logs.create("t")
        page = Page(page_of(report_of(tmp_path / "data")))
        assert "Nothing needs attention." in page.text
        assert "No damage found" in page.text

    @pytest.mark.thorough
    def test_ten_thousand_segments_fit_three_megabytes(self, tmp_path):
        with open_directory(tmp_path / "data", config=small(segment_bytes=100)) as logs:
            append(logs.create("topic-0"), 50)
        for number in range(1, 200):
            copy = tmp_path / "data" / f"topic-{number % 100}-{number // 100}"
            shutil.copytree(tmp_path / "data" / "topic-0-0", copy)
        report = report_of(tmp_path / "data")
        assert report.inventory.topics[0].segment_count >= 100
        page = page_of(report)
        assert sum(len(each.segments) for each in report.maps) == 10_000
        assert len(page) < 3_000_000
        assert "more topics" in Page(page).text
