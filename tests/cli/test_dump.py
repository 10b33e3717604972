"""`segmentlog dump`: its flags, how it ends, and records as JSON lines."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from storage_core.dump import DumpOptions
from storage_core.errors import UnreadableError
from storage_core.filesystem import FileSystem
from tests.dump.dumped import dumped
from tests.record.encoding import CONTROL, TRANSACTIONAL, ZSTD, Batch, Record, compress, sized, varint

LOG = "00000000000000000000.log"


@pytest.fixture
def orders(tmp_path) -> Path:
    """Return a partition of one log: two records, one of them with bytes that are no UTF-8, and a marker."""
    folder = tmp_path / "orders-3"
    folder.mkdir()
    records = (
        Record(0, 1000, b"k", b"v\x1b[2J", ((b"h", b"1"), (b"n", None))),
        Record(1, 1001, None, b"\xff\x00"),
    )
    marker = Record(0, 1002, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 4))
    batches = [
        Batch(records, producer_id=9, producer_epoch=2, base_sequence=5, attributes=TRANSACTIONAL),
        Batch((marker,), 2, attributes=CONTROL | TRANSACTIONAL, producer_id=9, producer_epoch=2),
    ]
    (folder / LOG).write_bytes(b"".join(batch.encode() for batch in batches))
    return folder


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_files_are_named_with_commas_or_one_by_one(segmentlog, orders):
    (orders / "00000000000000000000.index").write_bytes(struct.pack(">ii", 1, 0))
    both = f"{orders / LOG},{orders / '00000000000000000000.index'}"
    with_commas = segmentlog("dump", "--files", both, "--print-data-log")
    one_by_one = segmentlog("dump", *both.split(","), "--print-data-log")
    assert with_commas == one_by_one
    assert with_commas.status == 0
    assert with_commas.stdout.count("Dumping ") == 2
    assert " key: k payload: v\x1b[2J\n" in with_commas.stdout


@pytest.mark.parametrize("flag", ["--deep-iteration", "--print-data-log", "--offsets-decoder"])
def test_records_are_printed_with_each_flag_that_implies_them(segmentlog, orders, flag):
    assert "\n| offset: 0 " in segmentlog("dump", flag, orders / LOG).stdout
    assert "\n| offset: 0 " not in segmentlog("dump", orders / LOG).stdout


@pytest.mark.parametrize("flag", ["--key-decoder-class", "--value-decoder-class=org.example.Decoder"])
def test_java_classes_are_refused_in_a_line(segmentlog, orders, flag):
    found = segmentlog("dump", orders / LOG, flag)
    assert found.refused(2, "names a Java class")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "There is nothing to dump: name files or directories."),
        (["--max-bytes", "-1", LOG], 2, "--max-bytes"),
        (["missing/" + LOG], 3, "missing"),
        ([LOG, "--where", "offset > 1"], 2, "--where chooses among the topics of a directory"),
        ([".", "--where", "offset > 1"], 2, "--where chooses records, not files: add --output jsonl."),
        (["leader-epoch-checkpoint", "-o", "jsonl"], 2, "prints records"),
        ([LOG, "-o", "jsonl", "--index-sanity-check"], 2, "of indexes there is only text"),
        (["leader-epoch-checkpoint"], 2, "Ignoring unknown file leader-epoch-checkpoint"),
        (["notes.log"], 2, "Expected a file's name to begin with an offset, found notes.log."),
        (["empty", "-o", "jsonl"], 3, "empty"),
    ],
)
def test_mistakes_are_a_line_and_a_status(segmentlog, orders, monkeypatch, arguments, status, message):
    monkeypatch.chdir(orders)
    (orders / "leader-epoch-checkpoint").touch()
    (orders / "notes.log").touch()
    (orders / "empty").mkdir()
    found = segmentlog("dump", *arguments)
    assert found.status == status
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_damage_is_status_1_and_a_line(segmentlog, orders):
    path = orders / LOG
    path.write_bytes(path.read_bytes() + bytes(100))
    found = segmentlog("dump", path)
    assert found.status == 1
    assert found.stdout.encode() == dumped(path, DumpOptions()).stdout
    assert found.stderr.startswith("segmentlog: Found a record size of 0")
    assert found.stderr.count("\n") == 1
    path.write_bytes(path.read_bytes()[:-90])
    assert segmentlog("dump", path).status == 1


def test_an_index_that_disagrees_is_status_1(segmentlog, orders):
    index = orders / "00000000000000000000.index"
    index.write_bytes(struct.pack(">ii", 7, 0))
    found = segmentlog("dump", index)
    assert found.status == 1
    assert found.stderr == f"Mismatches in :{index}\n  Index offset: 7, log offset: 1\n"


def test_all_files_of_a_directory_are_dumped_around_damage(segmentlog, orders):
    other = shutil.copytree(orders, orders.with_name("orders-4"))
    (orders / LOG).write_bytes(bytes(100))
    found = segmentlog("dump", orders.parent, "--subscribe", "orders")
    assert found.status == 1
    assert f"Dumping {orders / LOG}\nLog starting offset: 0\nDumping {other / LOG}\n" in found.stdout
    assert "lastOffset: 2 " in found.stdout


def test_odd_files_of_a_directory_are_named_and_the_others_dumped(segmentlog, orders):
    too_large, fifo = orders / "09223372036854775808.log", orders / "00000000000000000007.log"
    too_large.touch()
    os.mkfifo(fifo)
    (orders / os.fsdecode(b"0\xff.log")).touch()
    (orders / "a.checkpoint").touch()
    shutil.copytree(orders, orders.with_name("orders-4"), ignore=lambda *_: [fifo.name, too_large.name])
    found = segmentlog("dump", orders.parent)
    assert found.status == 1
    assert found.stdout.count("lastOffset: 2 ") == 2
    assert found.stderr.count("\n") == 6
    assert "Expected a file's name to begin with an offset, found 09223372036854775808.log." in found.stderr
    assert f"{fifo}]" in found.stderr


def test_what_may_not_be_read_is_status_3(segmentlog, orders, monkeypatch):
    other = shutil.copytree(orders, orders.with_name("orders-4"))
    refused = {str(other / LOG)}
    open_file, walk_directory = FileSystem.open, FileSystem.walk_directory

    def refusing(method):
        def refuse(self, path, *more):
            if path in refused:
                raise UnreadableError("User nobody may not read this path.", path=path)
            return method(self, path, *more)

        return refuse

    monkeypatch.setattr(FileSystem, "open", refusing(open_file))
    monkeypatch.setattr(FileSystem, "walk_directory", refusing(walk_directory))
    (orders / LOG).write_bytes(bytes(100))
    found = segmentlog("dump", orders.parent)
    assert found.status == 3
    assert f"User nobody may not read this path. [{other / LOG}]" in found.stderr
    assert f"Dumping {orders / LOG}\n" in found.stdout
    refused.add(str(orders.parent))
    found = segmentlog("dump", orders.parent)
    assert (found.status, found.stdout) == (3, "")
    assert "A log directory could not be listed" in found.stderr


def test_topics_choose_among_the_files_of_a_directory(segmentlog, orders):
    shutil.copytree(orders, orders.with_name("payments-0"))
    found = segmentlog("dump", orders.parent, "--subscribe", "payments")
    assert found.stdout.startswith(f"Dumping {orders.with_name('payments-0') / LOG}\n")
    assert found.stdout.count("Dumping ") == 1


def test_a_record_of_a_file_is_an_object_with_everything(segmentlog, orders):
    found = segmentlog("dump", orders / LOG, "--output", "jsonl")
    first, second, marker = json_lines(found.stdout)
    batch = first.pop("batch")
    assert first == {
        "topic": "orders",
        "partition": 3,
        "offset": 0,
        "timestampMs": 1000,
        "timestampType": "CreateTime",
        "key": "k",
        "value": "v\x1b[2J",
        "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}],
        "sequence": 5,
    }
    assert batch.pop("crc") > 0
    assert batch == {
        "segment": LOG,
        "position": 0,
        "baseOffset": 0,
        "lastOffset": 1,
        "recordCount": 2,
        "leaderEpoch": 0,
        "producerId": 9,
        "producerEpoch": 2,
        "baseSequence": 5,
        "lastSequence": 6,
        "isTransactional": True,
        "isControl": False,
        "deleteHorizonMs": None,
        "maxTimestampMs": 1001,
        "sizeBytes": 90,
        "magic": 2,
        "compression": "none",
        "isValid": True,
    }
    assert second["key"] is None
    assert second["value"] == {"base64": "/wA="}
    assert marker["controlType"] == "ABORT"
    assert found.status == 0


@pytest.mark.parametrize(
    ("name", "value"), [("base64", base64.b64encode(b"\xff\x00").decode()), ("hex", "ff00")]
)
def test_bytes_are_encoded_as_asked_for(segmentlog, orders, name, value):
    for path in (orders / LOG, orders):
        second = json_lines(segmentlog("dump", path, "-o", "jsonl", "--bytes", name).stdout)[1]
        assert second["value"] == value
        assert second["key"] is None


def test_records_of_a_directory_are_read_by_conditions(segmentlog, orders):
    found = segmentlog(
        "dump", orders.parent, "-o", "jsonl", "--subscribe", "orders", "--where", "offset >= 1"
    )
    (record,) = json_lines(found.stdout)
    assert record == {
        "topic": "orders",
        "partition": 3,
        "offset": 1,
        "timestampMs": 1001,
        "timestampType": "CreateTime",
        "key": None,
        "value": {"base64": "/wA="},
        "headers": [],
        "sequence": 6,
        "batch": {
            "segment": LOG,
            "position": 0,
            "baseOffset": 0,
            "leaderEpoch": 0,
            "producerId": 9,
            "producerEpoch": 2,
            "isTransactional": True,
            "magic": 2,
            "compression": "none",
        },
    }


def test_records_before_damage_are_objects_too(segmentlog, orders):
    path = orders / LOG
    path.write_bytes(path.read_bytes()[:-1])
    found = segmentlog("dump", path, "-o", "jsonl")
    assert found.status == 1
    assert [record["offset"] for record in json_lines(found.stdout)] == [0, 1]
    assert "invalid bytes at the end" in found.stderr


def test_internal_records_are_decoded_in_objects(segmentlog, tmp_path):
    key = b"\0\1" + b"\0\1g" + b"\0\6orders" + b"\0\0\0\3"
    (tmp_path / LOG).write_bytes(Batch((Record(0, 0, key, None),)).encode())
    (record,) = json_lines(segmentlog("dump", tmp_path / LOG, "-o", "jsonl", "--offsets-decoder").stdout)
    assert record["key"] == {"type": "1", "data": {"group": "g", "topic": "orders", "partition": 3}}
    assert record["value"] == "<DELETE>"


def test_a_terminal_sees_no_control_characters(segmentlog_on_terminal, orders):
    shown = segmentlog_on_terminal("dump", str(orders / LOG), "--print-data-log")
    assert b"payload: v\\e[2J\n" in shown
    assert b"\x1b" not in shown
    assert b"payload: v\x1b[2J\n" in segmentlog_on_terminal(
        "dump", str(orders / LOG), "--print-data-log", "--raw"
    )


def test_a_terminal_sees_no_invisible_characters(segmentlog_on_terminal, tmp_path):
    value = "\u061c\u200b\ufff9\U000e0041".encode()
    (tmp_path / LOG).write_bytes(Batch((Record(0, 0, None, value),)).encode())
    shown = segmentlog_on_terminal("dump", str(tmp_path / LOG), "--print-data-log")
    assert b"payload: \\u061c\\u200b\\ufff9\\U000e0041\n" in shown


@pytest.mark.parametrize(
    ("flags", "unneeded"),
    [([], {"numpy", "pyarrow", "pandas"}), (["--print-data-log"], {"pandas", "storage_core.scan.plan"})],
)
def test_what_a_dump_imports(orders, flags, unneeded):
    code = (
        "import sys\nfrom storage_core.cli.main import run\n"
        "try:\n    run(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "dump", str(orders / LOG), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not set(done.stderr.split()) & {*unneeded, "pyspark", "rich"}


@pytest.mark.parametrize("flags", [("--output", "jsonl"), ("--print-data-log",)])
@pytest.mark.parametrize("is_file", [True, False])
def test_a_batch_of_very_many_record_headers_is_an_error_and_no_memory(segmentlog, tmp_path, flags, is_file):
    folder = tmp_path / "orders-0"
    folder.mkdir()
    count = 10_000_000
    record = sized(b"\0\0\0" + varint(-1) * 2 + varint(count) + b"\0\x01" * count)
    batch = Batch((Record(),), 0, ZSTD, payload=compress(ZSTD, record), count=1)
    (folder / LOG).write_bytes(batch.encode())
    tracemalloc.start()
    try:
        ended = segmentlog("dump", *(("--files", folder / LOG) if is_file else (tmp_path,)), *flags)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ended.status == 1
    assert "Expected a batch of at most 524288 record headers" in ended.stderr
    assert most_bytes < 200 << 20
