"""An object store as a file system: what a listing shows, what is asked of the store, and what is said when it fails."""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
import traceback

import pytest

from storage_core.directory.discovery import directories_that_match
from storage_core.errors import (
    FileReplacedError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
    StorageError,
    UnreadableError,
)
from storage_core.filesystem.object_store import ObjectStoreFileSystem
from storage_core.filesystem.values import DirectoryEntry, ExaminedEntry, MissingError
from storage_core.options.storage_options import StorageOptions
from tests.object_stores import faults
from tests.object_stores.object_server import SECRET_ACCESS_KEY, Rule


@pytest.fixture
def filesystem(quick_bucket):
    return reading(quick_bucket)


def reading(bucket, **options):
    return ObjectStoreFileSystem(
        StorageOptions.of({**bucket.storage_options, "storage.max-retries": "1", **options})
    )


def put_all(bucket, *keys):
    for key in keys:
        bucket.put(key, key.encode())


def names(filesystem, path):
    return [entry.name for entry in filesystem.list_directory(path)]


# -- Listings --------


def test_a_root_is_listed_once_with_all_that_is_below_it(quick_bucket, filesystem):
    keys = [f"logs/t-{number}/{number:020}.{kind}" for number in range(700) for kind in ("log", "index")]
    put_all(quick_bucket, *keys, "logs/meta.properties", "logs-2/t-0/0.log", "zoo")
    root = quick_bucket.uri("logs")

    assert filesystem.status(root).is_directory
    assert quick_bucket.counts() == {"LIST": 1}
    assert names(filesystem, root) == sorted(["meta.properties", *(f"t-{number}" for number in range(700))])
    for number in range(0, 700, 99):
        found = f"{root}/t-{number}/{number:020}.log"
        assert filesystem.status(found).size_bytes == len(f"logs/t-{number}/{number:020}.log")
        assert filesystem.exists(os.path.dirname(found))
        assert not filesystem.exists(f"{found}.deleted")
        assert names(filesystem, os.path.dirname(found)) == [f"{number:020}.index", f"{number:020}.log"]
        filesystem.open(found).close()
    assert quick_bucket.counts() == {"LIST": 2}
    assert filesystem.statistics.directories_listed == 2


def test_entries_are_those_of_a_directory(quick_bucket, filesystem):
    put_all(quick_bucket, "logs/t-0/0.log", "logs/a")
    assert filesystem.list_directory(quick_bucket.uri("logs")) == [
        DirectoryEntry("a", False, True, False),
        DirectoryEntry("t-0", True, False, False),
    ]
    modified_ms = filesystem.status(quick_bucket.uri("logs/a")).modified_ms
    assert sorted(filesystem.examine_directory(quick_bucket.uri("logs"))) == [
        ExaminedEntry("a", "file", 6, 6, modified_ms),
        ExaminedEntry("t-0", "directory", 0, 0, 0),
    ]


def test_the_version_of_a_directory_is_its_uri(quick_bucket, filesystem):
    put_all(quick_bucket, "logs/t-0/0.log")
    for key in ("", "logs", "logs/t-0"):
        assert filesystem.status(quick_bucket.uri(key) + "/").version == quick_bucket.uri(key)


def test_what_does_not_exist(quick_bucket, filesystem):
    put_all(quick_bucket, "logs/t-0/0.log")
    for path in ("log", "logs/t", "logs/t-0/0.log/x", "logs/t-0/1.log"):
        assert filesystem.status(quick_bucket.uri(path)) is None
        assert filesystem.read_file(quick_bucket.uri(path), 10) is None
        with pytest.raises(MissingError, match=path):
            filesystem.open(quick_bucket.uri(path))
        with pytest.raises(MissingError, match=path):
            filesystem.list_directory(quick_bucket.uri(path))
    assert filesystem.status(quick_bucket.uri("logs"))
    with pytest.raises(LogDirectoryError, match="found a directory"):
        filesystem.open(quick_bucket.uri("logs/t-0"))
    with pytest.raises(LogDirectoryError, match="found an object") as caught:
        filesystem.list_directory(quick_bucket.uri("logs/t-0/0.log"))
    assert not isinstance(caught.value, MissingError)


def test_an_empty_bucket_is_an_empty_directory(bucket):
    filesystem = reading(bucket)
    assert filesystem.status(bucket.uri()).is_directory
    assert names(filesystem, bucket.uri()) == []


@pytest.mark.parametrize(
    "name", ["ä ö.log", "a+b%20c.log", "#?&=;", "%2e", "日本", "'\"<>", "a\\b", "x" * 900, "~", "e\u0301"]
)
def test_names_with_special_characters(bucket, name):
    bucket.put(f"logs/{name}/{name}", b"content")
    filesystem = reading(bucket)
    assert filesystem.status(bucket.uri("logs")).is_directory
    assert names(filesystem, bucket.uri("logs")) == [name]
    assert filesystem.read_file(bucket.uri(f"logs/{name}/{name}"), 10) == b"content"
    assert reading(bucket).read_file(bucket.uri(f"logs/{name}/{name}"), 10) == b"content"


@pytest.mark.parametrize("key", ["logs/a//b", "logs//b", "logs/../b", "logs/./b"])
def test_a_key_that_is_no_path_is_named(bucket, key):
    bucket.put(key, b"")
    with pytest.raises(LogDirectoryError, match=r"has an empty part") as caught:
        reading(bucket).status(bucket.uri("logs"))
    assert key in str(caught.value)


def test_objects_that_stand_for_directories(bucket):
    for key in ("logs/", "logs/t-0/", "logs/t-0"):
        bucket.put(key, b"")
    bucket.put("logs/t-0/0.log", b"x")
    for ask in (ObjectStoreFileSystem.status, ObjectStoreFileSystem.list_directory):
        filesystem = reading(bucket)
        ask(filesystem, bucket.uri("logs"))
        assert filesystem.list_directory(bucket.uri("logs")) == [DirectoryEntry("t-0", True, False, False)]
        assert names(filesystem, bucket.uri("logs/t-0")) == ["0.log"]


# -- What is asked of the store --------


def test_a_glob_does_not_list_what_it_passes(quick_bucket, filesystem):
    put_all(quick_bucket, *(f"data/old/{number}" for number in range(3000)), "data/new/t-0/0.log", "x")
    assert names(filesystem, quick_bucket.uri()) == ["data", "x"]
    assert names(filesystem, quick_bucket.uri("data")) == ["new", "old"]
    assert quick_bucket.counts() == {"LIST": 2}
    assert filesystem.status(quick_bucket.uri("data/new")).is_directory
    assert quick_bucket.counts() == {"LIST": 2}
    assert names(filesystem, quick_bucket.uri("data/new")) == ["t-0"]
    assert names(filesystem, quick_bucket.uri("data/new/t-0")) == ["0.log"]
    assert quick_bucket.counts() == {"LIST": 3}


@pytest.mark.parametrize(
    ("glob", "lists"), [("data/n*/logs", 2), ("*/new/logs", 2), ("data/{new,none}/l*", 2), ("d*/*/logs", 4)]
)
def test_directories_of_a_glob_are_found_by_level(quick_bucket, filesystem, glob, lists):
    put_all(quick_bucket, *(f"data/old/{number}" for number in range(3000)), "data/new/logs/t-0/0.log", "x")
    found = directories_that_match(filesystem, quick_bucket.uri(glob))
    assert found == [quick_bucket.uri("data/new/logs")]
    assert quick_bucket.counts()["LIST"] == lists


def test_files_beside_a_partition_cost_one_listing(quick_bucket, filesystem):
    put_all(quick_bucket, "logs/t-0/0.log", "logs/meta.properties")
    assert filesystem.status(quick_bucket.uri("logs/t-0")).is_directory
    for name in ("recovery-point-offset-checkpoint", ".lock", ".kafka_cleanshutdown"):
        assert filesystem.status(quick_bucket.uri(f"logs/{name}")) is None
    assert filesystem.read_file(quick_bucket.uri("logs/meta.properties"), 100) == b"logs/meta.properties"
    assert quick_bucket.counts() == {"LIST": 2, "GET": 1}


def test_a_single_object(quick_bucket, filesystem):
    put_all(quick_bucket, "p/0.log")
    assert filesystem.status(quick_bucket.uri("p/0.log")).is_regular_file
    assert quick_bucket.counts() == {"LIST": 1, "HEAD": 1}
    with filesystem.open(quick_bucket.uri("p/0.log")) as opened:
        assert opened.read_at(100, 0) == b"p/0.log"
    assert quick_bucket.counts() == {"LIST": 1, "HEAD": 1, "GET": 1}


def test_a_version_opens_without_a_listing(quick_bucket, filesystem):
    put_all(quick_bucket, "p/0.log")
    version = filesystem.status(quick_bucket.uri("p/0.log")).version
    quick_bucket.forget()
    with reading(quick_bucket).open(quick_bucket.uri("p/0.log"), version) as opened:
        assert opened.status.version == version
        assert opened.read_at(3, 2) == b"0.l"
    assert quick_bucket.counts() == {"GET": 1}


def test_listings_are_forgotten_and_made_again(quick_bucket, filesystem):
    put_all(quick_bucket, "logs/t-0/0.log")
    root = quick_bucket.uri("logs")
    assert filesystem.status(root)
    assert names(filesystem, f"{root}/t-0") == ["0.log"]
    put_all(quick_bucket, "logs/t-0/1.log")
    assert names(filesystem, f"{root}/t-0") == ["0.log"]
    filesystem.forget_listings()
    quick_bucket.forget()
    # The first question may be about anything below.
    assert filesystem.exists(f"{root}/t-0/1.log")
    assert filesystem.status(root)
    assert names(filesystem, f"{root}/t-0") == ["0.log", "1.log"]
    assert quick_bucket.counts() == {"LIST": 1}


def test_small_files_are_limited(quick_bucket, filesystem):
    put_all(quick_bucket, "logs/meta.properties")
    assert filesystem.read_file(quick_bucket.uri("logs/meta.properties"), 20) == b"logs/meta.properties"
    with pytest.raises(LogDirectoryError, match="at most 19 bytes"):
        filesystem.read_file(quick_bucket.uri("logs/meta.properties"), 19)


def test_a_store_is_shared_and_has_no_locks(quick_bucket, filesystem):
    path = quick_bucket.uri("logs/.lock")
    assert filesystem.traits_of(path).is_shared
    assert not filesystem.is_locked(path)
    assert filesystem.free_bytes(path) is None


def test_a_process_that_was_forked_does_not_hang(quick_bucket, filesystem):
    put_all(quick_bucket, "logs/t-0/0.log")
    assert filesystem.exists(quick_bucket.uri("logs"))
    child = os.fork()
    if not child:
        try:
            reading(quick_bucket).status(quick_bucket.uri("logs"))
        except StorageError as error:
            os._exit(0 if "spawn" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- Several at a time --------


def test_results_come_in_order(filesystem):
    started = threading.Barrier(64, timeout=30)

    def wait(number):
        started.wait()
        return number

    assert list(filesystem.map(wait, range(64))) == list(range(64))
    assert list(filesystem.map(wait, [])) == []


def test_what_is_mapped_within_a_map_shares_its_threads(filesystem):
    most, lock, running = [0], threading.Lock(), [0]

    def work(number):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1
        return number

    assert [
        list(each) for each in filesystem.map(lambda _: list(filesystem.map(work, range(40))), range(8))
    ] == [list(range(40))] * 8
    assert most[0] <= 64


def test_no_thread_waits_for_the_end_of_a_map_that_nobody_ends(filesystem):
    """The garbage collector would end it, on any thread: also on one that it waits for."""
    results = filesystem.map(abs, range(-600, 0))

    assert next(results) == 600
    assert [thread for thread in threading.enumerate() if thread.name.startswith("segmentlog-map")] == []
    assert list(results) == list(range(599, 0, -1))


def test_an_error_ends_a_map(filesystem):
    def fail(number):
        raise StorageError(str(number))

    with pytest.raises(StorageError, match=r"^0$"):
        list(filesystem.map(fail, range(1000)))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("segmentlog-map")]


# -- Failures --------


def listing(filesystem, path):
    assert names(filesystem, path) == ["t-0"]


def examining(filesystem, path):
    assert filesystem.open(f"{path}/t-0/0.log").size_bytes() == 14


def reading_file(filesystem, path):
    etag = hashlib.md5(b"logs/t-0/0.log").hexdigest()
    with filesystem.open(f"{path}/t-0/0.log", f'14:"{etag}"') as opened:
        assert opened.read_at(14, 0) == b"logs/t-0/0.log"


ACTIONS = [listing, examining, reading_file]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (faults.denied(), UnreadableError, "may not"),
        (faults.elsewhere(), LogDirectoryError, "another region"),
        (faults.throttled(), StorageError, "503"),
        (faults.broken(), StorageError, "500"),
        (faults.closed(), StorageError, "tried again"),
        (faults.reset(), StorageError, "tried again"),
        (faults.expired(), SegmentLogError, "400"),
    ],
)
def test_a_failure_is_one_line_with_the_uri_and_no_secret(quick_bucket, action, fault, kind, said):
    put_all(quick_bucket, "logs/t-0/0.log")
    quick_bucket.rules.append(Rule(fault, times=None))
    with pytest.raises(kind, match=said) as caught:
        action(reading(quick_bucket), quick_bucket.uri("logs"))
    assert caught.value.path.startswith(quick_bucket.uri("logs"))
    assert "\n" not in str(caught.value)
    assert_tells_nothing(caught.value)


def assert_tells_nothing(error):
    """Look for the secret, and for what may hold one, in all that an error brings along."""
    told = "".join(traceback.format_exception(error)) + repr(error) + str(pickle.dumps(error))
    assert SECRET_ACCESS_KEY not in told
    while error is not None:
        assert isinstance(error, SegmentLogError)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "fault",
    [
        faults.throttled(),
        faults.broken(),
        faults.closed(),
        faults.reset(),
        faults.cut(),
        faults.cut(is_reset=True),
        faults.expired(),
    ],
)
def test_a_failure_that_passes_is_not_noticed(quick_bucket, action, fault):
    put_all(quick_bucket, "logs/t-0/0.log")
    quick_bucket.rules.append(Rule(fault))
    action(reading(quick_bucket), quick_bucket.uri("logs"))
    assert quick_bucket.rules[0].hits == 1


def test_a_page_that_fails_is_asked_for_again_alone(quick_bucket):
    put_all(quick_bucket, *(f"logs/{number:05}" for number in range(2500)))
    quick_bucket.rules.append(Rule(faults.cut(), kind="LIST", skip=1, times=2))
    filesystem = reading(quick_bucket, **{"storage.max-retries": "2"})
    assert filesystem.exists(quick_bucket.uri("logs"))
    assert len(names(filesystem, quick_bucket.uri("logs"))) == 2500
    assert quick_bucket.counts() == {"LIST": 5}


def test_a_listing_that_failed_is_begun_anew(quick_bucket, filesystem):
    put_all(quick_bucket, *(f"logs/{number:05}" for number in range(2500)))
    assert filesystem.exists(quick_bucket.uri("logs"))
    quick_bucket.rules.append(Rule(faults.denied(), kind="LIST", skip=1))
    with pytest.raises(UnreadableError):
        names(filesystem, quick_bucket.uri("logs"))
    assert len(names(filesystem, quick_bucket.uri("logs"))) == 2500


def test_no_bucket(bucket):
    filesystem = reading(bucket)
    path = "s3://no-such-bucket/logs"
    for ask in (filesystem.status, filesystem.list_directory):
        with pytest.raises(MissingError, match=r"No such bucket.*s3://no-such-bucket/logs"):
            ask(path)


def test_no_server():
    filesystem = ObjectStoreFileSystem(
        StorageOptions.of(
            {
                "s3.endpoint": "http://127.0.0.1:1",
                "s3.access-key-id": "a",
                "s3.secret-access-key": SECRET_ACCESS_KEY,
                "storage.max-retries": 1,
            }
        )
    )
    with pytest.raises(StorageError, match=r"Connection refused.*s3://logs/t-0") as caught:
        filesystem.status("s3://logs/t-0")
    assert_tells_nothing(caught.value)


def test_wrong_credentials(bucket):
    filesystem = reading(bucket, **{"s3.access-key-id": "another"})
    with pytest.raises(UnreadableError, match="403"):
        filesystem.status(bucket.uri("logs"))


@pytest.mark.parametrize("path", ["", "s3", "s3:", "s3://", "/logs", "s3:///logs"])
def test_what_is_no_uri_of_a_bucket(filesystem, path):
    with pytest.raises(LogDirectoryError, match="Expected a URI"):
        filesystem.status(path)


# -- Versions --------


def test_a_replaced_object_is_noticed(bucket):
    filesystem = reading(bucket)
    path = bucket.uri("logs/t-0/0.log")
    put_all(bucket, "logs/t-0/0.log")
    filesystem.status(bucket.uri("logs"))
    with filesystem.open(path) as opened:
        bucket.put("logs/t-0/0.log", b"as long as that")
        with pytest.raises(FileReplacedError, match=path) as caught:
            opened.read_at(4, 0)
    assert_tells_nothing(caught.value)
    # Whoever looks again sees what there is.
    assert filesystem.read_file(path, 100) == b"as long as that"


def test_a_deleted_object_is_noticed(bucket):
    filesystem = reading(bucket)
    path = bucket.uri("logs/t-0/0.log")
    put_all(bucket, "logs/t-0/0.log", "logs/t-0/1.log")
    filesystem.status(bucket.uri("logs"))
    with filesystem.open(path) as opened:
        bucket.delete("logs/t-0/0.log")
        with pytest.raises(FileReplacedError, match="or none"):
            opened.read_at(4, 0)
    assert not filesystem.exists(path)


@pytest.mark.parametrize("content", [b"short", b"other of its size....", b"longer than it was before"])
def test_a_server_that_ignores_conditions_is_seen_through(quick_bucket, filesystem, content):
    path = quick_bucket.uri("logs/t-0/0.log")
    quick_bucket.put("logs/t-0/0.log", b"what there was before")

    def unconditional(request, answer):
        request.headers.pop("if-match", None)
        return answer()

    quick_bucket.rules.append(Rule(unconditional, times=None))
    filesystem.status(quick_bucket.uri("logs"))
    with filesystem.open(path) as opened:
        quick_bucket.put("logs/t-0/0.log", content)
        with pytest.raises(FileReplacedError):
            opened.read_at(21, 0)


# -- What is installed --------


def test_without_obstore_one_line_says_what_to_install(monkeypatch, filesystem):
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(OptionError, match=r"pip install 'spark-segmentlog\[object-store\]'"):
        filesystem.status("s3://bucket/logs")
