"""Secrets that reach an object store are in nothing that comes out: rows, plans, representations, messages, logs, pages."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import traceback

import pytest

from storage_core import explain, read_table
from storage_core.cli.main import run
from storage_core.errors import SegmentLogError
from storage_core.options import parse_read_options, parse_stream_options
from storage_core.options.storage_options import STORAGE_OPTIONS
from storage_core.scan.plan import plan_scan
from storage_core.scan.stream import MicroBatchPlanner
from storage_core.tier import open_file_system
from storage_core.views import plan_view
from tests.conformance.archives import unpack_case

VIEWS = ["batches", "segments", "partitions", "index", "transactions", "epochs", "files"]
PLANTED = {
    option.name: f"planted-{number}"
    for number, option in enumerate(STORAGE_OPTIONS)
    if option.kind == "text" and option.name.startswith(("adls.", "gcs."))
}


@pytest.fixture
def bucket(quick_bucket):
    """Return the quicker store: what is tested is above it."""
    return quick_bucket


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return unpack_case("txn-ongoing", tmp_path_factory.mktemp("case"))[0]


@pytest.fixture
def storage_options(bucket):
    """Returns those that work; the server compares only the key's id."""
    planted = {"s3.secret-access-key": "planted-secret", "s3.session-token": "planted-token"}
    return {**bucket.storage_options, **PLANTED, **planted}


@pytest.fixture
def logged():
    """Returns what all loggers wrote, of any level."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s %(args)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream.getvalue
    root.setLevel(level)
    root.removeHandler(handler)


def chain(error):
    """Everything that an error and those that led to it show."""
    shown = ["".join(traceback.format_exception(error))]
    pending, seen = [error], set()
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            shown += [repr(each), repr(each.args), repr(vars(each))]
            pending += [each.__cause__, each.__context__]
    return "\n".join(shown)


def assert_hidden(*texts):
    for text in texts:
        assert text
        # A traceback names this module.
        place = (
            text.lower()
            .replace(__name__.rpartition(".")[2], "-" * len("test_planted_secrets"))
            .find("planted")
        )
        assert place < 0, text[max(place - 200, 0) : place + 200]


def test_reads_plans_and_views(bucket, directory, storage_options, logged):
    uri = bucket.put_tree(directory, "logs")
    options = parse_read_options({"path": uri, "storage_options": storage_options, "include_metadata": True})
    filesystem = open_file_system(options.storage)
    plan = plan_scan(filesystem, options)
    assert_hidden(
        *map(repr, (options, filesystem, vars(filesystem), plan, plan.tasks, plan.tasks[0].settings))
    )
    explanation = explain(uri, storage_options=storage_options)
    assert_hidden(repr(explanation), json.dumps(dataclasses.asdict(explanation), default=str))
    assert_hidden(str(read_table(uri, include_metadata=True, **storage_options).to_pylist()))
    for view in VIEWS:
        of_view = parse_read_options({"path": uri, "view": view, **storage_options})
        assert_hidden(repr(of_view), repr(plan_view(open_file_system(of_view.storage), of_view)))
        assert_hidden(str(read_table(uri, view=view, **storage_options).to_pylist()))
    stream = parse_stream_options({"path": uri, **storage_options})
    planner = MicroBatchPlanner(open_file_system(stream.read.storage), stream)
    offsets = planner.latest_offsets(planner.initial_offsets())
    assert_hidden(repr(stream), repr(offsets), repr(planner.plan(planner.initial_offsets(), offsets)))
    assert_hidden("-" + logged())


@pytest.mark.parametrize(
    "wrong",
    [
        {"s3.access-key-id": "planted-key"},
        {"s3.endpoint": "http://127.0.0.1:9", "storage.max-retries": "0"},
        {"s3.endpoint": "no url planted", "storage.max-retries": "0"},
        {"aws_no_such_key": "planted"},
        {"s3.profile-name": "no-such-profile"},
        {"s3.proxy-uri": "http://planted:planted@127.0.0.1:9", "storage.max-retries": "0"},
        {"s3.request-timeout": "planted"},
    ],
    ids=str,
)
def test_calls_that_fail(bucket, directory, storage_options, logged, wrong):
    bucket.put_tree(directory, "logs")
    with pytest.raises(SegmentLogError) as raised:
        read_table(bucket.uri("logs"), storage_options={**storage_options, **wrong})
    assert_hidden(chain(raised.value), "-" + logged())


def test_a_bucket_that_does_not_exist(storage_options, logged):
    with pytest.raises(SegmentLogError) as raised:
        read_table("s3://no-such-bucket/logs", storage_options=storage_options)
    assert_hidden(chain(raised.value), "-" + logged())


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("door", ["flags", "environment"])
def test_commands(bucket, directory, storage_options, logged, door, capfd, monkeypatch, tmp_path):
    uri = bucket.put_tree(directory, "logs")
    flags = [f"--storage-option={name}={value}" for name, value in storage_options.items()]
    if door == "environment":
        flags = []
        for name, value in storage_options.items():
            if name.startswith("s3."):
                monkeypatch.setenv(f"AWS_{name[3:].replace('-', '_').upper()}", value)
    page = tmp_path / "page.html"
    outputs = []
    for command in (
        ["inventory", uri, "--output", "json"],
        ["verify", uri, "--output", "json"],
        ["cat", uri, "--json"],
        ["plan", uri, "--pieces"],
        ["report", uri, "--output", str(page)],
        ["verify", uri, "--jobs", "2"],
        ["verify", "s3://no-such-bucket/logs"],
    ):
        with pytest.raises(SystemExit):
            run([*command, *flags])
        printed = capfd.readouterr()
        outputs += [f"-{printed.out}", f"-{printed.err}"]
    assert uri in page.read_text()
    assert_hidden(*outputs, page.read_text(), "-" + logged())
