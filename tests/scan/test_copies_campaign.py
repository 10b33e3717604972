"""Random lives of copies with holes, judged by a model of what must be there.

A log is written once. Each copy has a part of it, with segments of its own, of which some are missing, empty or cut. A
read returns each offset that some copy has once, from a copy that has it, and in order; it leaves out no other offset
without an error.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import random
from dataclasses import dataclass, field

import pytest

import storage_core
from storage_core.errors import CorruptRecordError
from tests.scan.conftest import batch, record
from tests.scan.copies import META, TOPIC_ID, checkpoint

T0_MS = 1_700_000_000_000


@dataclass
class Batch:
    base_offset: int
    end_offset: int
    epoch: int
    data: bytes


@dataclass
class Life:
    """Copies of one log, and what a read of all must return.

    Attributes:
        value_of: By offset, the value that must be read.
        may_fail: Whether some batch is cut: a read that fails at damage may fail.
        has_empty: Whether some segment has no records.
    """

    roots: list[str] = field(default_factory=list)
    value_of: dict[int, bytes] = field(default_factory=dict)
    may_fail: bool = False
    has_empty: bool = False


def history(chooser: random.Random, first: int, last: int, epoch: int, name: bytes) -> list[Batch]:
    """Batches with every offset from ``first`` to below ``last``; the leader changes now and then."""
    batches = []
    while first < last:
        if chooser.random() < 0.05:
            epoch += chooser.randint(1, 3)
        end = min(first + chooser.choice([1, 2, 5, 10, 40]), last)
        records = [
            record(offset - first, offset - first, None, b"%s%d" % (name, offset))
            for offset in range(first, end)
        ]
        data = batch(
            first,
            records,
            last_offset_delta=end - first - 1,
            timestamps_ms=(T0_MS + first, T0_MS + end - 1),
            leader_epoch=epoch,
            codec=chooser.choice([0, 0, 4]),
        )
        batches.append(Batch(first, end, epoch, data))
        first = end
    return batches


def segments(chooser: random.Random, batches: list[Batch], size: int) -> list[list[Batch]]:
    """Return the batches of each segment; copies roll at different offsets, or at the same ones."""
    cut: list[list[Batch]] = [[]]
    for each in batches:
        limit = size if chooser.random() < 0.9 else 1
        if cut[-1] and each.end_offset - cut[-1][0].base_offset > limit:
            cut.append([])
        cut[-1].append(each)
    return cut


def write_life(chooser: random.Random, path) -> Life:
    life = Life()
    last = chooser.randint(1, 800)
    log = history(chooser, 0, last, 0, b"v")
    size = chooser.choice([30, 100, 300])
    have: list[set[int]] = []
    for number in range(chooser.choice([2, 2, 2, 3, 4])):
        root = path / f"copy-{number}"
        start, end = (
            sorted(chooser.sample(range(len(log) + 1), 2)) if chooser.random() < 0.7 else (0, len(log))
        )
        copied = log[start:end]
        partition = root / "orders-0"
        partition.mkdir(parents=True)
        (partition / "leader-epoch-checkpoint").write_text(epochs_of(chooser, copied))
        (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
        (root / "meta.properties").write_text(META)
        if chooser.random() < 0.5:
            (root / ".kafka_cleanshutdown").write_text("")
        have.append(write_segments(chooser, partition, segments(chooser, copied, size), life))
        if copied and chooser.random() < 0.3:
            # Deleted from the front, as by `kafka-delete-records`.
            log_start = chooser.randint(copied[0].base_offset, copied[-1].end_offset - 1)
            checkpoint(root, "log-start", log_start)
            have[-1] = {offset for offset in have[-1] if offset >= log_start}
        life.roots.append(str(root))
    life.value_of = {offset: b"v%d" % offset for offset in sorted(set().union(*have))}
    return life


def epochs_of(chooser: random.Random, batches: list[Batch]) -> str:
    entries: dict[int, int] = {}
    for each in batches:
        entries.setdefault(each.epoch, each.base_offset)
    if chooser.random() < 0.1:
        # A leader that was elected and got no record.
        entries[1_000] = (batches[-1].end_offset if batches else 0) + chooser.choice([0, 500])
    lines = "".join(f"{epoch} {offset}\n" for epoch, offset in entries.items())
    return f"0\n{len(entries)}\n{lines}"


def write_segments(chooser: random.Random, partition, cut: list[list[Batch]], life: Life) -> set[int]:
    """Write a copy's files, and damage some; return the offsets that are left."""
    left = set()
    for content in cut:
        if not content:
            continue
        path = partition / f"{content[0].base_offset:020d}.log"
        fate = chooser.choice(["whole"] * 6 + ["missing", "empty", "cut"])
        if fate == "missing":
            continue
        kept, torn = content, b""
        if fate == "empty":
            kept = []
        if fate == "cut":
            kept = content[: chooser.randrange(len(content))]
            lost = content[len(kept)].data
            torn = lost[: chooser.choice([0, chooser.randrange(len(lost))])]
            life.may_fail |= bool(torn)
        life.has_empty |= not kept
        path.write_bytes(b"".join(each.data for each in kept) + torn)
        left |= {offset for each in kept for offset in range(each.base_offset, each.end_offset)}
    return left


def read(life: Life, **options):
    table = storage_core.read_table(*life.roots, columns=["offset", "value"], **options)
    return dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)), table[
        "offset"
    ].to_pylist()


def judge(life: Life, **options) -> None:
    """Read with options, and compare with the model."""
    try:
        rows, offsets = read(life, **options)
    except CorruptRecordError:
        assert life.may_fail
        assert options.get("mode", "FAILFAST") == "FAILFAST"
        return
    assert rows == life.value_of
    assert offsets == sorted(life.value_of)


def live(seed: int, path) -> None:
    chooser = random.Random(seed)
    life = write_life(chooser, path)
    mode = {"mode": chooser.choice(["FAILFAST", "DROPMALFORMED"])}
    judge(life, **mode)
    split = chooser.choice(
        [{"min_partitions": 7}, {"max_records_per_partition": 13}, {"max_bytes_per_partition": 1_000}]
    )
    judge(life, **mode, **split, use_indexes=chooser.random() < 0.5)
    judge(life, **mode, isolation_level="read_committed")
    if life.value_of:
        judge_bounds(chooser, life, mode)


def judge_bounds(chooser: random.Random, life: Life, mode: dict[str, str]) -> None:
    offsets = list(life.value_of)
    start, end = sorted(chooser.choice(offsets) for _ in range(2))
    expected = {offset: value for offset, value in life.value_of.items() if start <= offset < end}
    for options in (
        {
            "starting_offsets": json.dumps({"orders": {"0": start}}),
            "ending_offsets": json.dumps({"orders": {"0": end}}),
        },
        {"where": f"offset >= {start} AND offset < {end}"},
        {
            "where": f"timestamp >= '{_time(start)}' AND timestamp < '{_time(end)}'",
            "max_timestamp_disorder": "1 second",
        },
        # In a segment without records, a broker takes the time of the file for that of its records.
        *([] if life.has_empty else [{"starting_timestamp": T0_MS + start, "ending_timestamp": T0_MS + end}]),
    ):
        try:
            rows, _ = read(life, **mode, **options)
        except CorruptRecordError:
            assert life.may_fail
        else:
            assert rows == expected, options


def _time(offset: int) -> str:
    time = dt.datetime.fromtimestamp((T0_MS + offset) / 1000, dt.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fork(seed: int, path) -> None:
    """Read two copies whose histories part: what follows the fork is that of the newer leader, and of no other."""
    chooser = random.Random(seed)
    fork_offset = chooser.randint(0, 200)
    shared = history(chooser, 0, fork_offset, 0, b"v")
    epoch = shared[-1].epoch if shared else 0
    copies = []
    for number, newer in enumerate(chooser.sample([1, 2], 2)):
        ends_at = fork_offset + chooser.randint(1, 200)
        whole = shared + history(chooser, fork_offset, ends_at, epoch + 100 * newer, b"%d-" % newer)
        kept = whole[chooser.randrange(len(whole)) :] if chooser.random() < 0.6 else whole
        root = path / f"copy-{number}"
        root.mkdir(parents=True)
        write_whole(chooser, root, kept)
        copies.append((newer, kept[0].base_offset, ends_at, str(root)))
    _, (_, start, end, _) = sorted(copies)
    (_, older_start, older_end, _), _ = sorted(copies)
    expected = {
        offset: b"v%d" % offset if offset < fork_offset else b"2-%d" % offset for offset in range(start, end)
    }
    for offset in range(older_start, min(older_end, start)):
        # Retention has deleted them in the newer copy.
        expected[offset] = b"v%d" % offset if offset < fork_offset else b"1-%d" % offset
    rows, offsets = read(Life([root for *_, root in copies]))
    assert rows == expected
    assert offsets == sorted(expected)


def write_whole(chooser: random.Random, root, batches: list[Batch]) -> None:
    partition = root / "orders-0"
    partition.mkdir()
    entries: dict[int, int] = {}
    for each in batches:
        entries.setdefault(each.epoch, each.base_offset)
    lines = "".join(f"{epoch} {offset}\n" for epoch, offset in entries.items())
    (partition / "leader-epoch-checkpoint").write_text(f"0\n{len(entries)}\n{lines}")
    for content in segments(chooser, batches, chooser.choice([30, 100])):
        (partition / f"{content[0].base_offset:020d}.log").write_bytes(
            b"".join(each.data for each in content)
        )


@pytest.fixture(autouse=True)
def _without_log_lines():
    # Each life has some.
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(8))
def test_lives(seed, tmp_path):
    live(seed, tmp_path)


def test_forks(tmp_path):
    for seed in range(20):
        fork(seed, tmp_path / str(seed))


@pytest.mark.thorough
def test_many_forks(tmp_path):
    for seed in range(1_000, 1_150):
        fork(seed, tmp_path / str(seed))


@pytest.mark.cases(1, 4)
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_many_lives(seed, tmp_path):
    for number in range(12):
        live(1_000 + seed * 12 + number, tmp_path / str(number))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30))
def test_thousands_of_lives(seed, tmp_path):
    for number in range(100):
        live(100_000 + seed * 100 + number, tmp_path / str(number))
