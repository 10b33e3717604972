"""`segmentlog report`."""

from __future__ import annotations

import pytest

from tests.check.hostile_directory import make_hostile_directory
from tests.log.logs import append, open_directory


def test_a_page(segmentlog, example_data, tmp_path):
    ended = segmentlog("report", example_data, "-o", tmp_path / "report.html")
    assert ended.status == 0
    page = (tmp_path / "report.html").read_text()
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    for found in ("orders", "24,000", "Sizes and rates over time", "Damage map of each log"):
        assert found in page
    assert ended.stdout.startswith(f"{tmp_path / 'report.html'}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_to_standard_output(segmentlog, example_data):
    ended = segmentlog("report", example_data, "-o", "-", "--quick", "--subscribe", "clicks")
    assert ended.stdout.startswith("<!DOCTYPE html>")
    assert ended.stdout.endswith("</html>\n")
    assert "orders" not in ended.stdout


def test_an_older_page_is_replaced(segmentlog, example_data, tmp_path):
    (tmp_path / "report.html").write_text("x" * 1_000_000)
    assert segmentlog("report", example_data, "-o", tmp_path / "report.html", "--quick").status == 0
    assert (tmp_path / "report.html").stat().st_size < 1_000_000


def test_damage_is_status_1_and_the_page_is_written(segmentlog, tmp_path):
    root = make_hostile_directory(tmp_path)
    ended = segmentlog("report", root, "-o", tmp_path / "report.html", "--jobs", "1")
    assert ended.status == 1
    assert "Damage found" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{data}/report.html", "which is read"),
        ("{data}/orders-0/report.html", "which is read"),
        ("{tmp}/no/report.html", "Expected a directory"),
        ("{tmp}", "Expected a file"),
    ],
)
def test_where_no_page_is_written(segmentlog, tmp_path, target, message):
    data = tmp_path / "data"
    with open_directory(data) as logs:
        append(logs.create("orders"), 1)
    before = sorted(tmp_path.rglob("*"))
    ended = segmentlog("report", data, "-o", target.format(data=data, tmp=tmp_path))
    assert ended.refused(2, message)
    assert sorted(tmp_path.rglob("*")) == before
