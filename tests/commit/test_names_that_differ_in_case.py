"""Topics whose names differ only in case: two on most file systems, one directory on a file system that ignores case."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from storage_core import FileSystem, LogDirectory
from storage_core.check.index_rebuild import rebuild_indexes
from storage_core.dump.convert import convert
from storage_core.errors import LogDirectoryError, OptionError, StorageError
from storage_core.filesystem.values import ExistsError
from storage_core.options import parse_read_options
from storage_core.scan.plan import plan_scan
from tests.commit.jobs import JOBS, ROOT, commit, contents, rows_of
from tests.faults.simulated_disk import DirectoryNode
from tests.faults.simulated_filesystem import SimulatedFileSystem


class IgnoringCase(SimulatedFileSystem):
    """Keeps the case of names that are made, and finds them in any."""

    def _found(self, path):
        node, names = self._root, []
        for name in path.strip("/").split("/"):
            entries = node.entries if isinstance(node, DirectoryNode) else {}
            same = next((each for each in entries if each.lower() == name.lower()), name)
            node = entries.get(same)
            names.append(same)
        return "/" + "/".join(names)

    def _find(self, path):
        return super()._find(self._found(os.path.abspath(path)))

    def _parent(self, path):
        return super()._parent(self._found(os.path.abspath(path)))


JOB = (("Orders", 0, 3), ("orders", 0, 5))


@pytest.mark.parametrize("present", [[], ["Orders"], ["orders"]])
def test_a_job_is_refused_before_anything_is_visible(present):
    filesystem = IgnoringCase()
    commit(filesystem, ROOT, JOBS[0], rows_of(("other", 0, 1)), new_partitions={"other": 1})
    for topic in present:
        commit(filesystem, ROOT, JOBS[1], rows_of((topic, 0, 2)), new_partitions={topic: 1})
    before = contents(filesystem, ROOT)
    new = {topic: 1 for topic, _, _ in JOB if topic not in present}
    with pytest.raises(OptionError, match=r"'Orders' and 'orders' on a file system that ignores case"):
        commit(filesystem, ROOT, JOBS[2], rows_of(*JOB), new_partitions=new)
    assert contents(filesystem, ROOT) == before


@pytest.mark.parametrize("present", [[], ["Orders"], ["orders"]])
@pytest.mark.parametrize("is_real", [True, False])
def test_on_other_file_systems_they_are_two_topics(tmp_path, present, is_real):
    filesystem, root = (FileSystem(), str(tmp_path)) if is_real else (SimulatedFileSystem(), ROOT)
    for topic in present:
        commit(filesystem, root, JOBS[1], rows_of((topic, 0, 2)), new_partitions={topic: 1})
    new = {topic: 1 for topic, _, _ in JOB if topic not in present}
    commit(filesystem, root, JOBS[2], rows_of(*JOB), new_partitions=new)
    found = {topic: len(rows) for (topic, _), rows in contents(filesystem, root).items()}
    assert found == {topic: count + 2 * (topic in present) for topic, _, count in JOB}


def test_one_topic_in_any_spelling_of_its_own_is_written_to():
    filesystem = IgnoringCase()
    for number in range(2):
        commit(filesystem, ROOT, JOBS[number], rows_of(("Orders", 0, 3)), new_partitions={"Orders": 1})
    assert len(contents(filesystem, ROOT)["Orders", 0]) == 6


def test_an_open_directory_refuses_the_second_name():
    filesystem = IgnoringCase()
    filesystem.make_directory("/logs")
    with LogDirectory.open("/logs", filesystem=filesystem) as logs:
        logs.create("Orders").append(pa.table({"value": [b"v"]}))
        with pytest.raises(ExistsError):
            logs.get_or_create("orders")
        assert logs.get("Orders").log_end_offset == 1


def two_topics(filesystem):
    """Make two topics as on another file system, from which they are read."""
    with LogDirectory.open("/logs", filesystem=filesystem) as logs:
        for topic in ("Orders", "orders"):
            logs.create(topic).append(pa.table({"value": [b"v"]}))


class MixedFileSystem(IgnoringCase):
    """Ignores case in all directories but the source."""

    def _found(self, path):
        return path if path.startswith("/logs") else super()._found(path)


def convert_all(filesystem):
    options = parse_read_options({"path": "/logs"})
    convert(filesystem, plan_scan(filesystem, options), options, "/out")


def rebuild_all(filesystem):
    rebuild_indexes(filesystem, parse_read_options({"path": "/logs"}), target="/out", is_all=True)


@pytest.mark.parametrize("write", [convert_all, rebuild_all])
def test_files_of_two_topics_are_not_written_over_each_other(write):
    filesystem = MixedFileSystem()
    two_topics(filesystem)
    with pytest.raises((StorageError, LogDirectoryError), match="ignores case"):
        write(filesystem)
