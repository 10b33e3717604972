from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.commit_files.commits_file import (
    CommitEntry,
    CommitsFile,
    append_commit,
    commit_line,
    parse_commits_file,
    read_commits_file,
    read_last_commit,
    replace_commits_file,
    shortened_commits,
)
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


def test_no_file_is_no_commit(tmp_path):
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


def test_every_torn_line_was_never_committed_and_is_cut(tmp_path):
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
    replace_commits_file(FileSystem(), str(tmp_path), [entry(number) for number in range(1, 5001)])
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


def test_tells_what_was_committed():
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


def test_shortened_it_has_the_last_lines_and_the_last_of_each_application():
    applications = {2: "a", 5: "a", 7: "b", 9: "c", 1950: "c"}
    entries = [
        entry(number, txn_app_id=applications.get(number), txn_version=applications.get(number) and number)
        for number in range(1, 2001)
    ]
    kept = shortened_commits(entries)
    assert [each.generation for each in kept] == [5, 7, *range(1873, 2001)]
    assert shortened_commits(entries[:128]) == entries[:128]


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
def test_reads_what_it_writes(written, tail):
    data = b"".join(map(commit_line, written))
    assert parse_commits_file(data + tail, "commits") == CommitsFile(tuple(written), len(data))
