"""The simulator itself: what it keeps, what it may lose, and that it behaves like the real file system."""

from __future__ import annotations

import inspect
import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import LogDirectoryError, LogDirectoryLockedError, SegmentLogError, StorageError
from storage_core.filesystem import FileSystem
from tests.examples import examples
from tests.faults.simulated_disk import CrashStyle
from tests.faults.simulated_filesystem import SimulatedCrash, SimulatedFileSystem, TriedStates

ANY = CrashStyle("any", 512, fills_with_zeros=True)
ANY_STALE = CrashStyle("any", 512, fills_with_zeros=False)
UNTIL = CrashStyle("until", 512, fills_with_zeros=True)
NOTHING = CrashStyle("nothing", 512, fills_with_zeros=True)
EVERYTHING = CrashStyle("everything", 512, fills_with_zeros=True)

OLD, NEW = b"o" * 512, b"n" * 512


@pytest.fixture
def filesystem():
    filesystem = SimulatedFileSystem()
    filesystem.make_directory("/disk")
    filesystem.flush_directory("/")
    return filesystem


def write(filesystem, path, data, position=0, *, flush=False):
    with filesystem.open_for_writing(path, create=True) as opened:
        opened.write_at([data], position)
        if flush:
            opened.flush()


def states(filesystem, style, count=400):
    """Return all distinct states over many crashes."""
    return [filesystem.crash(random.Random(seed), style).files() for seed in range(count)]


def contents(filesystem, style, path, count=400):
    return {files.get(path) for files in states(filesystem, style, count)}


# -- What a power cut leaves --------


def test_every_method_is_simulated():
    """No inherited method may reach the real file system."""
    public = {
        name for name, _ in inspect.getmembers(FileSystem, inspect.isfunction) if not name.startswith("_")
    }
    # Made of the others, or of nothing.
    public -= {"exists", "make_directories", "forget_listings", "map", "traits_of"}
    assert public - vars(SimulatedFileSystem).keys() == set()


def test_entries_are_examined_as_their_statuses_say(filesystem):
    filesystem.put("/disk/a", b"content")
    filesystem.put("/disk/folder/b", b"")
    a, folder = filesystem.examine_directory("/disk")
    modified_ms = filesystem.status("/disk/a").modified_ms
    assert a == ("a", "file", 7, 7, modified_ms)
    assert (folder.name, folder.kind) == ("folder", "directory")


def test_what_is_flushed_stays(filesystem):
    write(filesystem, "/disk/a", b"content", flush=True)
    filesystem.flush_directory("/disk")
    for style in (ANY, ANY_STALE, UNTIL, NOTHING, EVERYTHING):
        assert contents(filesystem, style, "/disk/a", 20) == {b"content"}


def test_a_new_file_may_lose_its_name_although_it_was_flushed(filesystem):
    write(filesystem, "/disk/a", b"content", flush=True)
    assert contents(filesystem, ANY, "/disk/a") == {None, b"content"}
    assert contents(filesystem, NOTHING, "/disk/a") == {None}


def test_a_new_directory_may_be_lost_with_all_that_is_in_it(filesystem):
    filesystem.make_directory("/disk/topic-0")
    write(filesystem, "/disk/topic-0/a", b"content", flush=True)
    filesystem.flush_directory("/disk/topic-0")
    assert contents(filesystem, ANY, "/disk/topic-0/a") == {None, b"content"}
    filesystem.flush_directory("/disk")
    assert contents(filesystem, ANY, "/disk/topic-0/a") == {b"content"}


def test_each_sector_is_old_or_new(filesystem):
    filesystem.put("/disk/a", OLD * 3)
    write(filesystem, "/disk/a", NEW * 3)
    seen = contents(filesystem, ANY, "/disk/a")
    assert seen == {a + b + c for a in (OLD, NEW) for b in (OLD, NEW) for c in (OLD, NEW)}


def test_an_ordered_file_system_tears_only_the_last_write(filesystem):
    filesystem.put("/disk/a", OLD * 3)
    for position in range(3):
        write(filesystem, "/disk/a", NEW, position * 512)
    assert contents(filesystem, UNTIL, "/disk/a") == {OLD * 3, NEW + OLD * 2, NEW * 2 + OLD, NEW * 3}


def test_a_sector_holds_all_that_was_written_to_it_before(filesystem):
    filesystem.put("/disk/a", OLD)
    write(filesystem, "/disk/a", b"1", 10)
    write(filesystem, "/disk/a", b"2", 20)
    first = OLD[:10] + b"1" + OLD[11:]
    assert contents(filesystem, ANY, "/disk/a") == {OLD, first, first[:20] + b"2" + first[21:]}


def test_sizes_are_old_or_new_and_holes_read_as_zeros(filesystem):
    filesystem.put("/disk/a", OLD)
    write(filesystem, "/disk/a", NEW * 2, 512)
    zeros = bytes(512)
    assert contents(filesystem, ANY, "/disk/a") == {
        OLD, OLD + NEW * 2, OLD + zeros + NEW, OLD + NEW + zeros, OLD + zeros * 2,
    }  # fmt: skip


def test_holes_may_read_as_old_content(filesystem):
    filesystem.put("/disk/a", OLD)
    write(filesystem, "/disk/a", NEW, 512)
    seen = contents(filesystem, ANY_STALE, "/disk/a")
    # The first sector repeated, as if the file had been stored there before, or random bytes.
    assert {OLD, OLD + NEW, OLD + OLD} < seen
    assert len(seen) > 10


def test_a_truncated_file_may_have_its_old_size(filesystem):
    filesystem.put("/disk/a", OLD * 2)
    with filesystem.open_for_writing("/disk/a") as opened:
        opened.truncate(100)
    assert contents(filesystem, ANY, "/disk/a") == {OLD * 2, OLD[:100]}
    assert contents(filesystem, UNTIL, "/disk/a") == {OLD * 2, OLD[:100]}


def test_a_rename_happens_as_a_whole_or_not_at_all(filesystem):
    filesystem.put("/disk/a", b"old")
    filesystem.put("/disk/a.tmp", b"new")
    filesystem.rename("/disk/a.tmp", "/disk/a")
    both = [{"/disk/a": b"old", "/disk/a.tmp": b"new"}, {"/disk/a": b"new"}]
    for style in (ANY, UNTIL):
        seen = states(filesystem, style, 40)
        assert all(state in seen for state in both)
        assert all(state in both for state in seen)


def test_a_link_exists_or_not_and_is_the_same_file(filesystem):
    filesystem.put("/disk/a", b"old")
    filesystem.link("/disk/a", "/disk/b")
    both = [{"/disk/a": b"old"}, {"/disk/a": b"old", "/disk/b": b"old"}]
    seen = states(filesystem, ANY, 40)
    assert all(state in seen for state in both)
    assert all(state in both for state in seen)
    filesystem.flush_directory("/disk")
    with filesystem.open_for_writing("/disk/b") as file:
        file.write_at([b"new"], 0)
        file.flush()
    assert states(filesystem, ANY, 5) == [{"/disk/a": b"new", "/disk/b": b"new"}] * 5
    assert filesystem.kill().status("/disk/a").version == filesystem.status("/disk/b").version
    with pytest.raises(FileExistsError):
        filesystem.link("/disk/a", "/disk/b")


def test_a_renamed_file_that_was_not_flushed_may_be_empty(filesystem):
    """What a program that forgets to flush finds after a power cut."""
    filesystem.put("/disk/a", b"old")
    write(filesystem, "/disk/a.tmp", b"new")
    filesystem.rename("/disk/a.tmp", "/disk/a")
    filesystem.flush_directory("/disk")
    assert contents(filesystem, ANY, "/disk/a") >= {b"", b"new"}


def test_entries_are_independent_of_one_another(filesystem):
    for name in "abc":
        write(filesystem, f"/disk/{name}", b"1", flush=True)
    seen = {frozenset(files) for files in states(filesystem, ANY)}
    assert len(seen) == 8
    assert {len(files) for files in states(filesystem, UNTIL)} == {0, 1, 2, 3}


def test_a_deleted_file_may_be_back(filesystem):
    filesystem.put("/disk/a", b"content")
    assert filesystem.delete("/disk/a")
    assert not filesystem.delete("/disk/a")
    assert contents(filesystem, ANY, "/disk/a") == {None, b"content"}


def test_the_end_of_the_process_loses_nothing_but_a_power_cut_later_may(filesystem):
    write(filesystem, "/disk/a", NEW)
    killed = filesystem.kill()
    assert killed.files() == {"/disk/a": NEW}
    assert contents(killed, ANY, "/disk/a") == {None, b"", bytes(512), NEW}
    write(killed, "/disk/a", OLD)
    assert filesystem.files() == {"/disk/a": NEW}


def test_the_same_seed_gives_the_same_state(filesystem):
    for number in range(20):
        write(filesystem, f"/disk/{number}", NEW * 4)
    one, other = (filesystem.crash(random.Random(5)).files() for _ in range(2))
    assert one == other
    assert one != filesystem.crash(random.Random(6)).files()


# -- The end of the process --------


def test_the_process_ends_at_the_configured_call(filesystem):
    before = filesystem.calls
    filesystem.stop_at = before + 2
    with pytest.raises(SimulatedCrash):
        write(filesystem, "/disk/a", b"content", flush=True)
    assert filesystem.calls == before + 2
    # The write itself may have taken effect; later calls do not.
    assert filesystem.files() == {"/disk/a": b"content"}
    for call in (
        lambda: filesystem.status("/disk/a"),
        lambda: filesystem.open("/disk/a"),
        lambda: filesystem.delete("/disk/a"),
        lambda: filesystem.list_directory("/disk"),
    ):
        with pytest.raises(SimulatedCrash):
            call()
    assert filesystem.kill().files() == {"/disk/a": b"content"}


def test_an_interrupted_flush_guarantees_nothing(filesystem):
    filesystem.put("/disk/a", OLD)
    filesystem.stop_at = filesystem.calls + 2
    with pytest.raises(SimulatedCrash):
        write(filesystem, "/disk/a", NEW, flush=True)
    assert contents(filesystem, ANY, "/disk/a") == {OLD, NEW}


def test_calls_are_seen_before_they_happen(filesystem):
    seen = []
    filesystem.observe = lambda call: seen.append((call.name, call.path, sorted(filesystem.files())))
    write(filesystem, "/disk/a", b"1", flush=True)
    filesystem.rename("/disk/a", "/disk/b")
    assert seen == [
        ("create", "/disk/a", []),
        ("write", "/disk/a", ["/disk/a"]),
        ("flush", "/disk/a", ["/disk/a"]),
        ("rename", "/disk/b", ["/disk/a"]),
    ]


def test_a_call_fails_as_the_file_system_would(filesystem):
    filesystem.fail = lambda call: OSError(28, "No space left on device") if call.name == "write" else None
    with pytest.raises(StorageError, match="No space left"):
        write(filesystem, "/disk/a", b"1")
    assert filesystem.files() == {"/disk/a": b""}


def test_a_lock_is_held_once(filesystem):
    with filesystem.lock("/disk/.lock"):
        with pytest.raises(LogDirectoryLockedError):
            filesystem.lock("/disk/.lock")
        filesystem.crash(random.Random(1), EVERYTHING).lock("/disk/.lock")
    filesystem.lock("/disk/.lock").release()
    assert filesystem.files() == {"/disk/.lock": b""}


# -- Like the real one --------

NAMES = st.sampled_from(["a", "b", "sub", "sub/a", "sub/b", "missing/a"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.binary(max_size=9), st.integers(0, 20)),
        st.tuples(st.just("truncate"), NAMES, st.integers(0, 20)),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.sampled_from(["delete", "make", "remove", "flush", "list", "read", "open"]), NAMES),
    ),
    max_size=15,
)


def outcome(filesystem, root, step):
    """Return the result of a step: a value, or the kind of error."""
    try:
        return answer(filesystem, root, *step)
    except FileNotFoundError:
        return "missing"
    except SegmentLogError:
        return "error"


def answer(filesystem, root, kind, name, *details):
    path = os.path.join(root, name)
    if kind in {"write", "truncate"}:
        with filesystem.open_for_writing(path, create=kind == "write") as opened:
            if kind == "write":
                opened.write_at([details[0][:3], details[0][3:]], details[1])
            else:
                opened.truncate(details[0])
            opened.flush()
            return opened.size_bytes(), opened.read_at(5, 2)
    if kind == "rename":
        return filesystem.rename(path, os.path.join(root, details[0]))
    if kind == "read":
        return filesystem.read_file(path, 100), status_of(filesystem, path)
    if kind == "open":
        with filesystem.open(path) as opened:
            buffer = bytearray(7)
            return opened.read_into(memoryview(buffer), 1), bytes(buffer), opened.size_bytes()
    methods = {
        "list": "list_directory",
        "make": "make_directory",
        "remove": "delete_directory",
        "flush": "flush_directory",
    }
    return getattr(filesystem, methods.get(kind, kind))(path)


def status_of(filesystem, path):
    status = filesystem.status(path)
    if status is None or status.is_directory:
        return status is not None
    return status.size_bytes, status.is_regular_file


@given(STEPS)
@examples(300)
def test_it_behaves_like_the_real_one(steps):
    simulated = SimulatedFileSystem()
    simulated.make_directory("/disk")
    with tempfile.TemporaryDirectory() as root:
        for step in steps:
            assert outcome(simulated, "/disk", step) == outcome(FileSystem(), root, step), step
        paths = [path for path in Path(root).rglob("*") if path.is_file()]
        real = {f"/disk/{path.relative_to(root)}": path.read_bytes() for path in paths}
    assert simulated.files() == real


def test_only_regular_files_are_opened(filesystem):
    with pytest.raises(LogDirectoryError):
        filesystem.open("/disk")


# -- States that were tried --------


CHANGES = {
    "nothing": lambda filesystem: None,
    "content": lambda filesystem: filesystem.put("/a/one", b"other"),
    "another file": lambda filesystem: filesystem.put("/a/three", b""),
    "a name": lambda filesystem: filesystem.rename("/a/one", "/a/uno"),
    "a time": lambda filesystem: filesystem.set_modified_ms("/a/one", 5),
    "a link": lambda filesystem: (filesystem.delete("/a/two"), filesystem.link("/a/one", "/a/two")),
    "a directory": lambda filesystem: filesystem.make_directory("/b"),
}


def two_files():
    filesystem = SimulatedFileSystem()
    filesystem.put("/a/one", b"same")
    filesystem.put("/a/two", b"same")
    return filesystem


def test_states_that_differ_in_anything_are_all_tried():
    tried = TriedStates()
    for name, change in CHANGES.items():
        filesystem = two_files()
        change(filesystem)
        assert tried.is_new(filesystem), name
    assert not tried.is_new(two_files())
    assert tried.is_new(two_files(), "what else is known of it")


def test_a_state_after_a_kill_keeps_its_links_and_may_still_lose_unflushed_data():
    filesystem = two_files()
    filesystem.link("/a/one", "/a/three")
    with filesystem.open_for_writing("/a/three") as file:
        file.write_at([b"SAME"], 0)
    killed = filesystem.kill()
    with filesystem.open_for_writing("/a/three") as file:
        file.write_at([b"more"], 0)
    assert killed.files() == {"/a/one": b"SAME", "/a/two": b"same", "/a/three": b"SAME"}
    after = killed.crash(random.Random(1), NOTHING)
    assert after.files() == {"/a/one": b"same", "/a/two": b"same"}
