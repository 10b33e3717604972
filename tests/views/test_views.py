"""What all views have in common: their schemas, the choice of columns, conditions, and tasks that travel."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conformance.archives import unpack_case

from storage_core import read_table
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import VIEWS, options_of
from storage_core.views import VIEW_NAMES, find_view, plan_view, read_view_task, view_schema
from tests.marked_text import between_markers
from tests.view_tables import views_text

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "examples" / "data"
# Views that are not about the topics that a read chooses.
_OF_OWN_TOPICS = {"files", "group_offsets", "schemas"}


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """By view, a directory of which it has rows."""
    internal, _ = unpack_case("internal", tmp_path_factory.mktemp("internal"))
    own = {"group_offsets": internal, "schemas": ROOT / "examples" / "typed"}
    return lambda name: own.get(name, DATA)


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_a_view_is_described_and_every_name_is_in_camel_case(name: str):
    view = find_view(name)
    assert view.name == name
    assert view.doc.endswith(".")
    names = [column.name for column in view.columns]
    assert len(set(names)) == len(names)
    assert [each for each in names if not each.isidentifier() or "_" in each or each[0].isupper()] == []
    assert [column.name for column in view.columns if not column.doc.endswith(".")] == []
    assert {VIEWS[name].offset, VIEWS[name].timestamp} - {None} <= set(names)


def test_the_page_of_views_is_made_from_the_code():
    again = "run python -m tests.view_tables --write docs/views.md"
    text = (ROOT / "docs" / "views.md").read_text(encoding="utf-8")
    assert between_markers(text, "views") == views_text(), again


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_rows_have_exactly_the_schema(data_of, name: str):
    table = read_table(data_of(name), view=name)
    assert table.schema == find_view(name).schema
    table.validate(full=True)


@pytest.mark.cases(3, 10)
@pytest.mark.parametrize("name", VIEW_NAMES)
def test_each_column_can_be_read_alone_and_is_the_same_then(data_of, name: str):
    whole = read_table(data_of(name), view=name)
    for column in whole.schema.names:
        alone = read_table(data_of(name), view=name, columns=[column])
        assert alone.schema.names == [column]
        if pc.all(pc.is_null(whole[column])).as_py() and whole.num_rows:
            # Made only if it is asked for.
            assert alone.num_rows == whole.num_rows
        else:
            assert alone[column].equals(whole[column]), column


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_tasks_travel_to_other_processes(data_of, name: str):
    options = options_of([str(data_of(name))], {"view": name})
    schema = view_schema(options)
    tasks = pickle.loads(pickle.dumps(plan_view(FileSystem(), options)))
    made = [batch for task in tasks for batch in read_view_task(FileSystem(), task, schema)]
    assert pa.Table.from_batches(made, schema=schema).equals(read_table(data_of(name), view=name))
    assert all(0 < batch.num_rows <= 65_536 for batch in made)


@pytest.mark.parametrize("name", [name for name in VIEW_NAMES if name not in _OF_OWN_TOPICS])
def test_topics_and_partitions_are_chosen_as_in_a_read_of_records(name: str):
    whole = read_table(DATA, view=name)
    chosen = read_table(DATA, view=name, assign={"orders": [1]})
    expected = whole.filter((pc.field("topic") == "orders") & (pc.field("partition") == 1))
    assert chosen.equals(expected)
    assert read_table(DATA, view=name, where="topic = 'orders' AND partition = 1").equals(expected)
    assert read_table(DATA, view=name, where="topic = 'orders' AND NOT partition = 1").equals(
        whole.filter((pc.field("topic") == "orders") & (pc.field("partition") != 1))
    )


@pytest.mark.cases(3, 7)
@pytest.mark.parametrize("name", [name for name in VIEW_NAMES if VIEWS[name].offset])
def test_conditions_on_offsets_are_exact(data_of, name: str):
    column = VIEWS[name].offset
    whole = read_table(data_of(name), view=name)
    for text, keeps in (
        ("> 100", pc.greater(whole[column], 100)),
        ("<= 2000", pc.less_equal(whole[column], 2000)),
        ("IS NULL", pc.is_null(whole[column])),
    ):
        expected = whole.filter(keeps)
        assert read_table(data_of(name), view=name, where=f"offset {text}").equals(expected), text
        assert read_table(data_of(name), view=name, where=f"{column} {text}").equals(expected), text


@pytest.mark.parametrize(
    "where",
    [
        "offset IS NULL",
        "topic = 'data' AND offset IS NULL",
        "NOT offset IS NOT NULL OR partition < 0",
        "NOT (offset <=> 5 OR offset >= 0)",
        "lastOffset IS NULL AND (topic = 'data' OR FALSE)",
    ],
)
def test_conditions_may_ask_for_null_offsets(data_of, where: str):
    expected = [
        row["producerId"]
        for row in read_table(data_of("group_offsets"), view="producers").to_pylist()
        if row["lastOffset"] is None
    ]
    assert expected
    found = read_table(data_of("group_offsets"), view="producers", where=where)
    assert found["producerId"].to_pylist() == (expected if "5" not in where else [])


@pytest.mark.parametrize("name", [name for name in VIEW_NAMES if VIEWS[name].timestamp])
def test_conditions_on_timestamps_are_exact(data_of, name: str):
    column = VIEWS[name].timestamp
    whole = read_table(data_of(name), view=name)
    moment = pa.scalar(1_772_800_000_000_000, pa.timestamp("us", "UTC"))
    expected = whole.filter(pc.greater_equal(whole[column], moment))
    assert read_table(data_of(name), view=name, where="timestamp >= '2026-03-06T12:26:40Z'").equals(expected)


@pytest.mark.parametrize("where", ["TRUE", "FALSE", "NULL", "offset = 1 OR TRUE"])
def test_constant_conditions(where: str):
    whole = read_table(DATA, view="batches")
    found = read_table(DATA, view="batches", where=where)
    assert found.num_rows == (whole.num_rows if "TRUE" in where else 0)


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_a_condition_names_only_columns_of_the_view(name: str):
    with pytest.raises(OptionError, match=r"names (key|topic), and view=\w+ has no such column"):
        read_table(DATA, view=name, where="key = 'k1' AND topic = 'orders'")


def test_columns_of_another_view_are_refused():
    with pytest.raises(OptionError, match="no column is named 'crc32'"):
        read_table(DATA, view="batches", columns=["crc32"])


def test_a_directory_without_logs_has_empty_views(tmp_path):
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for name in VIEW_NAMES:
        if name not in _OF_OWN_TOPICS:
            assert read_table(tmp_path, view=name).num_rows == 0, name


@pytest.mark.parametrize("name", ["segments", "partitions", "files"])
def test_undecodable_bytes_of_paths_are_escaped(tmp_path, name: str):
    root = os.path.join(os.fsencode(tmp_path), b"disk\xff")
    shutil.copytree(os.fsencode(DATA), root)
    (row, *_) = read_table(os.fsdecode(root), view=name).to_pylist()
    paths = {"segments": [row.get("file")], "partitions": row.get("replicas"), "files": [row.get("root")]}[
        name
    ]
    assert [path.startswith(f"{tmp_path}/disk\\xff") for path in paths] == [True]


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_nothing_is_written_to_the_source(data_of, name: str):
    data = data_of(name)

    def state():
        return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in data.rglob("*"))

    before = state()
    read_table(data, view=name)
    assert state() == before
