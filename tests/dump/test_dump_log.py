"""Files are dumped in the words of `kafka-dump-log.sh` 4.1, byte for byte; the texts here are those that the tool prints."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.dump.log_text import DumpOptions, RecordFormat, find_batches
from storage_core.dump.record_lines import RecordLines
from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from tests.conformance.archives import case_names, unpack_case
from tests.dump.dumped import CONTENT, INDEX_FLAGS, digests, dumped, expected_digests, options_of
from tests.examples import examples
from tests.record.encoding import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    LZ4,
    TRANSACTIONAL,
    ZSTD,
    Batch,
    Record,
)
from tests.record.legacy_encoding import Message, Wrapper

_QUICK_CASES = ("txn", "mixed-magic", "torn-tail", "internal")
_BATCH_LINE = (
    "baseOffset: {base} lastOffset: {last} count: {count} baseSequence: -1 lastSequence: -1 producerId: -1 "
    "producerEpoch: -1 partitionLeaderEpoch: 0 isTransactional: false isControl: false "
    "deleteHorizonMs: OptionalLong.empty position: {position} CreateTime: {time} size: {size} magic: 2 "
    "compresscodec: none crc: {crc} isvalid: true\n"
)


def log_of(folder: Path, *batches: bytes | Batch | Message | Wrapper, base_offset: int = 0) -> Path:
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(each if isinstance(each, bytes) else each.encode() for each in batches))
    return path


def text_of(path: Path, options: DumpOptions = CONTENT) -> str:
    """Return the text without its first two lines, which name the file."""
    lines = dumped(path, options).stdout.decode().split("\n", 2)
    assert lines[0] == f"Dumping {path}"
    return lines[2]


def record_lines(path: Path, options: DumpOptions = CONTENT) -> list[str]:
    return [line for line in text_of(path, options).splitlines() if line.startswith("|")]


@pytest.mark.cases(3, 14)
@pytest.mark.parametrize(
    "case",
    [
        case if case in _QUICK_CASES else pytest.param(case, marks=pytest.mark.thorough)
        for case in case_names()
    ],
)
def test_every_file_of_a_case_is_dumped_as_by_the_tool(tmp_path, case):
    logs, _ = unpack_case(case, tmp_path / case)
    found = digests(logs, case, lambda flags, path: dumped(path, options_of(flags)).stdout)
    assert found == expected_digests()[case]


def test_a_batch_and_its_records_have_a_line_each(tmp_path):
    path = log_of(
        tmp_path,
        Batch((Record(0, 1000, b"k", b"v"), Record(1, 1001, None, b""), Record(2, 1002, b"", None)), 7),
        base_offset=7,
    )
    assert dumped(path).stdout.decode() == (
        f"Dumping {path}\nLog starting offset: 7\n"
        + _BATCH_LINE.format(base=7, last=9, count=3, position=0, time=1002, size=84, crc=1916545930)
        + "| offset: 7 CreateTime: 1000 keySize: 1 valueSize: 1 sequence: -1 headerKeys: [] key: k payload: v\n"
        "| offset: 8 CreateTime: 1001 keySize: -1 valueSize: 0 sequence: -1 headerKeys: [] payload: \n"
        "| offset: 9 CreateTime: 1002 keySize: 0 valueSize: -1 sequence: -1 headerKeys: [] key: \n"
    )


def test_a_line_without_metadata_begins_with_the_key(tmp_path):
    path = log_of(
        tmp_path, Batch((Record(0, 0, b"k", b"v"), Record(1, 0, None, b"w"), Record(2, 0, b"x", None)))
    )
    bare = DumpOptions(RecordFormat(has_content=True, has_metadata=False))
    assert text_of(path, bare).split("\n", 1)[1] == "| key: k payload: v\n payload: w\n| key: x\n"
    nothing = DumpOptions(RecordFormat(has_content=False, has_metadata=False))
    assert text_of(path, nothing).split("\n", 1)[1] == "\n\n\n"


def test_header_keys_are_listed(tmp_path):
    headers = ((b"a", b"1"), (b"", None), (b"b", b""))
    path = log_of(tmp_path, Batch((Record(headers=headers), Record(1), Record(2, headers=headers[:1]))))
    assert [line.split("headerKeys: ")[1].split(" payload")[0] for line in record_lines(path)] == [
        "[a,,b]",
        "[]",
        "[a]",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xed", "\ufffd"),
        (b"\xf0\x80\x80\x80", "\ufffd" * 4),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xe0\x80\x80", "\ufffd" * 3),
        ("ключ 鍵 \U0001f600".encode(), "ключ 鍵 \U0001f600"),
        (b"\x1b[31m\x00\t", "\x1b[31m\x00\t"),
    ],
)
def test_malformed_utf8_is_decoded_as_in_java(tmp_path, value, text):
    # The value before would swallow a byte of the next if they were decoded together.
    path = log_of(tmp_path, Batch((Record(0, 0, b"\xe2\x82", value), Record(1, 0, b"\xf0", b"end"))))
    first, second = record_lines(path)
    assert first.endswith(f"headerKeys: [] key: \ufffd payload: {text}")
    assert second.endswith("key: \ufffd payload: end")


def test_sequence_numbers_begin_anew_after_the_largest(tmp_path):
    records = tuple(Record(delta) for delta in range(3))
    path = log_of(tmp_path, Batch(records, producer_id=5, producer_epoch=1, base_sequence=(1 << 31) - 2))
    text = text_of(path)
    assert "baseSequence: 2147483646 lastSequence: 0 producerId: 5 producerEpoch: 1" in text
    assert [line.split("sequence: ")[1].split()[0] for line in record_lines(path)] == [
        "2147483646",
        "2147483647",
        "0",
    ]


def test_append_time_and_delete_horizon(tmp_path):
    path = log_of(
        tmp_path,
        Batch((Record(0, 5), Record(1, 6)), attributes=LOG_APPEND_TIME, max_timestamp_ms=99),
        Batch((Record(0, 7),), 2, attributes=DELETE_HORIZON, base_timestamp_ms=3),
    )
    text = text_of(path)
    assert "deleteHorizonMs: OptionalLong.empty position: 0 LogAppendTime: 99 size" in text
    assert "deleteHorizonMs: OptionalLong[3] position" in text
    assert [line.split()[3:5] for line in record_lines(path)] == [
        ["LogAppendTime:", "99"],
        ["LogAppendTime:", "99"],
        ["CreateTime:", "7"],
    ]


def test_markers_say_how_their_transaction_ended(tmp_path):
    marker = Record(0, 0, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 12))
    unknown = Record(0, 0, struct.pack(">hh", 0, 9), None)
    path = log_of(
        tmp_path,
        Batch((marker,), attributes=CONTROL | TRANSACTIONAL),
        Batch((unknown,), 1, attributes=CONTROL),
    )
    assert [line.split("headerKeys: [] ")[1] for line in record_lines(path)] == [
        "endTxnMarker: COMMIT coordinatorEpoch: 12",
        "controlType: UNKNOWN(9)",
    ]


def test_messages_of_old_formats_say_whether_their_own_crc_holds(tmp_path):
    path = log_of(tmp_path, Message(offset=3, magic=1, timestamp_ms=8, key=b"k", value=b"v"))
    assert text_of(path) == (
        "offset: 3 position: 0 CreateTime: 8 size: 36 magic: 1 compresscodec: none crc: 3024638187 isvalid: true\n"
        "| offset: 3 CreateTime: 8 keySize: 1 valueSize: 1 isValid: true crc: 3024638187} key: k payload: v\n"
    )


def test_a_wrong_crc_is_damage_and_its_records_are_printed(tmp_path):
    path = log_of(tmp_path, Batch((Record(),)).encode(crc=7), Batch((Record(),), 1))
    found = dumped(path)
    assert b"crc: 7 isvalid: false\n| offset: 0 " in found.stdout
    assert found.has_damage
    assert not found.failure


def test_bytes_after_the_last_batch_are_reported(tmp_path):
    path = log_of(tmp_path, Batch((Record(),)), Batch((Record(),), 1).encode()[:-3])
    found = dumped(path)
    assert found.stdout.endswith(b"\nFound 66 invalid bytes at the end of 00000000000000000000.log\n")
    assert found.has_damage
    part = dumped(path, DumpOptions(max_bytes=100))
    assert b"Found" not in part.stdout
    assert not part.has_damage


def test_the_text_ends_where_the_tool_fails(tmp_path):
    zeros = log_of(tmp_path, Batch((Record(),)), bytes(4096))
    found = dumped(zeros)
    assert found.stdout.endswith(b"headerKeys: [] payload: v\n")
    assert "Found a record size of 0, below 14" in found.failure
    assert "byte 69]" in found.failure


@pytest.mark.parametrize("kept_bytes", [0, 16, 20, 60])
def test_batches_are_found_up_to_where_the_file_was_cut_meanwhile(tmp_path, kept_bytes):
    message = Message(value=bytes(50))
    path = log_of(tmp_path, message, message)
    size_bytes = len(message.encode())
    with FileSystem().open(str(path)) as log_file:
        end_bytes = log_file.status.size_bytes
        os.truncate(path, size_bytes + kept_bytes)
        found = find_batches(log_file, 0, end_bytes)
        assert next(found).size_bytes == size_bytes
        with pytest.raises(
            CorruptRecordError, match=f"Found only {kept_bytes} bytes for the header"
        ) as caught:
            next(found)
    assert caught.value.position_bytes == size_bytes


def test_records_before_a_cut_are_printed(tmp_path):
    records = (Record(0).encode(0) + Record(1).encode(0))[:-1]
    path = log_of(tmp_path, Batch((), records_bytes=records, count=2, last_offset_delta=1))
    found = dumped(path)
    assert found.stdout.count(b"| offset") == 1
    assert found.failure


def test_gaps_between_offsets_are_listed_at_the_end(tmp_path):
    path = log_of(tmp_path, Batch((Record(0), Record(5))), Batch((Record(0),), 9, codec=ZSTD))
    found = dumped(path)
    assert found.stderr == [
        f"Non-consecutive offsets in {path}",
        "  5 is followed by 9",
        "  0 is followed by 5",
    ]
    assert not found.has_damage


def test_a_decoder_that_needs_keys_fails_in_the_middle_of_a_line(tmp_path):
    path = log_of(tmp_path, Batch((Record(0, 0, None, b"v"),)))
    found = dumped(path, DumpOptions(RecordFormat(has_content=True, decoder="offsets")))
    assert found.stdout.endswith(b"headerKeys: []")
    assert found.failure


def test_a_file_without_content_has_its_first_lines_only(tmp_path):
    assert text_of(log_of(tmp_path)) == ""
    index = tmp_path / "00000000000000000000.index"
    index.touch()
    assert dumped(index).stdout.decode() == f"Dumping {index}\n{index} is empty.\n"


@pytest.fixture
def indexed(tmp_path) -> Path:
    """Return the stem of a log of two batches with indexes, which begins at offset 10."""
    batches = [Batch((Record(0, 100), Record(1, 105)), 10), Batch((Record(0, 103),), 12)]
    path = log_of(tmp_path, *batches, base_offset=10)
    stem = path.with_suffix("")
    second = len(batches[0].encode())
    stem.with_suffix(".index").write_bytes(struct.pack(">iiii", 1, 0, 2, second))
    stem.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 105, 1))
    return stem


def test_index_entries_are_printed_and_compared(indexed):
    index, times = indexed.with_suffix(".index"), indexed.with_suffix(".timeindex")
    assert dumped(index).stdout.decode() == (
        f"Dumping {index}\noffset: 11 position: 0\noffset: 12 position: 77\n"
    )
    assert dumped(times).stdout.decode() == f"Dumping {times}\ntimestamp: 105 offset: 11\n"
    for path in (index, times):
        assert not dumped(path).has_damage
        quiet = dumped(path, INDEX_FLAGS["--verify-index-only"])
        assert quiet.stdout.decode() == f"Dumping {path}\n"
        checked = dumped(path, INDEX_FLAGS["--index-sanity-check"])
        assert checked.stdout.decode() == f"Dumping {path}\n{path} passed sanity check.\n"


def test_entries_that_disagree_with_the_log_are_reported(indexed):
    index, times = indexed.with_suffix(".index"), indexed.with_suffix(".timeindex")
    index.write_bytes(struct.pack(">iiii", 1, 0, 5, 77))
    found = dumped(index)
    assert found.has_damage
    assert found.stderr == [f"Mismatches in :{index}", "  Index offset: 15, log offset: 12"]
    times.write_bytes(struct.pack(">qiqiqi", 104, 1, 103, 2, 200, 7))
    found = dumped(times)
    assert found.has_damage
    assert found.stderr == [
        f"Found timestamp mismatch in :{times}",
        "  Index timestamp: 104, log timestamp: 105",
        f"Found out of order timestamp in :{times}",
        "  Index timestamp: 103, Previously indexed timestamp: 104",
        "The following indexed offsets are not found in the log.",
        "Indexed offset: 17, found log offset: -1",
    ]


def test_an_index_that_fails_the_sanity_check_ends_the_dump(indexed):
    index, times = indexed.with_suffix(".index"), indexed.with_suffix(".timeindex")
    index.write_bytes(struct.pack(">iib", 1, 0, 3))
    times.write_bytes(struct.pack(">qiqi", 105, 1, 104, 2))
    for path in (index, times):
        found = dumped(path, INDEX_FLAGS["--index-sanity-check"])
        assert found.stdout.decode() == f"Dumping {path}\n"
        assert "The index is not sound" in found.failure


def test_an_entry_beyond_the_log_ends_the_dump(indexed):
    index = indexed.with_suffix(".index")
    index.write_bytes(struct.pack(">iiii", 1, 0, 2, 5000))
    found = dumped(index)
    assert found.stdout.decode() == f"Dumping {index}\noffset: 11 position: 0\n"
    assert "points to position 5000" in found.failure


def test_zeros_after_the_entries_end_an_index(indexed):
    index = indexed.with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(800))
    assert dumped(index).stdout.count(b"\n") == 3


def test_a_snapshot_that_is_damaged_does_not_end_the_dump(tmp_path):
    path = tmp_path / "00000000000000000003.snapshot"
    path.write_bytes(bytes(12))
    found = dumped(path)
    assert found.stdout.decode() == f"Dumping {path}\n"
    assert not found.failure
    assert found.has_damage
    assert len(found.stderr) == 1


@pytest.mark.parametrize("name", ["x.log", ".log", "99999999999999999999.index", "0.timeindex.checkpoint"])
def test_a_name_that_is_no_offset_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    assert "Expected a" in dumped(tmp_path / name).failure


def test_the_bootstrap_snapshot_has_no_offset(tmp_path):
    path = tmp_path / "bootstrap.checkpoint"
    path.touch()
    assert dumped(path).stdout.decode() == f"Dumping {path}\nKRaft bootstrap snapshot\n"


def test_unknown_files_are_ignored(tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    path.touch()
    assert dumped(path).stderr == [f"Ignoring unknown file {path}"]


_BYTES = st.none() | st.binary(max_size=20) | st.sampled_from([b"\xed\xa0\x80", b"text", "鍵".encode()])
_HEADERS = st.lists(st.tuples(st.binary(max_size=4), _BYTES), max_size=3).map(tuple)
_RECORDS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-5, 1 << 40), _BYTES, _BYTES, _HEADERS), max_size=8
)
_ATTRIBUTES = st.sampled_from([0, LOG_APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON])
_BATCHES = st.lists(
    st.tuples(
        _RECORDS, _ATTRIBUTES, st.sampled_from([0, LZ4, ZSTD]), st.sampled_from([-1, 3, (1 << 31) - 2])
    ),
    max_size=6,
)


def _encoded(drawn) -> bytes:
    data, next_offset = b"", 0
    for records, attributes, codec, base_sequence in drawn:
        built, delta = [], -1
        for gap, timestamp_ms, key, value, headers in records:
            delta += gap + 1
            built.append(Record(delta, timestamp_ms, key, value, headers))
        batch = Batch(
            tuple(built), next_offset, codec if built else 0, 0, attributes, base_sequence=base_sequence
        )
        data += batch.encode()
        next_offset = batch.last_offset + 1
    return data


@given(drawn=_BATCHES, has_content=st.booleans(), has_metadata=st.booleans())
@examples(200)
def test_columns_give_the_lines_of_single_records(tmp_path_factory, drawn, has_content, has_metadata):
    path = log_of(tmp_path_factory.mktemp("log"), _encoded(drawn))
    options = DumpOptions(RecordFormat(has_content, has_metadata))
    by_column = dumped(path, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordLines, "_columnar", lambda *_: iter(()))
        assert dumped(path, options) == by_column


@given(data=st.binary(max_size=300), options=st.sampled_from([DumpOptions(), CONTENT]))
@examples(200)
def test_any_bytes_are_dumped_or_refused(tmp_path_factory, data, options):
    path = log_of(tmp_path_factory.mktemp("log"), data)
    found = dumped(path, options)
    assert found.stdout.startswith(b"Dumping ")
    assert found.failure or found.has_damage or not data
