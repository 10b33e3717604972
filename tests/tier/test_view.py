"""What the view shows, where, and what it costs."""

from __future__ import annotations

import pickle

import pytest

from storage_core import read_table
from storage_core.errors import CorruptCheckpointError, FileReplacedError, LogDirectoryError
from storage_core.filesystem import FileSystem
from storage_core.tier import TierFileSystem
from storage_core.tier.tier_files import KeptChunks
from tests.filesystem.counted_store import CountedStore
from tests.tier.conftest import read, values_of
from tests.tier.uploads import TIME_MS, TOPIC_ID, put_aiven, put_local, upload, uploads_of


class CountingFileSystem(FileSystem):
    """The local file system, which notes what it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def walk_directory(self, path):
        self.asked.append(("list", path))
        return super().walk_directory(path)

    def status(self, path, *, follow_symlinks=False):
        self.asked.append(("status", path))
        return super().status(path, follow_symlinks=follow_symlinks)

    def open(self, path, version=None):
        self.asked.append(("open", path))
        return super().open(path, version)


def names_in(filesystem, path):
    return [entry.name for entry in filesystem.list_directory(str(path))]


def test_partitions_are_shown_in_the_place_of_the_tiers_directories(tmp_path):
    put_aiven(tmp_path, upload(0, 10))
    put_aiven(tmp_path, upload(0, 10), partition=1)
    put_local(tmp_path, upload(0, 10), topic="a-b", partition=7)
    (tmp_path / "other").mkdir()
    (tmp_path / f"empty-{TOPIC_ID}").mkdir()
    (tmp_path / f"file-{TOPIC_ID}").touch()
    filesystem = TierFileSystem(FileSystem())
    shown = [
        ".kafka_cleanshutdown",
        "a-b-7",
        f"empty-{TOPIC_ID}",
        f"file-{TOPIC_ID}",
        "orders-0",
        "orders-1",
        "other",
    ]
    assert names_in(filesystem, tmp_path) == shown
    kinds = {entry.name: entry.kind for entry in filesystem.examine_directory(str(tmp_path))}
    assert kinds == {name: "file" if name[0] in ".f" else "directory" for name in shown}
    status = filesystem.status(f"{tmp_path}/orders-1")
    assert status.is_directory
    assert status.version != filesystem.status(f"{tmp_path}/orders-0").version


def test_a_directory_has_the_names_that_a_broker_gives_its_files(tmp_path):
    each = upload(40, 50)
    put_aiven(tmp_path, each.__class__(40, 50, {**each.files, "snapshot": b"s", "txnindex": b""}))
    filesystem = TierFileSystem(FileSystem())
    names = [f"{40:020d}.{suffix}" for suffix in ("index", "log", "timeindex", "txnindex")]
    expected = [*names, f"{50:020d}.snapshot", "leader-epoch-checkpoint", "partition.metadata"]
    assert names_in(filesystem, tmp_path / "orders-0") == expected
    sizes = {entry.name: entry.size_bytes for entry in filesystem.examine_directory(f"{tmp_path}/orders-0")}
    assert sizes[names[1]] == len(each.files["log"])
    for name, size_bytes in sizes.items():
        status = filesystem.status(f"{tmp_path}/orders-0/{name}")
        assert (status.size_bytes, status.is_regular_file) == (size_bytes, True)
        with filesystem.open(f"{tmp_path}/orders-0/{name}") as opened:
            assert opened.status == status
            assert len(opened.read_at(1 << 20, 0)) == size_bytes
            assert opened.read_at(1, size_bytes) == b""
    assert filesystem.status(f"{tmp_path}/orders-0/{99:020d}.log") is None
    assert not filesystem.exists(f"{tmp_path}/orders-2")


@pytest.mark.parametrize("prefix", ["", "glued-", "glued"])
def test_the_topic_is_the_one_that_its_manifests_name(tmp_path, prefix):
    put_aiven(tmp_path, upload(0, 10), prefix=prefix)
    assert set(read(tmp_path)["topic"].to_pylist()) == {"orders"}


@pytest.mark.parametrize("put", [put_aiven, put_local])
def test_a_partition_and_a_topic_can_be_named(tmp_path, put):
    tier = tmp_path / "tier"
    path = put(tier, upload(0, 10))
    topic_path = path.parents[1] if put is put_aiven else path.parent
    for root in (tmp_path, tier, tier / "orders-0", topic_path):
        assert len(values_of(root)) == 10


def test_a_directory_beside_that_has_the_partitions_name_is_read_instead(tmp_path):
    put_aiven(tmp_path, upload(0, 10))
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(upload(0, 20).files["log"])
    assert len(values_of(tmp_path)) == 20


def test_what_is_no_tier_is_asked_nothing_more(source):
    asked = []
    for wrap in (lambda base: base, TierFileSystem):
        base = CountingFileSystem()
        rows = read_table(str(source), filesystem=wrap(base), isolation_level="read_committed")
        asked.append((rows.num_rows, base.asked))
    assert asked[0] == asked[1]


def test_a_file_is_opened_by_its_version_without_a_listing(tmp_path):
    put_aiven(tmp_path, upload(0, 100), "zstd")
    put_aiven(tmp_path, upload(100, 110), "zstd")
    path = f"{tmp_path}/orders-0/{0:020d}.log"
    listing = TierFileSystem(FileSystem())
    listing.list_directory(str(tmp_path))
    version = pickle.loads(pickle.dumps(listing.status(path).version))
    base = CountingFileSystem()
    with TierFileSystem(base).open(path, version) as opened:
        assert opened.read_at(1 << 20, 0) == upload(0, 100).files["log"]
    assert [what for what, _ in base.asked] == ["open", "open"]


@pytest.mark.parametrize("suffix", [".log", ".rsm-manifest"])
def test_an_object_that_was_replaced_is_not_opened(tmp_path, suffix):
    object_path = put_aiven(tmp_path, upload(0, 100), "zstd").with_suffix(suffix)
    path = f"{tmp_path}/orders-0/{0:020d}.log"
    filesystem = TierFileSystem(FileSystem())
    filesystem.list_directory(str(tmp_path))
    version = filesystem.status(path).version
    object_path.with_suffix(".new").write_bytes(object_path.read_bytes())
    object_path.with_suffix(".new").rename(object_path)
    with pytest.raises(FileReplacedError):
        TierFileSystem(FileSystem()).open(path, version)


def test_a_manifest_is_read_once_and_new_segments_are_seen(tmp_path):
    put_aiven(tmp_path, upload(0, 50))
    base = CountingFileSystem()
    filesystem = TierFileSystem(base)
    assert read_table(str(tmp_path), filesystem=filesystem).num_rows == 50
    put_aiven(tmp_path, upload(50, 90))
    filesystem.forget_listings()
    assert read_table(str(tmp_path), filesystem=filesystem).num_rows == 90
    manifests = [path for what, path in base.asked if what == "open" and path.endswith("manifest")]
    assert len(manifests) == len(set(manifests)) == 2


@pytest.mark.parametrize("kind", ["zstd", "aes", "zstd-aes"])
def test_reads_in_order_fetch_and_decode_each_chunk_once(tmp_path, public_key, key_file, kind):
    log_path = put_aiven(tmp_path, upload(0, 500), kind, public_key=public_key, chunk_bytes=777)
    base = FileSystem()
    filesystem = TierFileSystem(base, key_file)
    filesystem.list_directory(str(tmp_path))
    with filesystem.open(f"{tmp_path}/orders-0/{0:020d}.log") as opened:
        before = base.statistics.bytes_read
        pieces = [opened.read_at(100, position) for position in range(0, opened.size_bytes(), 100)]
    assert b"".join(pieces) == upload(0, 500).files["log"]
    assert base.statistics.bytes_read - before == log_path.stat().st_size


def test_a_chunk_larger_than_what_is_kept_of_others_is_kept_alone():
    kept = KeptChunks()
    for number, size_bytes in enumerate((20 << 20, 20 << 20, 40 << 20, 1, 1)):
        kept.put(("v", 0, number), memoryview(bytes(size_bytes)))
        held = [each for each in range(5) if kept.get(("v", 0, each)) is not None]
        assert held == [[0], [1], [2], [3], [3, 4]][number]


def test_expected_reads_are_those_of_the_chunks(tmp_path):
    log_path = put_aiven(tmp_path, upload(0, 500), "zstd", chunk_bytes=1000)
    filesystem = TierFileSystem(FileSystem())
    filesystem.list_directory(str(tmp_path))
    with filesystem.open(f"{tmp_path}/orders-0/{0:020d}.log") as opened:
        expected = []
        opened._source.expect_reads = lambda start, end: expected.append((start, end))
        opened.expect_reads(0, 1 << 40)
        opened.expect_reads(1500, 2500)
        opened.expect_reads(1 << 40, 1 << 41)
    (whole, (start, end)) = expected
    assert whole == (0, log_path.stat().st_size)
    assert 0 < start < end < whole[1]


def test_views_and_bounds_work_as_on_a_log_directory(tmp_path, source, public_key, key_file):
    for each in uploads_of(source / "orders-0", 10**6):
        put_aiven(tmp_path, each, "zstd-aes", public_key=public_key)
    for options in (
        {"starting_offsets": '{"orders": {"0": 300}}', "ending_offsets": '{"orders": {"0": 400}}'},
        {"starting_timestamp": 1_700_000_002_100, "ending_timestamp": 1_700_000_003_100},
        {"where": "key = 'k3'"},
    ):
        expected = read_table(str(source), **options)
        assert expected.num_rows
        assert read(tmp_path, key_file, **options).equals(expected)
    for view in ("transactions", "epochs"):
        columns = [
            name
            for name in read_table(str(source), view=view).schema.names
            if name not in {"root", "directory", "path", "file"}
        ]
        found = read(tmp_path, key_file, view=view).select(columns)
        assert found.num_rows == read_table(str(source), view=view).num_rows


@pytest.mark.parametrize("kind", ["zstd", "zstd-aes"])
def test_a_chunk_whose_declared_size_lies_takes_no_memory(tmp_path, public_key, key_file, kind):
    def lie(manifest):
        manifest["chunkIndex"]["originalChunkSize"] = 100 << 20
        manifest["chunkIndex"]["originalFileSize"] = 100 << 20

    each = upload(0, 100)
    put_aiven(tmp_path, each, kind, public_key=public_key, chunk_bytes=1 << 20, change=lie)
    with pytest.raises(LogDirectoryError, match=r"expected a zstd frame that declares"):
        read(tmp_path, key_file)


def test_a_bomb_that_fits_its_manifest_is_refused(tmp_path):
    def lie(manifest):
        manifest["chunkIndex"]["originalChunkSize"] = 2**31 - 1
        manifest["chunkIndex"]["originalFileSize"] = 2**31 - 1

    put_aiven(tmp_path, upload(0, 100), "zstd", chunk_bytes=1 << 20, change=lie)
    with pytest.raises(CorruptCheckpointError, match="originalChunkSize"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["plain", "zstd"])
def test_a_plan_asks_for_a_manifest_of_each_segment_and_little_else(tmp_path, kind):
    for start in range(0, 20_000, 1000):
        put_aiven(tmp_path, upload(start, start + 1000), kind, chunk_bytes=16_384)
    for options, rows, logs in (
        ({}, 20_000, 20),
        ({"starting_offsets": '{"orders": {"0": 18500}}'}, 1500, 2),
        ({"starting_timestamp": TIME_MS + 18_500}, 1500, 2),
        ({"starting_timestamp": TIME_MS + 18_000, "ending_timestamp": TIME_MS + 18_500}, 500, 1),
    ):
        store = CountedStore(tmp_path)
        assert read_table(str(tmp_path), filesystem=TierFileSystem(store), **options).num_rows == rows
        asked = [each.path for each in store.gets(".log")]
        # The last segment is asked for its end.
        assert len(set(asked)) <= logs + 1
        assert len(asked) <= 3 * (logs + 1)
        assert (len(store.gets(".rsm-manifest")), store.count("LIST")) == (20, 1)


def test_a_manifest_that_claims_later_timestamps_hides_no_record(tmp_path):
    def claim(manifest):
        manifest["remoteLogSegmentMetadata"]["maxTimestampMs"] = TIME_MS + 10**6

    put_aiven(tmp_path, upload(0, 50), change=claim)
    put_aiven(tmp_path, upload(50, 90))
    assert read(tmp_path, starting_timestamp=TIME_MS + 60)["offset"].to_pylist() == list(range(60, 90))
