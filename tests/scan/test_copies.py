"""Copies of one partition, given together: dated backups, the disks of several brokers."""

from __future__ import annotations

import pytest

from storage_core.filesystem import FileSystem
from storage_core.scan.options import parse_stream_options
from storage_core.scan.read import read_task
from storage_core.scan.spans import project, record_schema
from storage_core.scan.stream import LogStream
from tests.scan.copies import batches, offsets_of, write_copy


def stream_offsets(*paths, **options):
    """The offsets that the first micro-batch of a stream returns."""
    filesystem = FileSystem()
    raw = {"path": [*map(str, paths)], "starting_offsets": "earliest", **options}
    stream = LogStream(filesystem, parse_stream_options(raw))
    schema = project(record_schema(), ("offset",))
    plan = stream.plan(stream.initial_offsets(), stream.latest_offsets())
    read = (batch for task in plan.tasks for batch in read_task(filesystem, task, schema))
    return [offset for batch in read for offset in batch["offset"].to_pylist()]


class TestSmallFilesThatCannotBeRead:
    """No row needs them."""

    @pytest.fixture(
        params=[
            ("orders-0/partition.metadata", ""),
            ("orders-0/partition.metadata", "version: 0\n"),
            ("meta.properties", "#\nnode.id=1\nversion=1\nclust"),
            ("meta.properties", ""),
        ]
    )
    def spoil(self, request):
        def write(root):
            file_name, content = request.param
            (root / file_name).write_text(content)

        return write

    @pytest.mark.parametrize("read", [offsets_of, stream_offsets])
    @pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED", "PERMISSIVE"])
    @pytest.mark.parametrize("copies", [1, 2])
    def test_all_rows_are_read(self, tmp_path, spoil, read, mode, copies):
        roots = [tmp_path / name for name in "ab"[:copies]]
        for root in roots:
            write_copy(root, {0: batches(0, 100)}, end=100)
        spoil(roots[0])
        assert read(*roots, mode=mode) == list(range(100))

    def test_a_stream_says_it_once(self, tmp_path, caplog):
        partition = write_copy(tmp_path, {0: batches(0, 10)}, end=10)
        (partition / "partition.metadata").write_text("")
        assert stream_offsets(tmp_path) == stream_offsets(tmp_path) == list(range(10))
        assert caplog.text.count("so that the topic id of") == 1
