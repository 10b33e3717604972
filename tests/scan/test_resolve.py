from __future__ import annotations

import logging
import shutil

import pytest

from storage_core.directory import LogDirectoryFiles, PartitionDirectory
from storage_core.errors import LogDirectoryError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.resolve import resolve, select_partitions, split_paths
from tests.faults.observed_filesystem import before_each_call


@pytest.mark.parametrize(
    "offsets",
    ['{"payments":{"0":101,"1":5}}', '{"orders":{"0":5}}', "{}"],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_must_name_exactly_the_partitions_read(three_partitions, option, offsets, ranges_of):
    expected = (
        r"\[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED\] .* Use -1 for latest, -2 for earliest\. "
        r"Specified: \[.*\] Assigned: \[payments-0\]"
    )
    with pytest.raises(OptionError, match=expected):
        ranges_of(three_partitions, subscribe="payments", **{option: offsets})


@pytest.mark.parametrize("position", ["starting", "ending"])
def test_timestamps_must_name_exactly_the_partitions_read(three_partitions, position, ranges_of):
    expected = rf"\[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED\] .* based {position} offsets .*\[orders-0, orders-1\]$"
    with pytest.raises(OptionError, match=expected):
        ranges_of(
            three_partitions,
            subscribe="orders",
            **{f"{position}OffsetsByTimestamp": '{"orders":{"0":1}}'},
        )


def test_a_topic_that_is_not_read(three_partitions, ranges_of):
    with pytest.raises(OptionError, match="given for the topic 'orders', which is not read"):
        ranges_of(three_partitions, subscribe="payments", startingOffsets='{"orders":"earliest"}')


def test_a_directory_without_partitions(log_root, ranges_of):
    with pytest.raises(LogDirectoryError, match="found an empty directory"):
        ranges_of(log_root)
    (log_root.path / "meta.properties").write_text("version=1\n", encoding="utf-8")
    assert ranges_of(log_root) == {}


def test_a_path_that_does_not_exist(log_root):
    with pytest.raises(LogDirectoryError, match=str(log_root.path / "missing")):
        resolve(FileSystem(), parse_read_options({"path": str(log_root.path / "missing")}))


def test_paths_are_split_at_commas_unless_they_exist(tmp_path):
    (tmp_path / "a,b").mkdir()
    whole = str(tmp_path / "a,b")
    assert split_paths(FileSystem(), [whole]) == [whole]
    assert split_paths(FileSystem(), [f"file:{whole}"]) == [whole]
    assert split_paths(FileSystem(), ["/x/a, file:///x/b%20c,", "/x/d"]) == ["/x/a", "/x/b c", "/x/d"]
    assert split_paths(FileSystem(), ["/x/a,S3A://bucket/b/"]) == ["/x/a", "s3://bucket/b"]
    with pytest.raises(OptionError, match="has the scheme 'dbfs'"):
        split_paths(FileSystem(), ["/x/a,dbfs:/b"])


def test_a_bracket_without_its_pair_does_not_change_what_braces_mean(tmp_path):
    for name in ("a", "b", "x[1"):
        (tmp_path / name).mkdir()
    paths = split_paths(FileSystem(), [f"{tmp_path}/{{a,b}},{tmp_path}/x[1"])
    assert paths == [str(tmp_path / name) for name in ("a", "b", "x[1")]
    assert split_paths(FileSystem(), [f"{tmp_path}/{{a,x[[]1}}"]) == [
        str(tmp_path / name) for name in ("a", "x[1")
    ]


def test_blanks_at_the_ends_of_a_path_are_kept_if_that_path_exists(tmp_path):
    (tmp_path / " logs ").mkdir()
    assert split_paths(FileSystem(), [f"{tmp_path}/ logs "]) == [f"{tmp_path}/ logs "]
    assert split_paths(FileSystem(), [f" {tmp_path}\n"]) == [str(tmp_path)]


@pytest.fixture
def disks(tmp_path):
    for name in (
        "disk-1/logs",
        "disk-2/logs",
        "disk-10/logs",
        "disk-x/logs",
        ".hidden/logs",
        "other",
        "a{b",
        "[1]",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "disk-3").mkdir()
    (tmp_path / "disk-4").write_text("a file")
    (tmp_path / "linked").symlink_to(tmp_path / "disk-1", target_is_directory=True)
    return tmp_path


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("disk-*/logs", ["disk-1/logs", "disk-10/logs", "disk-2/logs", "disk-x/logs"]),
        ("disk-?/logs", ["disk-1/logs", "disk-2/logs", "disk-x/logs"]),
        ("disk-[0-9]", ["disk-1", "disk-2", "disk-3"]),
        ("disk-[1,2]", ["disk-1", "disk-2"]),
        ("disk-[^0-9]", ["disk-x"]),
        ("disk-[!0-9]", ["disk-x"]),
        ("disk-{1,x}/logs", ["disk-1/logs", "disk-x/logs"]),
        ("{disk-{1,2}/logs,other}", ["disk-1/logs", "disk-2/logs", "other"]),
        ("{disk-1,*-1}", ["disk-1"]),
        ("*/logs/", ["disk-1/logs", "disk-10/logs", "disk-2/logs", "disk-x/logs", "linked/logs"]),
        (".h*/logs", [".hidden/logs"]),
        ("a{b", ["a{b"]),
        ("[1]", ["[1]"]),
        ("a[{]b", ["a{b"]),
        ("disk-1/*, disk-{2,x}/logs", ["disk-1/logs", "disk-2/logs", "disk-x/logs"]),
    ],
)
def test_globs_stand_for_the_directories_that_they_match(disks, monkeypatch, glob, expected):
    monkeypatch.chdir(disks)
    assert split_paths(FileSystem(), [glob]) == expected
    absolute = ", ".join(f"{disks}/{part}" for part in glob.split(", "))
    assert split_paths(FileSystem(), [absolute]) == [f"{disks}/{path}" for path in expected]


@pytest.mark.parametrize(
    "glob", ["disk-[0-9]x", "disk-4*", "nowhere/*", "disk-1/{logs/x,y}", "disk-{1,2", "*}"]
)
def test_a_glob_that_matches_no_directory_is_an_error(disks, glob):
    with pytest.raises(OptionError, match="matches no directory"):
        split_paths(FileSystem(), [f"{disks}/{glob}"])


def test_a_glob_passes_over_what_holds_no_logs(disks):
    (disks / "lost+found/logs").mkdir(parents=True)
    (disks / "loop").symlink_to(disks / "loop")
    (disks / "dangling").symlink_to(disks / "nowhere")
    found = split_paths(FileSystem(), [f"{disks}/[dl]*/logs"])
    assert [path.removeprefix(f"{disks}/") for path in found] == [
        "disk-1/logs", "disk-10/logs", "disk-2/logs", "disk-x/logs", "linked/logs",
    ]  # fmt: skip
    assert split_paths(FileSystem(), [f"{disks}/{{{'x' * 300},other}}"]) == [f"{disks}/other"]


def test_a_directory_that_disappears_before_it_is_listed_matches_nothing(disks):
    def vanish(call, path):
        if call == "list_directory" and path.endswith("disk-2"):
            shutil.rmtree(path)

    found = split_paths(before_each_call(vanish), [f"{disks}/disk-*/*"])
    assert found == [f"{disks}/disk-{name}/logs" for name in ("1", "10", "x")]


def test_braces_in_names_do_not_keep_a_list_together(tmp_path):
    for name in ("a}", "b{"):
        (tmp_path / name).mkdir()
    listed = [f"{tmp_path}/a}}", f"{tmp_path}/b{{"]
    assert split_paths(FileSystem(), [",".join(listed)]) == listed


def test_a_glob_with_too_many_alternatives_is_an_error(disks):
    with pytest.raises(OptionError, match="more than 1000 alternatives"):
        split_paths(FileSystem(), [f"{disks}/" + "{a,b}" * 40])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{disk-{1,2},disk-10}/logs", ["disk-1", "disk-10", "disk-2"]),
        ("{{{disk-1}}}/logs", ["disk-1"]),
        ("disk-{{1,2},{1,x}}/logs", ["disk-1", "disk-2", "disk-x"]),
        ("disk-" + "{1{,},1}" + "/logs", ["disk-1"]),
        ("disk-{" + ",".join(["{1,2}"] * 300) + "}/logs", ["disk-1", "disk-2"]),
    ],
)
def test_braces_within_braces(disks, pattern, expected):
    found = split_paths(FileSystem(), [f"{disks}/{pattern}"])
    assert found == [f"{disks}/{name}/logs" for name in expected]


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("{" * 40 + "a" + "}" * 40, "more than 16 levels deep"),
        ("{" * 5_000 + "a" + "}" * 5_000, "more than 1000 alternatives"),
        ("{a,{b,c}}" * 30, "more than 1000 alternatives"),
        ("{a}" * 5_000, "more than 1000 alternatives"),
    ],
)
def test_nested_braces_are_bounded(disks, pattern, match):
    with pytest.raises(OptionError, match=match):
        split_paths(FileSystem(), [f"{disks}/{pattern}"])


def test_a_glob_of_one_brokers_disks_is_read_as_a_list_of_them(three_partitions, log_root):
    pattern = f"{log_root.path.parent}/{log_root.path.name[:-1]}?"
    found = resolve(FileSystem(), parse_read_options({"path": pattern})).partitions
    assert [f"{each.log.topic}-{each.log.partition}" for each in found] == [
        "orders-0",
        "orders-1",
        "payments-0",
    ]


def test_a_list_and_a_glob_may_be_longer_than_a_path(disks):
    many = [f"{disks}/disk-{number}" for number in range(1000)]
    assert split_paths(FileSystem(), [",".join(many)]) == many
    alternatives = ",".join(f"disk-{number}" for number in range(900))
    found = split_paths(FileSystem(), [f"{disks}/{{{alternatives}}}/logs"])
    assert found == [f"{disks}/disk-{number}/logs" for number in (1, 10, 2)]


def test_the_home_directory_is_named_in_full(tmp_path, monkeypatch):
    with pytest.raises(
        OptionError, match=r"'~/logs' does not exist: only a shell replaces ~\. Give the full path"
    ):
        split_paths(FileSystem(), ["~/logs"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    assert split_paths(FileSystem(), ["~"]) == ["~"]


# -- Topics --------


ROOT = LogDirectoryFiles(FileSystem(), "/logs")
FOUND = [
    PartitionDirectory(f"/logs/{topic}-{partition}", topic, partition, ROOT)
    for topic, partition in [
        ("__consumer_offsets", 0),
        ("my-orders", 0),
        ("orders", 0),
        ("orders", 1),
        ("payments", 0),
    ]
]


def select(**options):
    selected = select_partitions(FOUND, parse_read_options({"path": "/logs", **options}))
    return [f"{directory.topic}-{directory.partition}" for directory in selected]


def test_without_a_selection_every_topic_but_the_internal_ones():
    assert select() == ["my-orders-0", "orders-0", "orders-1", "payments-0"]


def test_subscribe():
    assert select(subscribe=("payments", "orders")) == ["orders-0", "orders-1", "payments-0"]


def test_internal_topics_are_read_if_they_are_named():
    assert select(subscribe=("__consumer_offsets",)) == ["__consumer_offsets-0"]
    assert select(assign={"__consumer_offsets": (0,)}) == ["__consumer_offsets-0"]


def test_patterns_are_searched_anywhere_and_never_match_internal_topics(caplog):
    assert select(subscribe_pattern="orders") == ["my-orders-0", "orders-0", "orders-1"]
    assert select(subscribe_pattern="^orders$") == ["orders-0", "orders-1"]
    assert select(subscribe_pattern="offsets") == []
    assert [record.getMessage() for record in caplog.records] == [
        "subscribePattern 'offsets' matches no topic."
    ]


def test_assigned_partitions_that_do_not_exist_are_left_out(caplog):
    with caplog.at_level(logging.INFO):
        assert select(assign={"orders": (1, 7), "payments": (0,)}) == ["orders-1", "payments-0"]
    assert "assign names partitions that do not exist: [orders-7]" in caplog.text


@pytest.mark.parametrize("options", [{"subscribe": ("ordres",)}, {"assign": {"ordres": (0,)}}])
def test_a_topic_that_is_not_there(options):
    name = next(iter(options))
    expected = rf"^UnknownTopicOrPartition: {name} names the topic 'ordres', .*Did you mean 'orders'\?$"
    with pytest.raises(OptionError, match=expected):
        select(**options)


def test_a_topic_unlike_any_other():
    with pytest.raises(OptionError, match=r"Known are: my-orders, orders, payments\.$"):
        select(subscribe=("zzz",))
