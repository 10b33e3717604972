"""`segmentlog cat`, on data of a broker and on logs that are being written."""

from __future__ import annotations

import json
import signal

import pytest
from conformance.archives import unpack_case

from storage_core import read_table
from storage_core.scan import resolve
from tests.log.logs import append, flip, name, open_directory, table


@pytest.fixture
def root(tmp_path):
    with open_directory(tmp_path / "data") as logs:
        append(logs.create("orders"), 3)
        logs.create("clicks").append(table(b"/a", None, keys=[b"k", None]))
    return tmp_path / "data"


def test_values_by_topic_partition_and_offset(segmentlog, root):
    assert segmentlog("cat", root).stdout == "/a\n\n" + "".join(f"{number:032}\n" for number in range(3))


def test_a_format_of_kcat(segmentlog, root):
    ended = segmentlog("cat", root, "-f", r"%t [%p] at %o: key %k: %s (%S)\n", "-Z", "--subscribe", "clicks")
    assert ended.stdout == "clicks [0] at 0: key k: /a (2)\nclicks [0] at 1: key NULL: NULL (-1)\n"


def test_keys_and_delimiters(segmentlog, root):
    assert segmentlog("cat", root, "-K", r"\t", "-D", "%;", "--subscribe", "clicks").stdout == "k\t/a%;\t%;"


@pytest.mark.parametrize("flags", [("-J",), ("--output", "jsonl")])
def test_json_lines(segmentlog, example_data, flags):
    lines = segmentlog("cat", example_data, "--subscribe", "orders", *flags).stdout.splitlines()
    rows = read_table(example_data, subscribe="orders", include_headers=True).to_pylist()
    assert [(each["offset"], each["payload"].encode()) for each in map(json.loads, lines)] == [
        (row["offset"], row["value"]) for row in rows
    ]


@pytest.mark.parametrize("case", ["txn", "magic0", "v2-zstd"])
def test_every_record_of_a_broker(segmentlog, tmp_path, case):
    logs, _ = unpack_case(case, tmp_path / "case")
    options = {"isolation_level": "read_committed"}
    rows = read_table(logs, **options).to_pylist()
    lines = segmentlog("cat", logs, "--isolation-level", "read_committed", "-f", r"%t %p %o\n").stdout
    assert lines.splitlines() == [f"{row['topic']} {row['partition']} {row['offset']}" for row in rows]


def test_a_count_is_printed_before_the_other_partitions_are_looked_at(segmentlog, root, monkeypatch):
    looked_at = []
    resolve_partition = resolve.resolve_partition

    def counted(filesystem, directory, options):
        looked_at.append(directory.topic)
        return resolve_partition(filesystem, directory, options)

    monkeypatch.setattr(resolve, "resolve_partition", counted)
    assert segmentlog("cat", root, "-c", "1").stdout == "/a\n"
    assert looked_at == ["clicks"]
    assert segmentlog("cat", root, "-c", "9", "--where", "offset = 1").stdout == "\n" + f"{1:032}\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--where", "offset >= 1"), ["1", "2"]),
        (("--starting-offsets", '{"orders":{"0":2}}'), ["2"]),
        (("--max-count", "2"), ["0", "1"]),
        (("-c", "0"), []),
        (("--last", "1"), ["2"]),
        (("--last", "2", "--ending-offsets", '{"orders":{"0":2}}'), ["0", "1"]),
        (("--last", "0"), []),
    ],
)
def test_flags_choose_records(segmentlog, root, flags, expected):
    ended = segmentlog("cat", root, "--subscribe", "orders", "-f", r"%o\n", *flags)
    assert (ended.stdout.split(), ended.status) == (expected, 0)


def test_damage_is_status_1_after_the_records_before_it(segmentlog, root):
    flip(root / "orders-0" / name(0), 150)
    ended = segmentlog("cat", root, "--subscribe", "orders", "-f", r"%o\n")
    assert (ended.status, ended.stdout) == (1, "0\n")
    assert "bytes 100 to 199" in ended.stderr


class TestTerminal:
    """What a terminal gets: a process whose standard output is one."""

    @pytest.fixture
    def hostile(self, tmp_path):
        with open_directory(tmp_path / "hostile") as logs:
            logs.create("t").append(table(b"\x1b]0;owned\x07"))
        return tmp_path / "hostile"

    def test_control_characters_are_escapes(self, segmentlog_on_terminal, hostile):
        assert segmentlog_on_terminal("cat", hostile) == b"\\x1b]0;owned\\x07\n"

    @pytest.mark.thorough
    def test_raw_keeps_control_characters(self, segmentlog_on_terminal, hostile):
        assert segmentlog_on_terminal("cat", hostile, "--raw") == b"\x1b]0;owned\x07\n"


def test_bytes_are_raw_in_a_pipe(segmentlog, tmp_path):
    with open_directory(tmp_path / "data") as logs:
        logs.create("t").append(table(b"\x1b\x00"))
    assert segmentlog("cat", tmp_path / "data").stdout == "\x1b\x00\n"


class TestFollow:
    def test_follow_prints_new_records_until_interrupted(self, segmentlog_process, root):
        process = segmentlog_process("cat", root, "--follow", "-f", r"%t-%p %o\n", "--poll-interval", "0.01")
        assert [process.stdout.readline() for _ in range(5)][-1] == b"orders-0 2\n"
        with open_directory(root) as logs:
            append(logs.get("orders"))
            assert process.stdout.readline() == b"orders-0 3\n"
            append(logs.create("new"))
            assert process.stdout.readline() == b"new-0 0\n"
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate()
        # There may be a warning about a directory that was not a partition yet; then a line end after the ^C.
        assert (printed, complaints[-1:], b"Traceback" in complaints) == (b"", b"\n", False)
        assert process.returncode == 130

    @pytest.mark.thorough
    def test_follow_ends_when_nobody_reads(self, segmentlog_process, root):
        process = segmentlog_process("cat", root, "--follow", "--poll-interval", "0.01")
        process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr.read() == b""

    def test_follow_ends_after_a_count(self, segmentlog, root):
        ended = segmentlog("cat", root, "--follow", "-c", "4", "-f", r"%o\n")
        assert (ended.status, ended.stdout) == (0, "0\n1\n0\n1\n")
