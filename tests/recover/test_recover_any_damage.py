"""Whatever bytes are damaged, salvage keeps what can be read, and the broker's policy what its recovery keeps."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_core import LogConfig, LogDirectory, read_table
from storage_core.errors import CorruptError
from storage_core.options import options_of
from storage_core.recover.recover import recover
from tests.examples import examples
from tests.faults.simulated_filesystem import SimulatedFileSystem

SOURCE, TARGET = "/source", "/recovered"
CONFIG = LogConfig(internal_segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=0)


@pytest.fixture(scope="module")
def files():
    """Return a log of five segments in two leader epochs, closed cleanly, by file."""
    filesystem = SimulatedFileSystem()
    with LogDirectory.open(SOURCE, filesystem=filesystem, config=CONFIG) as logs:
        log = logs.create("events")
        for number in range(25):
            log.append(pa.table({"value": [b"value %d" % number] * 3}), leader_epoch=number // 15)
    return {path: content for path, content in filesystem.files().items() if not path.endswith(".lock")}


def damaged(files, changes, *, is_clean):
    """Return a root in which bytes of the partition's files are changed, or the file ends there (None)."""
    named = sorted(path for path, content in files.items() if "/events-0/0" in path and content)
    changed = {path: bytearray(content) for path, content in files.items()}
    for place, share, byte in changes:
        content = changed[named[place % len(named)]]
        position = int(share * len(content))
        if byte is None:
            del content[position:]
        elif position < len(content):
            content[position] ^= byte
    filesystem = SimulatedFileSystem()
    for path, content in changed.items():
        if is_clean or not path.endswith((".kafka_cleanshutdown", "recovery-point-offset-checkpoint")):
            filesystem.put(path, bytes(content))
    return filesystem


def run(filesystem, policy):
    return recover(filesystem, options_of([SOURCE], {}), TARGET, policy=policy)


def below(filesystem, root):
    return {
        path.removeprefix(root): content
        for path, content in filesystem.files().items()
        if path.startswith(f"{root}/")
    }


def logs_in(files):
    return {path: content for path, content in files.items() if path.endswith(".log") and content}


CHANGES = st.lists(
    st.tuples(st.integers(0, 100), st.floats(0, 1, exclude_max=True), st.none() | st.integers(1, 255)),
    min_size=1,
    max_size=4,
)


@example(
    changes=[(15, 0.7717440009017197, 8), (16, 0.8940158636819905, 16)], is_clean=False
)  # an offset 2^27 too large
@given(changes=CHANGES, is_clean=st.booleans())
@examples(150)
def test_salvage_keeps_what_can_be_read(files, changes, is_clean):
    filesystem = damaged(files, changes, is_clean=is_clean)
    before = below(filesystem, SOURCE)
    readable = read_table(SOURCE, filesystem=filesystem, mode="DROPMALFORMED")
    report = run(filesystem, "salvage")
    assert below(filesystem, SOURCE) == before
    saved = read_table(TARGET, filesystem=filesystem)
    assert saved.equals(readable)
    assert sum(each.record_count for each in report.partitions) == saved.num_rows
    # A damaged offset may be so large that millions of offsets are left out.
    lost = [range(each.start_offset, each.end_offset) for each in report.partitions[0].left_out]
    assert not [offset for offset in saved["offset"].to_pylist() if any(offset in each for each in lost)]
    with LogDirectory.open(TARGET, filesystem=filesystem, recovery="tail") as logs:
        assert logs.get("events").log_end_offset == report.partitions[0].log_end_offset


@example(
    changes=[(1, 0.8046875, 1), (4, 0.5, None)], is_clean=False
)  # an offset 2^40 too large, then a torn segment
@given(changes=CHANGES, is_clean=st.booleans())
@examples(150)
def test_the_policy_kafka_keeps_what_a_recovery_keeps(files, changes, is_clean):
    filesystem = damaged(files, changes, is_clean=is_clean)
    recovering = filesystem.kill()
    try:
        with LogDirectory.open(SOURCE, filesystem=recovering, recovery="kafka", config=CONFIG) as logs:
            end_offset = logs.get("events").log_end_offset
    except CorruptError:
        # A broker does not load it, either: a clean-shutdown marker vouches for a log whose end is damaged.
        with pytest.raises(CorruptError):
            run(filesystem, "kafka")
        assert below(filesystem, TARGET) == {}
        return
    report = run(filesystem, "kafka")
    assert logs_in(below(filesystem, TARGET)) == logs_in(below(recovering, SOURCE))
    assert report.partitions[0].log_end_offset == end_offset
