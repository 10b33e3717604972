from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.commit_files.commits_file import (
    CommitEntry,
    CommitsFile,
    WrittenRange,
    append_commit,
    commit_line,
    forget_application,
    parse_commits_file,
    read_commits_file,
    read_last_commit,
    shorten_commits_file,
)
from storage_core.commit_files.json_fields import parse_json_object
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, OptionError
from storage_core.filesystem import FileSystem

JOB = "0123456789abcdef0123456789abcdef"


def entry(generation, **fields):
    return CommitEntry(generation, f"{generation:032x}", 1_772_500_003_999, **fields)


def line(text: str) -> bytes:
    return f"{crc32c(text.encode()):08x} {text}\n".encode()


def both(root) -> tuple[CommitsFile, CommitEntry | None]:
    return read_commits_file(FileSystem(), str(root)), read_last_commit(FileSystem(), str(root))


def test_a_line_is_the_crc_and_the_json():
    text = f'{{"generation":8,"job":"{JOB}","time_ms":5,"txn_app_id":null,"txn_version":null}}'
    assert commit_line(CommitEntry(8, JOB, 5)) == line(text)
    text = f'{{"generation":9,"job":"{JOB}","time_ms":5,"txn_app_id":"größe\\n","txn_version":-7}}'
    assert commit_line(CommitEntry(9, JOB, 5, "größe\n", -7)) == line(text)


def test_without_a_file_there_is_no_commit(tmp_path):
    assert both(tmp_path) == (CommitsFile((), 0), None)
    assert CommitsFile().generation == 0


def test_lines_are_appended_for_good(tmp_path):
    filesystem = FileSystem()
    append_commit(filesystem, str(tmp_path), entry(1), 0)
    assert filesystem.statistics.flushes == 2
    found, last = both(tmp_path)
    assert (found.entries, last) == ((entry(1),), entry(1))
    append_commit(filesystem, str(tmp_path), entry(2, txn_app_id="a", txn_version=3), found.size_bytes)
    found, last = both(tmp_path)
    assert found.entries == (entry(1), entry(2, txn_app_id="a", txn_version=3))
    assert last == found.entries[1]
    assert found.generation == 2
    assert found.size_bytes == (tmp_path / ".segmentlog-commits").stat().st_size


def test_every_torn_line_was_never_committed_and_is_cut(tmp_path, caplog):
    whole, torn = commit_line(entry(1)), commit_line(entry(2))
    for size in range(len(torn)):
        for tail in (torn[:size], bytes(size), torn[:size] + bytes(len(torn) - size)):
            if not tail:
                continue
            (tmp_path / ".segmentlog-commits").write_bytes(whole + tail)
            found, last = both(tmp_path)
            assert (found.entries, found.size_bytes, last) == ((entry(1),), len(whole), entry(1))
    append_commit(FileSystem(), str(tmp_path), entry(3), found.size_bytes)
    assert (tmp_path / ".segmentlog-commits").read_bytes() == whole + commit_line(entry(3))
    (record,) = caplog.records
    assert f"Removed {len(torn)} bytes after the last whole line of {tmp_path}" in record.getMessage()


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"00000000 {}\n", b"\n\n", commit_line(entry(1))[:-1]])
def test_without_a_whole_line_there_was_no_commit(tmp_path, data):
    (tmp_path / ".segmentlog-commits").write_bytes(data)
    assert both(tmp_path) == (CommitsFile((), 0), None)


def test_a_damaged_line_before_a_complete_one_is_an_error():
    lines = [commit_line(entry(number)) for number in range(1, 4)]
    damaged = lines[1].replace(b"null", b"nul1")
    with pytest.raises(CorruptCheckpointError, match="not certain which jobs are committed") as raised:
        parse_commits_file(lines[0] + damaged + lines[2], "commits")
    assert raised.value.position_bytes == len(lines[0])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        f'{{"generation":0,"job":"{JOB}","time_ms":5}}',
        f'{{"generation":1,"job":"{JOB[1:]}","time_ms":5}}',
        f'{{"generation":1,"job":"{JOB}","time_ms":5,"txn_app_id":7,"txn_version":1}}',
        f'{{"generation":1,"job":"{JOB}","time_ms":5,"txn_app_id":"a"}}',
    ],
)
def test_a_line_with_a_right_crc_and_other_content_is_an_error(tmp_path, text):
    (tmp_path / ".segmentlog-commits").write_bytes(line(text))
    with pytest.raises(CorruptCheckpointError):
        read_commits_file(FileSystem(), str(tmp_path))
    with pytest.raises(CorruptCheckpointError):
        read_last_commit(FileSystem(), str(tmp_path))


def test_unknown_keys_are_passed_over():
    text = f'{{"generation":1,"job":"{JOB}","new":[],"time_ms":5}}'
    assert parse_commits_file(line(text), "commits").entries == (CommitEntry(1, JOB, 5),)


def test_the_last_line_of_a_long_file_is_found_by_its_end_alone(tmp_path):
    write_lines(tmp_path, [entry(number) for number in range(1, 5001)])
    filesystem = FileSystem()
    assert read_last_commit(filesystem, str(tmp_path)) == entry(5000)
    assert filesystem.statistics.bytes_read < 20_000


def test_the_longest_line_is_found_after_another_and_before_a_torn_one(tmp_path):
    longest = entry(2, txn_app_id="a" * 8040, txn_version=1)
    while True:
        try:
            longer = entry(2, txn_app_id=longest.txn_app_id + "a", txn_version=1)
            commit_line(longer)
        except OptionError:
            break
        longest = longer
    assert len(commit_line(longest)) == 8192
    lines = commit_line(entry(1)) + commit_line(longest)
    (tmp_path / ".segmentlog-commits").write_bytes(lines + commit_line(longest)[:-1])
    found, last = both(tmp_path)
    assert (found.size_bytes, last) == (len(lines), longest)


def test_an_end_that_no_torn_line_explains_is_an_error(tmp_path):
    (tmp_path / ".segmentlog-commits").write_bytes(commit_line(entry(1)) + bytes(20_000))
    with pytest.raises(CorruptCheckpointError):
        read_last_commit(FileSystem(), str(tmp_path))


def test_an_application_with_too_long_a_name_is_refused(tmp_path):
    with pytest.raises(OptionError, match="txnAppId"):
        append_commit(FileSystem(), str(tmp_path), entry(1, txn_app_id="a" * 9000, txn_version=1), 0)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_bytes(commit_line(entry(1)))
    (tmp_path / ".segmentlog-commits").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptCheckpointError):
        read_last_commit(FileSystem(), str(tmp_path))
    with pytest.raises(CorruptCheckpointError):
        read_commits_file(FileSystem(), str(tmp_path))
    with pytest.raises(LogDirectoryError):
        append_commit(FileSystem(), str(tmp_path), entry(2), 0)


def test_has_job_and_last_of_find_commits():
    found = CommitsFile(
        (
            entry(1, txn_app_id="a", txn_version=7),
            entry(2, txn_app_id="b", txn_version=1),
            entry(3, txn_app_id="a", txn_version=5),
        ),
        500,
    )
    assert found.generation == 3
    assert found.has_job(f"{2:032x}")
    assert not found.has_job(f"{4:032x}")
    assert [found.last_of(name) and found.last_of(name).txn_version for name in ("a", "b", "c")] == [
        7,
        1,
        None,
    ]


def test_the_id_of_a_query_is_beside_the_name_that_its_user_gave_it():
    text = (
        f'{{"generation":1,"job":"{JOB}","query_id":"q-1","time_ms":5,"txn_app_id":"orders","txn_version":0}}'
    )
    written = CommitEntry(1, JOB, 5, "orders", 0, "q-1")
    assert commit_line(written) == line(text)
    assert parse_commits_file(line(text), "commits").entries == (written,)


def write_lines(root, entries, tail=b""):
    (root / ".segmentlog-commits").write_bytes(b"".join(map(commit_line, entries)) + tail)


def shorten(root, oldest_ms=0):
    shorten_commits_file(FileSystem(), str(root), oldest_ms)
    return (root / ".segmentlog-commits").read_bytes()


def remembered(root, name):
    found = read_commits_file(FileSystem(), str(root), name).last_of(name)
    return None if found is None else found.generation


def test_a_shortened_file_has_the_last_lines_and_the_last_of_each_application(tmp_path):
    applications = {2: "a", 5: "a", 7: "b", 9: "c", 1950: "c"}
    entries = [
        entry(number, txn_app_id=applications.get(number), txn_version=applications.get(number) and number)
        for number in range(1, 2001)
    ]
    write_lines(tmp_path, entries, tail=b"torn")
    data = shorten(tmp_path)
    text = f'{{"archived_bytes":{len(commit_line(entries[4]) + commit_line(entries[6]))},"version":2}}'
    assert data == line(text) + b"".join(map(commit_line, [entries[4], entries[6], *entries[1872:]]))
    assert shorten(tmp_path) == data
    found, last = both(tmp_path)
    assert (found.entries, found.size_bytes, last) == (tuple(entries[1872:]), len(data), entries[-1])
    assert [remembered(tmp_path, name) for name in "abcd"] == [5, 7, 1950, None]
    append_commit(FileSystem(), str(tmp_path), entry(2001, txn_app_id="b", txn_version=8), found.size_bytes)
    assert remembered(tmp_path, "b") == 2001
    assert len(parse_commits_file((tmp_path / ".segmentlog-commits").read_bytes(), "commits").entries) == 131


def test_a_short_file_is_not_changed(tmp_path):
    entries = [entry(number, txn_app_id=f"{number}", txn_version=1) for number in range(1, 129)]
    write_lines(tmp_path, entries)
    assert shorten(tmp_path, 2**60) == b"".join(map(commit_line, entries))


NAMES = ("", '"', "\\", ',"txn_version":', '"txn_app_id":"', "\n", "größe", "\U0001f600", "a" * 900)


def test_every_application_is_found_among_many(tmp_path):
    rng = random.Random(3)
    names = [f"{name}{number:x}" for number in range(150) for name in NAMES]
    rng.shuffle(names)
    write_lines(
        tmp_path,
        [entry(number, txn_app_id=name, txn_version=-number) for number, name in enumerate(names, start=1)],
    )
    # Unsorted, and beyond the lines that are parsed; then sorted.
    for _ in range(2):
        for number, name in enumerate(names, start=1):
            if number % 97 == 0:
                assert remembered(tmp_path, name) == number
        assert remembered(tmp_path, names[0] + "x") is None
        shorten(tmp_path)
    for name in (min(names, key=str.encode), max(names, key=str.encode), *names[::5]):
        assert remembered(tmp_path, name) == names.index(name) + 1


def test_applications_are_forgotten_by_age_or_by_name(tmp_path):
    entries = [
        CommitEntry(number, f"{number:032x}", 1000 * number, f"app {number}", 1) for number in range(1, 301)
    ]
    write_lines(tmp_path, entries)
    shorten(tmp_path, 100_000)
    assert [number for number in range(1, 301) if remembered(tmp_path, f"app {number}")] == [*range(100, 301)]
    for number in (150, 250):
        assert forget_application(FileSystem(), str(tmp_path), f"app {number}")
        assert not forget_application(FileSystem(), str(tmp_path), f"app {number}")
        assert remembered(tmp_path, f"app {number}") is None
    assert remembered(tmp_path, "app 151") == 151
    found, last = both(tmp_path)
    assert (len(found.entries), found.has_job(f"{250:032x}"), last) == (128, True, entries[-1])


def test_of_many_applications_a_few_lines_are_read(tmp_path):
    entries = [entry(number, txn_app_id=f"run {number}", txn_version=1) for number in range(1, 20_001)]
    write_lines(tmp_path, entries)
    shorten(tmp_path)
    filesystem = FileSystem()
    found = read_commits_file(filesystem, str(tmp_path), "run 77")
    assert found.last_of("run 77") == entries[76]
    assert filesystem.statistics.bytes_read < 350_000
    assert filesystem.statistics.reads < 20


def test_damage_among_the_applications_is_an_error_where_it_matters(tmp_path):
    write_lines(
        tmp_path, [entry(number, txn_app_id=f"{number:03}", txn_version=1) for number in range(1, 400)]
    )
    data = shorten(tmp_path)
    path = tmp_path / ".segmentlog-commits"
    path.write_bytes(data.replace(b'"txn_app_id":"007"', b'"txn_app_id":"008"'))
    with pytest.raises(CorruptCheckpointError, match="not certain which jobs are committed"):
        remembered(tmp_path, "007")
    assert remembered(tmp_path, "390") == 390
    with pytest.raises(CorruptCheckpointError):
        parse_commits_file(path.read_bytes(), "commits")
    with pytest.raises(CorruptCheckpointError):
        shorten(tmp_path)
    for changed in (data.replace(b"archived_bytes", b"archived_bytez"), data[: len(data) // 2]):
        path.write_bytes(changed)
        with pytest.raises(CorruptCheckpointError):
            read_commits_file(FileSystem(), str(tmp_path))


def test_an_older_release_refuses_a_file_in_which_it_would_miss_applications(tmp_path):
    """It parses each line as a commit, which needs a generation."""
    write_lines(tmp_path, [entry(number, txn_app_id=f"{number}", txn_version=1) for number in range(1, 200)])
    first, _ = shorten(tmp_path).split(b"\n", 1)
    assert b'"generation"' not in first
    with pytest.raises(CorruptCheckpointError, match="generation"):
        CommitEntry.parse(parse_json_object(first[9:], "commits"))


RANGES = (WrittenRange("t", 0, 0, 5), WrittenRange("t", 12, 7, 7), WrittenRange("u", 3, 1, 2**62))


def test_what_identifies_the_rows_of_an_application_is_in_its_line():
    written = CommitEntry(1, JOB, 5, "a", 0, None, 12, 0xAB, RANGES, 77)
    text = (
        f'{{"checksum":"00000000000000ab","generation":1,"job":"{JOB}","offsets":{{"t":{{"0":[0,5],"12":[7,7]}},'
        f'"u":{{"3":[1,{2**62}]}}}},"rows":12,"time_ms":5,"truncations":77,"txn_app_id":"a","txn_version":0}}'
    )
    assert commit_line(written) == line(text)
    assert parse_commits_file(line(text), "commits").entries == (written,)
    assert CommitEntry(1, JOB, 5, "a", 0, None, 12, 0xAB).with_ranges(RANGES, 77) == written


@pytest.mark.parametrize(
    "fields",
    ['"rows":-1', '"rows":"1"', '"checksum":"ab"', '"truncations":-1']
    + [f'"offsets":{each}' for each in ("[]", '{"t":[]}', '{"t":{"x":[0,1]}}', '{"t":{"0":[1,0]}}', '{"../t":{"0":[0,1]}}')],
)  # fmt: skip
def test_wrong_fields_of_the_rows_are_an_error(fields):
    text = f'{{"generation":1,"job":"{JOB}","time_ms":5,"txn_app_id":"a","txn_version":1,{fields}}}'
    with pytest.raises(CorruptCheckpointError):
        parse_commits_file(line(text), "commits")


entries = st.builds(
    CommitEntry,
    st.integers(1, 2**63 - 1),
    st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    st.integers(-(2**62), 2**62),
) | st.builds(
    CommitEntry,
    st.integers(1, 2**63 - 1),
    st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    st.integers(-(2**62), 2**62),
    st.text(min_size=1, max_size=300),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(min_size=1, max_size=50),
)


@given(st.lists(entries, max_size=5), st.binary(max_size=40).filter(lambda tail: b"\n" not in tail))
def test_an_entry_is_read_as_it_was_written(written, tail):
    data = b"".join(map(commit_line, written))
    assert parse_commits_file(data + tail, "commits") == CommitsFile(tuple(written), len(data))
